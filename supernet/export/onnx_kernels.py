"""Attention kernels in a form without branches on lengths, which a graph can hold.

A traced graph knows one way through the code. Our kernels choose theirs by the lengths they are
given: a single token, a short text, chunks. Each form here computes what its kernel does, at any
length, in the one way that is right for all of them, and goes on from a state even where that is
empty. Tests compare each with its kernel.

Shapes: B batch, H heads, N new states, M all states, D width of one head, C features, V value
columns, P states per position, K key/value heads, n blocks of L queries and J keys, b batch times
blocks.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy

import torch
from torch import Tensor, nn
from torch._higher_order_ops.scan import scan

from search_spaces.errors import UsageError
from supernet.attention.base import (
    AttentionKernel,
    State,
    state_positions,
)
from supernet.attention.bigbird import BigBirdKernel
from supernet.attention.gated import GatedKernel
from supernet.attention.gated_chunks import gated_step
from supernet.attention.linear import MeanLinearKernel, NormLinearKernel
from supernet.attention.omni import LinformerKernel
from supernet.attention.softmax import (
    SoftmaxKernel,
    appended,
    masked_attention,
    state_indices,
    visible_attention,
    visible_past,
)
from supernet.attention.window import (
    LEAST_BLOCK,
    WindowKernel,
    first_states,
    grouped_attention,
    states_of,
)


def traceable(kernel: nn.Module) -> AttentionKernel:
    """The form of a kernel, with its own parameters (shared, not copied).

    Raises:
        UsageError: for a kernel without one.
    """
    if isinstance(kernel, LinformerKernel):
        return kernel  # as it is
    made = type(kernel)
    known = next((base for base in made.__mro__ if base in FORMS), None)
    if known is None:
        raise UsageError(
            f"the attention kernel {made.__name__} has no form for ONNX; "
            "add one to supernet/export/onnx_kernels.py"
        )
    form = copy(kernel)
    form.__class__ = type(f"Traceable{made.__name__}", (FORMS[known], made), {})
    assert isinstance(form, AttentionKernel)
    return form


class TraceableSoftmax(SoftmaxKernel):
    """Softmax attention whose causal mask is always there, also for a single token."""

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
        """Attend to the past; see `AttentionKernel.causal`."""
        k_BHMD, v_BHMD = _appended(state, k_BHND, v_BHND, key_mask_BN)
        bias = None
        if self.relative_keys_CW is not None:
            bias = self._relative_logits(self.relative_keys_CW, q_BHND, k_BHMD.shape[2], span)
        visible_NM = visible_past(q_BHND.shape[2], k_BHMD.shape[2], span, q_BHND.device)
        out_BHND = visible_attention(q_BHND, k_BHMD, v_BHMD, visible_NM, None, bias)
        return out_BHND, (k_BHMD, v_BHMD)


class TraceableWindow(WindowKernel):
    """Window attention that looks the keys of a block up, wherever they stand.

    A text's new states meet each other in products of all pairs, as in `TraceableMeanLinear`.
    """

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
        states, device, side = q_BHND.shape[2], q_BHND.device, self.window * span
        length = max(1, LEAST_BLOCK // span) * span
        # One block more than there are: of a single one a trace would make a constant.
        count = (states + length - 1) // length + 1
        blocks_n = torch.arange(count, device=device)[:, None] * length
        query_nL = blocks_n + torch.arange(length, device=device)
        key_nJ = blocks_n + torch.arange(length + 2 * side, device=device) - side
        there_BnJ = ((key_nJ >= 0) & (key_nJ < states))[None]
        query_nL, key_nJ = (x.clamp(min=0).clamp(max=states - 1) for x in (query_nL, key_nJ))
        if key_mask_BM is not None:
            there_BnJ = there_BnJ & key_mask_BM[:, key_nJ]
        distance_nLJ = query_nL[:, :, None] // span - key_nJ[:, None] // span
        visible_BnLJ = (distance_nLJ.abs() <= self.window) & there_BnJ[:, :, None]
        # Blocks become samples of a batch.
        k_bKJD, v_bKJD = (x[:, :, key_nJ].transpose(1, 2).flatten(0, 1) for x in (k_BHMD, v_BHMD))
        q_bHLD = q_BHND[:, :, query_nL].transpose(1, 2).flatten(0, 1)
        if self.global_first:
            first_BP = first_states(key_mask_BM, k_BHMD, span)
            far_BnLP = (query_nL[None, :, :, None] // span) - (first_BP // span)[:, None, None]
            any_B = there_BnJ.flatten(1).any(dim=1)[:, None, None, None]
            far_BnLP = (far_BnLP.abs() > self.window) & any_B
            visible_BnLJ = visible_BnLJ.expand(far_BnLP.shape[0], -1, -1, -1)
            visible_BnLJ = torch.cat((visible_BnLJ, far_BnLP), dim=3)
            k_bKJD, v_bKJD = (
                torch.cat((x, _for_blocks(states_of(all_, first_BP), blocks_n.shape[0])), dim=2)
                for x, all_ in ((k_bKJD, k_BHMD), (v_bKJD, v_BHMD))
            )
        visible_bLJ = visible_BnLJ.expand(q_BHND.shape[0], -1, -1, -1).flatten(0, 1)
        out_bHLD = grouped_attention(q_bHLD, k_bKJD, v_bKJD, visible_bLJ)
        out_BnHLD: Tensor = out_bHLD.unflatten(0, (q_BHND.shape[0], blocks_n.shape[0]))
        out_BHND = out_BnHLD.transpose(1, 2).flatten(2, 3)
        out_BHND = out_BHND[:, :, torch.arange(states, device=device)]
        if not self.global_first:
            return out_BHND
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
        k_BHMD, v_BHMD = _appended(state, k_BHND, v_BHND, key_mask_BN)
        states, keys = q_BHND.shape[2], k_BHMD.shape[2]
        query_N, key_M = state_indices(states, keys, span, q_BHND.device)
        near_NM = (key_M > query_N[:, None] - self.window) & (key_M <= query_N[:, None])
        visible_BNM = near_NM[None].expand(q_BHND.shape[0], -1, -1)
        out_BHND = grouped_attention(q_BHND, k_BHMD, v_BHMD, visible_BNM)
        # A slice would branch on whether there are so many.
        kept = torch.sym_min(keys, self.window * span)
        last_W = torch.arange(kept, device=q_BHND.device) + (keys - kept)
        return out_BHND, (k_BHMD[:, :, last_W], v_BHMD[:, :, last_W])


def _for_blocks(x_BHPD: Tensor, blocks: int) -> Tensor:
    """The same for each of so many blocks, ``(B * n, H, P, D)``."""
    return x_BHPD[:, None].expand(-1, blocks, -1, -1, -1).flatten(0, 1)


class TraceableBigBird(BigBirdKernel):
    """BigBird that computes every product and masks the blocks that are not looked at.

    As exact as the sparse kernel, and as costly as full attention.
    """

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
        if self.priority.shape[0] <= self.ATTENDED_BLOCKS:  # all blocks are seen, at any length
            return masked_attention(q_BHND, k_BHMD, v_BHMD, key_mask_BM)
        memory = self.memory(k_BHMD, v_BHMD, key_mask_BM=key_mask_BM, span=span)
        positions_BN = state_positions(key_mask_BM, q_BHND.shape[2], span, q_BHND.device)
        return self.read(q_BHND, memory, positions_BN)

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
        """Attend to blocks of the past; see `AttentionKernel.causal`."""
        k_BHMD, v_BHMD = _appended(state, k_BHND, v_BHND, key_mask_BN)
        visible_1NM = self._visible_past(q_BHND.shape[2], None, k_BHMD, span)
        return visible_attention(q_BHND, k_BHMD, v_BHMD, visible_1NM, None), (k_BHMD, v_BHMD)


def quadratic_sums(
    q_BHNC: Tensor, k_BHNC: Tensor, v_BHNV: Tensor, past_BHCV: Tensor | None, span: int
) -> tuple[Tensor, Tensor]:
    """What `causal_linear.causal_sums` computes, by the products of all queries and keys."""
    assert past_BHCV is not None, "a graph goes on from a state"
    states = q_BHNC.shape[2]
    visible_NN = visible_past(states, states, span, q_BHNC.device)
    weights_BHNN = (q_BHNC @ k_BHNC.mT).masked_fill(~visible_NN, 0.0)
    out_BHNV = weights_BHNN @ v_BHNV + q_BHNC @ past_BHCV
    return out_BHNV, past_BHCV + k_BHNC.mT @ v_BHNV


class TraceableMeanLinear(MeanLinearKernel):
    """Normalised linear attention whose new states meet each other as in quadratic attention.

    For a single token that is the recurrent step. A long prompt is best read in parts, as
    `decode.py` does: N new states cost N² products.
    """

    sums = staticmethod(quadratic_sums)


class TraceableNormLinear(NormLinearKernel):
    """Norm-linear attention whose new states meet each other as in quadratic attention."""

    sums = staticmethod(quadratic_sums)


class StepByStep(GatedKernel):
    """Gates and the delta rule as a loop over positions, of any number, in the graph.

    A chunk's triangular system has no operator in ONNX, and a step is exact as it is.
    """

    def sums(
        self,
        q_BHND: Tensor,
        k_BHND: Tensor,
        v_BHND: Tensor,
        log_gate_BHNG: Tensor,
        beta_BHN: Tensor | None,
        past_BHCV: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """See `GatedKernel.sums`."""
        if past_BHCV is None:
            past_BHCV = k_BHND.new_zeros(*k_BHND.shape[:2], k_BHND.shape[3], v_BHND.shape[3])
        given = [q_BHND, k_BHND, v_BHND, log_gate_BHNG]
        given += [] if beta_BHN is None else [beta_BHN]
        # Positions come first: the loop goes along that dimension.
        parts = tuple(x.movedim(2, 0).unsqueeze(3) for x in given)
        state_BHCV, out_NBH1V = looped(_gated_step, past_BHCV, parts)
        return out_NBH1V.squeeze(3).movedim(0, 2), state_BHCV


Step = Callable[[Tensor, tuple[Tensor, ...]], tuple[Tensor, Tensor]]


def looped(step: Step, state: Tensor, parts: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
    """A state through all positions: a loop in Python, and in a graph one of the graph's own.

    Args:
        step: of a state and the parts of one position; the next state and what comes out.
        state: before the first position.
        parts: positions come first.

    Returns:
        The last state, and what came out of each position, positions first.
    """
    if torch.compiler.is_exporting():
        last, out = scan(step, state, parts)
        return last, out
    found = []
    for position in zip(*(part.unbind(0) for part in parts), strict=True):
        state, out = step(state, position)
        found.append(out)
    return state, torch.stack(found)


def _gated_step(state_BHCV: Tensor, parts: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
    q, k, v, log_gate, *beta = parts
    out_BH1V, after_BHCV = gated_step(q, k, v, log_gate, beta[0] if beta else None, state_BHCV)
    return after_BHCV, out_BH1V


def _appended(
    state: State | None, k_BHND: Tensor, v_BHND: Tensor, mask: Tensor | None
) -> tuple[Tensor, Tensor]:
    assert state is not None and mask is None, "a graph goes on from a state, without padding"
    k_BHMD, v_BHMD, _ = appended(state, k_BHND, v_BHND, None)
    return k_BHMD, v_BHMD


FORMS: dict[type, type] = {
    SoftmaxKernel: TraceableSoftmax,
    WindowKernel: TraceableWindow,
    MeanLinearKernel: TraceableMeanLinear,
    NormLinearKernel: TraceableNormLinear,
    GatedKernel: StepByStep,
    BigBirdKernel: TraceableBigBird,
}
"""The form of each kernel and of all that are made of it."""
