"""Attention kernels in a form without branches on lengths, which a graph can hold.

A traced graph knows one way through the code. Our kernels choose theirs by the lengths they are
given: a single token, a short text, chunks. Each form here computes what its kernel does, at any
length, in the one way that is right for all of them, and goes on from a state even where that is
empty. Tests compare each with its kernel.

Shapes: B batch, H heads, N new states, M all states, D width of one head, C features, V value
columns, P states per position.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from search_spaces.errors import UsageError
from supernet.attention.base import (
    AttentionKernel,
    State,
    next_positions,
    seen_positions,
    state_positions,
)
from supernet.attention.bigbird import BigBirdKernel
from supernet.attention.causal_linear import divided, with_ones
from supernet.attention.linear import CosformerKernel, MeanLinearKernel, NormLinearKernel
from supernet.attention.linear_features import elu_features
from supernet.attention.omni import LinformerKernel, PerformerKernel
from supernet.attention.softmax import (
    SoftmaxKernel,
    appended,
    masked_attention,
    state_indices,
    visible_attention,
)


def traceable(kernel: nn.Module) -> AttentionKernel:
    """The form of a kernel, with its own parameters (shared, not copied).

    Raises:
        UsageError: for a kernel without one.
    """
    form: AttentionKernel
    match kernel:
        case SoftmaxKernel():
            form = TraceableSoftmax(0, 0)
            form.relative_positions = kernel.relative_positions
            form.relative_keys_CW = kernel.relative_keys_CW
        case CosformerKernel():
            form = TraceableCosformer(kernel.max_length)
        case PerformerKernel():
            form = TraceablePerformer()
        case NormLinearKernel():
            form = TraceableNormLinear(0)
            form.gain_W = kernel.gain_W
        case BigBirdKernel():
            form = TraceableBigBird(kernel.block, kernel.max_length)
            form.priority = kernel.priority
        case LinformerKernel():
            return kernel
        case _:
            raise UsageError(
                f"the attention kernel {type(kernel).__name__} has no form for ONNX; "
                "add one to supernet/export/onnx_kernels.py"
            )
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
        visible_NM = _past(q_BHND.shape[2], k_BHMD.shape[2], span, q_BHND.device)
        out_BHND = visible_attention(q_BHND, k_BHMD, v_BHMD, visible_NM, None, bias)
        return out_BHND, (k_BHMD, v_BHMD)


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


class TraceableMeanLinear(MeanLinearKernel):
    """Normalised linear attention whose new states meet each other as in quadratic attention.

    For a single token that is the recurrent step. A long prompt is best read in parts, as
    `decode.py` does: N new states cost N² products.
    """

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
        past_BHCV, seen_B = _known(state, key_mask_BN)
        positions_BN = next_positions(None, k_BHND.shape[2], span, seen_B, k_BHND.device)
        q_BHNC, k_BHNC = self.features(q_BHND, positions_BN), self.features(k_BHND, positions_BN)
        out_BHNV, sums_BHCV = quadratic_sums(q_BHNC, k_BHNC, with_ones(v_BHND), past_BHCV, span)
        return divided(out_BHNV), (sums_BHCV, seen_positions(None, k_BHND, span, seen_B))


class TraceableCosformer(TraceableMeanLinear, CosformerKernel):
    """cosFormer in the form of `TraceableMeanLinear`."""


class TraceablePerformer(TraceableMeanLinear, PerformerKernel):
    """Performer in the form of `TraceableMeanLinear`."""


class TraceableNormLinear(NormLinearKernel):
    """Norm-linear attention whose new states meet each other as in quadratic attention."""

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
        past_BHCV, seen_B = _known(state, key_mask_BN)
        positions_BN = next_positions(None, k_BHND.shape[2], span, seen_B, k_BHND.device)
        q_BHNC, k_BHNC = elu_features(q_BHND), elu_features(k_BHND)
        sums_BHND, past_BHCV = quadratic_sums(q_BHNC, k_BHNC, v_BHND, past_BHCV, span)
        count_BN = (positions_BN + 1) * span
        out_BHND = self._normed(sums_BHND / count_BN[:, None, :, None])
        return out_BHND, (past_BHCV, seen_positions(None, k_BHND, span, seen_B))


def quadratic_sums(
    q_BHNC: Tensor, k_BHNC: Tensor, v_BHNV: Tensor, past_BHCV: Tensor, span: int
) -> tuple[Tensor, Tensor]:
    """What `causal_linear.causal_sums` computes, by the products of all queries and keys."""
    states = q_BHNC.shape[2]
    visible_NN = _past(states, states, span, q_BHNC.device)
    weights_BHNN = (q_BHNC @ k_BHNC.mT).masked_fill(~visible_NN, 0.0)
    out_BHNV = weights_BHNN @ v_BHNV + q_BHNC @ past_BHCV
    return out_BHNV, past_BHCV + k_BHNC.mT @ v_BHNV


def _past(queries: int, keys: int, span: int, device: torch.device) -> Tensor:
    """``(N, M)``, True where one of the last N states may see one of all M."""
    query_N, key_M = state_indices(queries, keys, span, device)
    return key_M[None, :] <= query_N[:, None]


def _appended(
    state: State | None, k_BHND: Tensor, v_BHND: Tensor, mask: Tensor | None
) -> tuple[Tensor, Tensor]:
    assert state is not None and mask is None, "a graph goes on from a state, without padding"
    k_BHMD, v_BHMD, _ = appended(state, k_BHND, v_BHND, None)
    return k_BHMD, v_BHMD


def _known(state: State | None, mask: Tensor | None) -> State:
    assert state is not None and mask is None, "a graph goes on from a state, without padding"
    return state
