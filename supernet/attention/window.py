"""Softmax attention over a window of neighbouring positions, at a cost that grows with N · w.

Queries are cut into blocks and each block meets the keys that its queries see, and few more: no
N × N logits or masks are made.

Shapes: B batch, H heads, K key/value heads, N queries, M keys, D width of one head, n blocks, L
queries of a block, J keys of a block, P states per position.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from search_spaces.errors import UsageError
from supernet.attention.base import AttentionKernel, State, first_position
from supernet.attention.softmax import (
    appended,
    fused_attention,
    packed,
    past_attention,
    unpacked,
)

LEAST_BLOCK, LARGEST_BLOCK = 32, 128
"""Queries of a block, of which there are a quarter as many as keys that a query sees, within these
bounds. Measured forward and backward on a CPU for windows of 16 to 1,024."""


class WindowKernel(AttentionKernel):
    """Scaled dot-product attention over the positions nearby.

    In a decoder a query sees its own position and the ``window - 1`` before it; in an encoder it
    sees the `window` positions on either side as well as its own. What is carried are the keys and
    values of the last `window` positions, or of all where there are fewer.

    Keys and values may have fewer heads than the queries, each of which then serves a group of
    neighbouring query heads.

    Source: Beltagy et al., Longformer (2020), section 3.1, without dilation; the decoder's window
    is counted as Mistral 7B (Jiang et al. 2023) counts it. With `global_first` the first real
    position is global as in section 3.1 of Longformer, with the same projections.
    """

    takes_groups = True

    def __init__(self, window: int, global_first: bool = False) -> None:
        """Build the kernel, which has no parameters.

        Args:
            window: positions, at least 1.
            global_first: in an encoder, all see the first real position, and it sees all: where a
                token stands there that the network is read at, a network of windows reads the whole
                input.

        Raises:
            UsageError: for a window of no position.
        """
        super().__init__()
        if window < 1:
            raise UsageError(
                f"a window of {window} positions sees nothing: give one of at least 1 position, as "
                "window in the space's [model] table or behind the kind, as in window:64"
            )
        self.window = window
        self.global_first = global_first

    def forward(
        self,
        q_BHND: Tensor,
        k_BHMD: Tensor,
        v_BHMD: Tensor,
        *,
        key_mask_BM: Tensor | None,
        span: int = 1,
    ) -> Tensor:
        """Attend; see `AttentionKernel.forward`."""
        band = Band(self.window, self.window, span)
        if not self.global_first:
            return banded_attention(q_BHND, k_BHMD, v_BHMD, key_mask_BM, band)
        first_BP = first_states(key_mask_BM, k_BHMD, span)
        out_BHND = banded_attention(q_BHND, k_BHMD, v_BHMD, key_mask_BM, band, first_BP)
        real_BPM = None if key_mask_BM is None else key_mask_BM[:, None].expand(-1, span, -1)
        everywhere_BHPD = grouped_attention(states_of(q_BHND, first_BP), k_BHMD, v_BHMD, real_BPM)
        place_BHPD = first_BP[:, None, :, None].expand_as(everywhere_BHPD)
        return out_BHND.scatter(2, place_BHPD, everywhere_BHPD)

    def causal(
        self,
        q_BHND: Tensor,
        k_BHND: Tensor,
        v_BHND: Tensor,
        *,
        key_mask_BN: Tensor | None = None,
        span: int = 1,
        state: State | None = None,
    ) -> tuple[Tensor, State]:
        """Attend to the last positions, whose keys and values are carried."""
        past = None if state is None else last_states(state, (self.window - 1) * span)
        k_BHMD, v_BHMD, mask_BM = appended(past, k_BHND, v_BHND, key_mask_BN)
        if mask_BM is None and q_BHND.shape[2] == span:
            out_BHND = grouped_attention(q_BHND, k_BHMD, v_BHMD, None)
        elif k_BHMD.shape[2] <= self.window * span:
            out_BHND = past_attention(q_BHND, k_BHMD, v_BHMD, mask_BM, span)
        else:
            band = Band(self.window - 1, 0, span)
            out_BHND = banded_attention(q_BHND, k_BHMD, v_BHMD, mask_BM, band)
        return out_BHND, last_states(packed(k_BHMD, v_BHMD, mask_BM), self.window * span)

    def _no_decoder(self) -> str:
        return (
            "WindowKernel cannot attend to another sequence, in which a position has no "
            "neighbours: choose softmax or linear for cross-attention"
        )


@dataclass(frozen=True)
class Band:
    """Which positions a query sees.

    Attributes:
        before: positions before its own.
        after: positions behind its own.
        span: states per position.
    """

    before: int
    after: int
    span: int


def banded_attention(
    q_BHND: Tensor,
    k_BKMD: Tensor,
    v_BKMD: Tensor,
    key_mask_BM: Tensor | None,
    band: Band,
    first_BP: Tensor | None = None,
) -> Tensor:
    """Fused softmax attention of the last N of M states over the real ones in a band.

    Args:
        q_BHND: queries.
        k_BKMD: keys; H is a multiple of K.
        v_BKMD: values.
        key_mask_BM: True at real keys; None when all are.
        band: which positions are seen.
        first_BP: states that are seen besides, those of a sample's first real position; None for
            none.

    Returns:
        ``(B, H, N, D)``, with zeros for queries that see nothing.
    """
    batch, queries, device = q_BHND.shape[0], q_BHND.shape[2], q_BHND.device
    cut = _cut(queries, k_BKMD.shape[2], band)
    q_BNHD = _padded(q_BHND.transpose(1, 2), 0, cut.blocks * cut.length - queries)
    q_bHLD = q_BNHD.unflatten(1, (cut.blocks, cut.length)).flatten(0, 1).transpose(1, 2)
    # Turned before blocks are copied: kernels on cards want the columns of a key side by side.
    k_bKJD, v_bKJD = (cut.keys_of(x.transpose(1, 2)).mT.flatten(0, 1) for x in (k_BKMD, v_BKMD))
    real_BM = torch.ones_like(k_BKMD[:1, 0, :, 0]) if key_mask_BM is None else key_mask_BM.float()
    query_L = torch.arange(cut.length, device=device)[:, None] // band.span
    key_J = (torch.arange(cut.reach, device=device) - cut.offset)[None] // band.span
    near_LJ = (key_J >= query_L - band.before) & (key_J <= query_L + band.after)
    visible_BnLJ = near_LJ & cut.keys_of(real_BM).bool()[:, :, None]
    if first_BP is not None:
        k_bKJD, v_bKJD = (
            torch.cat((x, states_of(all_, first_BP).repeat_interleave(cut.blocks, dim=0)), dim=2)
            for x, all_ in ((k_bKJD, k_BKMD), (v_bKJD, v_BKMD))
        )
        query_nL1 = torch.arange(cut.blocks * cut.length, device=device).view(-1, cut.length, 1)
        distance_BnLP = (query_nL1 // band.span - (first_BP // band.span)[:, None, None]).abs()
        far_BnLP = (distance_BnLP > band.before) & real_BM.any(dim=1)[:, None, None, None]
        visible_BnLJ = torch.cat((visible_BnLJ.expand(batch, -1, -1, -1), far_BnLP), dim=3)
    visible_bLJ = visible_BnLJ.expand(batch, -1, -1, -1).flatten(0, 1)
    out_bHLD = grouped_attention(q_bHLD, k_bKJD, v_bKJD, visible_bLJ)
    out_BnLHD: Tensor = out_bHLD.transpose(1, 2).unflatten(0, (batch, cut.blocks))
    out_BNHD = out_BnLHD.flatten(1, 2)
    return out_BNHD[:, :queries].transpose(1, 2)


@dataclass(frozen=True)
class _Cut:
    """Blocks of queries and the keys that each of them meets.

    Attributes:
        blocks: of queries.
        length: queries of a block.
        reach: keys of a block.
        offset: keys of a block that stand before its first query.
        ahead: keys that do not exist and are put in front of the others.
        behind: the same behind them; negative where keys are left out.
    """

    blocks: int
    length: int
    reach: int
    offset: int
    ahead: int
    behind: int

    def keys_of(self, x_BMX: Tensor) -> Tensor:
        """``(B, M, …)`` → ``(B, n, …, J)``, zeros where there is no key."""
        blocks: Tensor = _padded(x_BMX, self.ahead, self.behind).unfold(1, self.reach, self.length)
        return blocks


def _cut(queries: int, keys: int, band: Band) -> _Cut:
    """One block of all, or many short ones, whichever has fewer pairs."""
    past = keys - queries
    seen = (band.before + band.after + 1) * band.span
    wanted = min(max(seen // 4, LEAST_BLOCK), LARGEST_BLOCK)
    length = max(1, wanted // band.span) * band.span
    offset = band.before * band.span
    reach = length + offset + band.after * band.span
    blocks = -(-queries // length)
    if queries * keys <= blocks * length * reach:
        return _Cut(1, queries, keys, past, 0, 0)
    ahead = offset - past
    return _Cut(blocks, length, reach, offset, ahead, (blocks - 1) * length + reach - ahead - keys)


def grouped_attention(
    q_BHND: Tensor, k_BKMD: Tensor, v_BKMD: Tensor, visible_BNM: Tensor | None
) -> Tensor:
    """Fused softmax attention whose keys and values may serve a group of heads each.

    Args:
        q_BHND: queries.
        k_BKMD: keys; H is a multiple of K, and heads of a group are neighbours.
        v_BKMD: values.
        visible_BNM: what each query sees; None where it sees all.

    Returns:
        ``(B, H, N, D)``, with zeros for queries that see nothing.
    """
    heads, kv_heads, queries = q_BHND.shape[1], k_BKMD.shape[1], q_BHND.shape[2]
    group = heads // kv_heads
    if group > 1:
        # The queries of a group are more queries of one head: keys and values are not repeated.
        q_BHND = q_BHND.unflatten(1, (kv_heads, group)).flatten(2, 3)
    if visible_BNM is None:
        out_BHND = fused_attention(q_BHND, k_BKMD, v_BKMD)
    else:
        # A softmax over nothing is 0/0 in some backends: such rows see all, then get zeros.
        hidden_BN1 = ~visible_BNM.any(dim=2, keepdim=True)
        mask_BNM = visible_BNM | hidden_BN1
        if group > 1:
            mask_BNM, hidden_BN1 = (x.repeat(1, group, 1) for x in (mask_BNM, hidden_BN1))
        out_BHND = fused_attention(q_BHND, k_BKMD, v_BKMD, mask_BNM[:, None])
        out_BHND = out_BHND.masked_fill(hidden_BN1[:, None], 0.0)
    if group > 1:
        out_BHND = out_BHND.unflatten(2, (group, queries)).flatten(1, 2)
    return out_BHND


def last_states(state: State, count: int) -> State:
    """The last `count` keys and values, or all where there are fewer.

    What is cut off is copied away from, or it would be kept alive.
    """
    k_BKMD, v_BKMD, mask_BM = unpacked(state)
    first = k_BKMD.shape[2] - count
    if first <= 0:
        return state
    mask_BM = None if mask_BM is None else mask_BM[:, first:].clone()
    return packed(k_BKMD[:, :, first:].clone(), v_BKMD[:, :, first:].clone(), mask_BM)


def first_states(key_mask_BM: Tensor | None, k_BKMD: Tensor, span: int) -> Tensor:
    """Numbers of the states of each sample's first real position, ``(B, P)``."""
    own_1P = torch.arange(span, device=k_BKMD.device)[None]
    if key_mask_BM is None:
        return own_1P.expand(k_BKMD.shape[0], -1)
    return own_1P + first_position(key_mask_BM, span)[:, None] * span


def states_of(x_BHND: Tensor, states_BP: Tensor) -> Tensor:
    """These states of each sample, ``(B, H, P, D)``."""
    place_BHPD = states_BP[:, None, :, None].expand(-1, x_BHND.shape[1], -1, x_BHND.shape[3])
    return x_BHND.gather(2, place_BHPD)


def _padded(x_BNX: Tensor, ahead: int, behind: int) -> Tensor:
    """Zeros before and after the second dimension; a negative number cuts it."""
    if ahead == behind == 0:
        return x_BNX
    return F.pad(x_BNX, (0, 0) * (x_BNX.dim() - 2) + (ahead, behind))
