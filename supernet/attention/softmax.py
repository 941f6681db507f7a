"""Softmax attention: fused scaled dot products, with relative keys where the space asks for them.

Shapes: B batch, H heads, N queries, M keys, D width of one head, R largest relative distance,
W = H * D.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from supernet.attention.base import (
    AttentionKernel,
    State,
    by_span,
    in_full_precision,
    repeated_heads,
    without_autocast,
)
from supernet.shared import shared
from supernet.slices import multiplied


class SoftmaxKernel(AttentionKernel):
    """Scaled dot-product attention with optional relative keys.

    With relative keys the logit of query i and key j is ``(q_i·k_j + q_i·r_c) / sqrt(D)``, where c
    is ``j - i`` clipped to ±R and r a learned table of 2R+1 rows, cut into heads like the keys.
    A class token is position 0 like any other token: it has no row of its own.

    Source: Shaw et al., Self-Attention with Relative Position Representations (2018), eq. 4 and 5.
    We leave out relative values, and each head has keys of its own. Keys of another sequence have
    no distance: a kernel for cross-attention is built without relative keys. The table starts
    at zero, so that a new network is a plain one and no row is better than another before it was
    trained.
    """

    takes_groups = True

    def __init__(self, relative_positions: int, max_dim: int) -> None:
        """Build the kernel.

        Args:
            relative_positions: the distance R; 0 for plain attention without parameters.
            max_dim: largest H * D it is called with.
        """
        super().__init__()
        self.relative_positions = relative_positions
        self.relative_keys_CW: nn.Parameter | None = None
        if relative_positions > 0:
            self.relative_keys_CW = nn.Parameter(torch.zeros(2 * relative_positions + 1, max_dim))

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
        bias = None
        if self.relative_keys_CW is not None:
            bias = self._relative_logits(self.relative_keys_CW, q_BHND, k_BHMD.shape[2], span)
        return masked_attention(q_BHND, k_BHMD, v_BHMD, key_mask_BM, bias)

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
        """Attend to the past, which is carried as its keys and values."""
        k_BHMD, v_BHMD, mask_BM = appended(state, k_BHND, v_BHND, key_mask_BN)
        bias = None
        if self.relative_keys_CW is not None:
            bias = self._relative_logits(self.relative_keys_CW, q_BHND, k_BHMD.shape[2], span)
        out_BHND = past_attention(q_BHND, k_BHMD, v_BHMD, mask_BM, span, bias)
        return out_BHND, packed(k_BHMD, v_BHMD, mask_BM)

    def memory(
        self, k_BHMD: Tensor, v_BHMD: Tensor, *, key_mask_BM: Tensor | None, span: int = 1
    ) -> State:
        """The keys and values themselves; see `AttentionKernel.memory`."""
        if key_mask_BM is None:
            return k_BHMD, v_BHMD
        # As in `masked_attention`: where nothing is real all is seen, and here it is all zeros.
        seen_BM, empty_B1 = shared(seen_keys, key_mask_BM)
        return k_BHMD, v_BHMD.masked_fill(empty_B1[:, :, None, None], 0.0), seen_BM

    def read(self, q_BHND: Tensor, memory: State, positions_1N: Tensor) -> Tensor:
        """Attend to the keys, whatever the positions; see `AttentionKernel.read`."""
        k_BHMD, v_BHMD, mask_BM = unpacked(memory)
        mask = None if mask_BM is None else shared(_key_bias, mask_BM, q_BHND.dtype)
        return fused_attention(q_BHND, k_BHMD, v_BHMD, mask)

    def _relative_logits(self, table_CW: Tensor, q_BHND: Tensor, keys: int, span: int) -> Tensor:
        """``q_i · r_clip(j - i) / sqrt(D)`` for every query and key, ``(B, H, N, M)``.

        Each query meets the 2R+1 rows once and the products are then spread over the keys, which
        is cheaper than the N × M products of the definition once N is larger than 2R+1.
        """
        batch, heads, queries, head_dim = q_BHND.shape
        table_CW = multiplied(table_CW, len(table_CW), heads * head_dim)
        table_CHD = table_CW.unflatten(1, (heads, head_dim))
        logits_BHNC = torch.einsum("bhnd,chd->bhnc", q_BHND * head_dim**-0.5, table_CHD)
        far, device = self.relative_positions, q_BHND.device
        row_NM = shared(_relative_rows, queries, keys, span, far, device)
        spread_BHNM: Tensor = logits_BHNC.gather(-1, row_NM.expand(batch, heads, queries, keys))
        return spread_BHNM


def fused_attention(
    q_BHND: Tensor,
    k_BHMD: Tensor,
    v_BHMD: Tensor,
    mask: Tensor | None = None,
    is_causal: bool = False,
) -> Tensor:
    """Torch's fused attention; in fp32 on a CPU, where its bf16 gradient takes ten times as long.

    Args:
        q_BHND: queries.
        k_BHMD: keys, of as many heads or of fewer, each of which serves a group.
        v_BHMD: values, likewise.
        mask: booleans (True is seen) or a bias, as torch takes them.
        is_causal: query i sees the keys up to i.
    """
    k_BHMD = repeated_heads(k_BHMD, q_BHND.shape[1])
    v_BHMD = repeated_heads(v_BHMD, q_BHND.shape[1])
    if q_BHND.device.type != "cpu" or q_BHND.dtype != torch.bfloat16:
        return F.scaled_dot_product_attention(
            q_BHND, k_BHMD, v_BHMD, attn_mask=mask, is_causal=is_causal
        )
    with without_autocast(q_BHND.device):
        q, k, v = in_full_precision(q_BHND, k_BHMD, v_BHMD)
        bias = None if mask is None else in_full_precision(mask)[0]
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=bias, is_causal=is_causal)
    return out.to(q_BHND.dtype)


def masked_attention(
    q_BHND: Tensor,
    k_BHMD: Tensor,
    v_BHMD: Tensor,
    key_mask_BM: Tensor | None,
    bias_BHNM: Tensor | None = None,
) -> Tensor:
    """Fused softmax attention over the real keys; zeros for samples that have none.

    Args:
        q_BHND: queries.
        k_BHMD: keys.
        v_BHMD: values.
        key_mask_BM: True at real keys; None when all are.
        bias_BHNM: added to the scaled logits.
    """
    if key_mask_BM is None:
        return fused_attention(q_BHND, k_BHMD, v_BHMD, bias_BHNM)
    seen_BM, empty_B1 = shared(seen_keys, key_mask_BM)
    mask_B11M = shared(_key_bias, seen_BM, q_BHND.dtype)
    out_BHND = fused_attention(q_BHND, k_BHMD, v_BHMD, _sum(mask_B11M, bias_BHNM))
    return out_BHND.masked_fill(empty_B1[:, :, None, None], 0.0)


def past_attention(
    q_BHND: Tensor,
    k_BHMD: Tensor,
    v_BHMD: Tensor,
    key_mask_BM: Tensor | None,
    span: int = 1,
    bias_BHNM: Tensor | None = None,
) -> Tensor:
    """Fused softmax attention of the last N of M states over the real ones of their past.

    Arguments as for `masked_attention`, and the states per position. Rows without a key are zero.
    """
    queries, keys = q_BHND.shape[2], k_BHMD.shape[2]
    if key_mask_BM is None and queries == span:
        return fused_attention(q_BHND, k_BHMD, v_BHMD, bias_BHNM)
    if key_mask_BM is None and bias_BHNM is None and queries == keys and span == 1:
        return fused_attention(q_BHND, k_BHMD, v_BHMD, is_causal=True)
    visible_NM = shared(visible_past, queries, keys, span, q_BHND.device)
    return visible_attention(q_BHND, k_BHMD, v_BHMD, visible_NM, key_mask_BM, bias_BHNM)


def visible_attention(
    q_BHND: Tensor,
    k_BHMD: Tensor,
    v_BHMD: Tensor,
    visible: Tensor,
    key_mask_BM: Tensor | None,
    bias_BHNM: Tensor | None = None,
) -> Tensor:
    """Fused softmax attention over the real keys that a query may see.

    Args:
        q_BHND: queries, which are the last N of the M states.
        k_BHMD: keys.
        v_BHMD: values.
        visible: ``(N, M)`` or ``(B, N, M)``, causal; a query sees its own key.
        key_mask_BM: True at real keys; None when all are.
        bias_BHNM: added to the scaled logits.

    Returns:
        ``(B, H, N, D)``, with zeros for queries before the first real key.
    """
    hidden_BN = None
    if key_mask_BM is not None:
        visible, hidden_BN = shared(_real_and_visible, visible, key_mask_BM, q_BHND.shape[2])
    mask = shared(_bias, visible, q_BHND.dtype)
    mask = mask if visible.dim() == 2 else mask[:, None]
    out_BHND = fused_attention(q_BHND, k_BHMD, v_BHMD, _sum(mask, bias_BHNM))
    return out_BHND if hidden_BN is None else out_BHND.masked_fill(hidden_BN[:, None, :, None], 0.0)


def _real_and_visible(visible: Tensor, key_mask_BM: Tensor, queries: int) -> tuple[Tensor, Tensor]:
    """The keys that each query sees, ``(B, N, M)``, and queries without one of theirs, ``(B, N)``.

    As in `seen_keys` these see all. Padding that follows real keys sees at least those.
    """
    hidden_BN = key_mask_BM.cumsum(dim=1)[:, -queries:] == 0
    return (visible & key_mask_BM[:, None]) | hidden_BN[:, :, None], hidden_BN


def seen_keys(key_mask_BM: Tensor) -> tuple[Tensor, Tensor]:
    """The keys that are seen, ``(B, M)``, and whether a sample has none of its own, ``(B, 1)``.

    A softmax over nothing is 0/0 in some backends: samples without keys see all.
    """
    empty_B1 = ~key_mask_BM.any(dim=1, keepdim=True)
    return key_mask_BM | empty_B1, empty_B1


def _key_bias(seen_BM: Tensor, dtype: torch.dtype) -> Tensor:
    return _bias(seen_BM[:, None, None, :], dtype)


def _bias(visible: Tensor, dtype: torch.dtype) -> Tensor:
    """What is added to logits: 0 where a key is visible, -∞ elsewhere."""
    return torch.zeros_like(visible, dtype=dtype).masked_fill(~visible, -torch.inf)


def _sum(mask: Tensor, bias_BHNM: Tensor | None) -> Tensor:
    return mask if bias_BHNM is None else bias_BHNM + mask


def visible_past(queries: int, keys: int, span: int, device: torch.device) -> Tensor:
    """Which of M states the last N of them see, ``(N, M)``."""
    query_N, key_M = state_indices(queries, keys, span, device)
    return key_M[None, :] <= query_N[:, None]


def _relative_rows(queries: int, keys: int, span: int, far: int, device: torch.device) -> Tensor:
    """The row of relative keys for each of the last N of M states and each key, ``(N, M)``."""
    query_N, key_M = state_indices(queries, keys, span, device)
    return (key_M[None, :] - query_N[:, None]).clamp(-far, far) + far


def state_indices(
    queries: int, keys: int, span: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Positions ``(N,)`` of the last N of M states, and ``(M,)`` of all, padding included."""
    key_M = by_span(torch.arange(keys, device=device), span)
    return key_M[keys - queries :], key_M


def packed(k_BHMD: Tensor, v_BHMD: Tensor, key_mask_BM: Tensor | None) -> State:
    """Keys and values, and their mask where there is one, as a state."""
    return (k_BHMD, v_BHMD) if key_mask_BM is None else (k_BHMD, v_BHMD, key_mask_BM)


def unpacked(state: State) -> tuple[Tensor, Tensor, Tensor | None]:
    """What `packed` was given."""
    k_BHMD, v_BHMD, *mask = state
    return k_BHMD, v_BHMD, mask[0] if mask else None


def last_keys(state: State, count: int) -> State:
    """The last `count` keys and values, or all where there are fewer, detached copies of them.

    A view would keep everything alive that it was cut from.
    """
    k_BHMD, v_BHMD, mask_BM = unpacked(state)
    mask_BM = None if mask_BM is None else mask_BM[:, -count:]
    kept = packed(k_BHMD[:, :, -count:], v_BHMD[:, :, -count:], mask_BM)
    return tuple(part.detach().clone() for part in kept)


def appended(
    state: State | None, k_BHND: Tensor, v_BHND: Tensor, key_mask_BN: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Keys, values and mask of the past, and the new ones behind them."""
    if state is None:
        return k_BHND, v_BHND, key_mask_BN
    old_k, old_v, old_mask = unpacked(state)
    k_BHMD, v_BHMD = torch.cat((old_k, k_BHND), dim=2), torch.cat((old_v, v_BHND), dim=2)
    if old_mask is None and key_mask_BN is None:
        return k_BHMD, v_BHMD, None
    masks = [_mask_or_all(old_mask, old_k), _mask_or_all(key_mask_BN, k_BHND)]
    return k_BHMD, v_BHMD, torch.cat(masks, dim=1)


def _mask_or_all(mask_BM: Tensor | None, k_BHMD: Tensor) -> Tensor:
    if mask_BM is not None:
        return mask_BM
    batch, _, keys, _ = k_BHMD.shape
    return torch.ones(batch, keys, dtype=torch.bool, device=k_BHMD.device)
