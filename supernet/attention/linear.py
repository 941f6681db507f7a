"""Linear attention: a feature map of queries and keys, then products of cost N instead of N².

Shapes: B batch, H heads, N queries, M keys, D width of one head, C features of one head, V = D + 1.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from supernet.attention.base import (
    LOW_PRECISION,
    AttentionKernel,
    State,
    check_length,
    in_full_precision,
    own_positions,
    padded_positions,
    state_positions,
    without_autocast,
)
from supernet.attention.causal_linear import (
    causal_sums,
    divided,
    later_states,
    with_ones,
)
from supernet.attention.in_place import plus
from supernet.attention.linear_features import (
    cosine_features,
    elu_features,
    floor_of,
    floors_of,
    mask_features,
    mean_weighted,
    relu_features,
    spiky_features,
)
from supernet.attention.relu_linear import (
    Attended,
    AttendedPast,
    FeatureMap,
    Kept,
    Read,
    quick_waves,
)
from supernet.attention.softmax import seen_keys
from supernet.shared import shared

MOST_PAIRED = 128
"""States of a sequence whose pairs are all multiplied in training, see `AttendedPast`."""


class Carried(NamedTuple):
    """What a linear kernel carries: its sums, and where there was padding how much.

    Attributes:
        sums: ``(B, H, C, V)``; None at the start of a sequence.
        padding: positions of it so far, ``(B,)``, by which a text's own positions are behind those
            of the batch; None where nothing was masked.
    """

    sums: Tensor | None
    padding: Tensor | None

    @classmethod
    def of(cls, state: State | None) -> Carried:
        """What `after` returned; nothing at the start."""
        sums, *padding = state or (None,)
        return cls(sums, padding[0] if padding else None)

    def positions(
        self,
        key_mask_BN: Tensor | None,
        states: int,
        span: int,
        positions_1N: Tensor | None,
        device: torch.device,
    ) -> Tensor:
        """See `own_positions`."""
        assert self.sums is None or positions_1N is not None, "where a text goes on is not known"
        return shared(own_positions, key_mask_BN, states, span, positions_1N, self.padding, device)

    def after(self, sums_BHCV: Tensor, key_mask_BN: Tensor | None, span: int) -> State:
        """The state with these sums, after new states with this mask."""
        padding_B = shared(padded_positions, key_mask_BN, span, self.padding)
        return (sums_BHCV,) if padding_B is None else (sums_BHCV, padding_B)


class MeanLinearKernel(AttentionKernel):
    """Linear attention whose weights are products of features, normalised over the keys.

    What it carries is, per head, the sum of features times values and of the features: nothing
    that grows with the sequence. Where positions matter and there was padding, see `Carried`.

    Attributes:
        max_length: positions of the longest sequence; None where positions do not matter.
        sums: adds up the past.
    """

    in_full = True
    reads_positions = True
    sums = staticmethod(causal_sums)

    def __init__(self, max_length: int | None) -> None:
        super().__init__()
        self.max_length = max_length

    @abstractmethod
    def features(self, x_BHND: Tensor, positions_BN: Tensor) -> Tensor:
        """Features of queries or keys, positive, ``(B, H, N, C)``."""

    def _check(self, states: int, span: int, *known: object) -> None:
        if self.max_length is not None and all(value is None for value in known):
            check_length(states, span, self.max_length)

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
        keys = k_BHMD.shape[2]
        self._check(keys, span, key_mask_BM)
        positions_BM = shared(state_positions, key_mask_BM, keys, span, k_BHMD.device)
        with without_autocast(q_BHND.device):
            q, k, v = in_full_precision(q_BHND, k_BHMD, v_BHMD)
            q_BHNC = self.features(q, positions_BM)
            k_BHMC = mask_features(self.features(k, positions_BM), key_mask_BM)
            return divided(q_BHNC @ (k_BHMC.mT @ with_ones(v))).to(v_BHMD.dtype)

    def causal(
        self,
        q_BHND: Tensor,
        k_BHND: Tensor,
        v_BHND: Tensor,
        *,
        key_mask_BN: Tensor | None = None,
        span: int = 1,
        state: State | None = None,
        positions_1N: Tensor | None = None,
    ) -> tuple[Tensor, State]:
        """Attend to the past; see `AttentionKernel.causal` and its `reads_positions`."""
        states = k_BHND.shape[2]
        self._check(states, span, key_mask_BN, state)
        past = Carried.of(state)
        positions_BN = past.positions(key_mask_BN, states, span, positions_1N, k_BHND.device)
        with without_autocast(q_BHND.device):
            q, k, v = in_full_precision(q_BHND, k_BHND, v_BHND)
            q_BHNC = self.features(q, positions_BN)
            k_BHNC = mask_features(self.features(k, positions_BN), key_mask_BN)
            out_BHNV, sums_BHCV = self.sums(q_BHNC, k_BHNC, with_ones(v), past.sums, span)
            out_BHND = divided(out_BHNV)
        return out_BHND.to(v_BHND.dtype), past.after(sums_BHCV, key_mask_BN, span)

    def memory(
        self, k_BHMD: Tensor, v_BHMD: Tensor, *, key_mask_BM: Tensor | None, span: int = 1
    ) -> State:
        """The sums over all keys; see `AttentionKernel.memory`."""
        keys = k_BHMD.shape[2]
        self._check(keys, span, key_mask_BM)
        positions_BM = shared(state_positions, key_mask_BM, keys, span, k_BHMD.device)
        with without_autocast(k_BHMD.device):
            k, v = in_full_precision(k_BHMD, v_BHMD)
            k_BHMC = mask_features(self.features(k, positions_BM), key_mask_BM)
            return (k_BHMC.mT @ with_ones(v),)

    def read(self, q_BHND: Tensor, memory: State, positions_1N: Tensor) -> Tensor:
        """Read the sums; see `AttentionKernel.read`."""
        with without_autocast(q_BHND.device):
            (q,) = in_full_precision(q_BHND)
            out_BHND = divided(self.features(q, positions_1N) @ memory[0])
            return out_BHND.to(q_BHND.dtype)


class ReluLinearKernel(MeanLinearKernel):
    """Linear attention with features ``ReLU + 1e-3``, with or without waves of the positions.

    Where a block's queries, keys and values come from one product, in less than fp32 and with
    gradients, they are taken as they are: see `relu_linear`.
    """

    def features(self, x_BHND: Tensor, positions_BN: Tensor) -> Tensor:
        """As wide as the head, whatever the position; twice as wide with waves."""
        features_BHNC = relu_features(x_BHND)
        if self.max_length is None:
            return features_BHNC
        return cosine_features(features_BHNC, positions_BN, self.max_length)

    def attended(self, qkv_BN3HD: Tensor, *, key_mask_BN: Tensor | None, span: int) -> Tensor:
        """As `forward`, of queries, keys and values in one tensor; ``(B, H, N, D)``."""
        states, device = qkv_BN3HD.shape[1], qkv_BN3HD.device
        self._check(states, span, key_mask_BN)
        features = self._map(
            qkv_BN3HD, lambda: shared(state_positions, key_mask_BN, states, span, device)
        )
        with without_autocast(device):
            out_BNHD: Tensor = Attended.apply(  # type: ignore[no-untyped-call]
                qkv_BN3HD, key_mask_BN, _seen(key_mask_BN), *features
            )
        return out_BNHD.transpose(1, 2)

    def attended_past(
        self,
        qkv_BN3HD: Tensor,
        *,
        key_mask_BN: Tensor | None,
        span: int,
        state: State | None,
        positions_1N: Tensor | None = None,
    ) -> tuple[Tensor, State]:
        """As `causal`, of queries, keys and values in one tensor."""
        states, device = qkv_BN3HD.shape[1], qkv_BN3HD.device
        if state is not None or states > MOST_PAIRED:
            (qkv_BN3HD,) = in_full_precision(qkv_BN3HD)
            q, k, v = (x_BNHD.transpose(1, 2) for x_BNHD in qkv_BN3HD.unbind(2))
            return self.causal(
                q,
                k,
                v,
                key_mask_BN=key_mask_BN,
                span=span,
                state=state,
                positions_1N=positions_1N,
            )
        self._check(states, span, key_mask_BN)
        later_NN = None if span == 1 else shared(later_states, states, span, device)
        past = Carried(None, None)
        features = self._map(
            qkv_BN3HD,
            lambda: past.positions(key_mask_BN, states, span, positions_1N, device),
        )
        with without_autocast(device):
            out_BNHD, sums_BHCV = AttendedPast.apply(  # type: ignore[no-untyped-call]
                qkv_BN3HD, key_mask_BN, later_NN, *features
            )
        out_BHND: Tensor = out_BNHD.transpose(1, 2)
        return out_BHND, past.after(sums_BHCV, key_mask_BN, span)

    def kept(self, kv_BM2HD: Tensor, *, key_mask_BM: Tensor | None, span: int) -> State:
        """As `memory`, of keys and values in one tensor."""
        keys, device = kv_BM2HD.shape[1], kv_BM2HD.device
        self._check(keys, span, key_mask_BM)
        features = self._map(
            kv_BM2HD, lambda: shared(state_positions, key_mask_BM, keys, span, device)
        )
        with without_autocast(device):
            kept_BHCV = Kept.apply(kv_BM2HD, key_mask_BM, _seen(key_mask_BM), *features)  # type: ignore[no-untyped-call]
        return (kept_BHCV,)

    def asked(self, q_BN1HD: Tensor, memory: State, positions_1N: Tensor) -> Tensor:
        """As `read`, of queries in a tensor like those of the others and what `kept` returned."""
        features = self._map(q_BN1HD, lambda: positions_1N)
        with without_autocast(q_BN1HD.device):
            out_BNHD: Tensor = Read.apply(q_BN1HD, memory[0], *features)  # type: ignore[no-untyped-call]
        return out_BNHD.transpose(1, 2)

    def _map(self, x: Tensor, positions: Callable[[], Tensor]) -> FeatureMap:
        """The features of what is projected; positions are worked out where they matter."""
        dtype, device = torch.float32 if x.dtype in LOW_PRECISION else x.dtype, x.device
        zero = shared(torch.zeros, (), dtype=dtype, device=device)
        if self.max_length is None:
            return FeatureMap(zero, shared(floor_of, dtype, device), None)
        waves_B1N21 = shared(quick_waves, positions(), self.max_length, dtype)
        return FeatureMap(zero, shared(floors_of, waves_B1N21), waves_B1N21)


def _seen(key_mask_BM: Tensor | None) -> Tensor | None:
    return None if key_mask_BM is None else shared(seen_keys, key_mask_BM)[0]


class CosformerKernel(ReluLinearKernel):
    """Linear attention whose weights fall off with the distance like a cosine.

    Query i and key j meet with weight ``φ(q_i)·φ(k_j) cos(θ_i - θ_j)``, ``θ_i = (π/2) i / M``,
    normalised over the keys; i counts from 1 at the first real token and M is the model's longest
    length, so neither padding nor the length of the input moves an angle. In cross-attention
    queries and keys count in their own sequences, with the same M.

    Source: Qin et al., cosFormer (2022), cos-based re-weighting. Differences: M is a constant of
    the model instead of the current length, padding is masked, and φ is ``ReLU + 1e-3`` instead of
    ReLU. With plain ReLU a query near zero has a denominator near zero, and a gradient without
    bound; with the floor the gradient by a query is at most ``1e3`` times the spread of the values,
    and a query that is negative throughout sees a mean of the values instead of nothing. The sum of
    the weights is divided by as the paper's equation has it; the 1e-6 under which its code does not
    let it fall would shrink the output where all keys are nearly M positions away.
    """

    max_length: int

    def __init__(self, max_length: int) -> None:
        """Build the kernel for sequences of up to `max_length` positions (the constant M)."""
        super().__init__(max_length)


class EluKernel(MeanLinearKernel):
    """Linear attention with ``φ = 1 + elu``, normalised over the keys.

    Source: Katharopoulos et al., Transformers are RNNs (2020), eq. 7. The sum of the weights is
    kept above 1e-12, see `DENOMINATOR_FLOOR`, where the published code adds 1e-6 to it.
    """

    def __init__(self) -> None:
        super().__init__(max_length=None)

    def features(self, x_BHND: Tensor, positions_BN: Tensor) -> Tensor:
        """As wide as the head, whatever the position."""
        return elu_features(x_BHND)


class HedgehogKernel(MeanLinearKernel):
    """Linear attention with a learned feature map that is spiky and monotonic like softmax.

    ``φ(x) = softmax([x + x M, -x - x M]) + 1e-6`` with a matrix M for each head, of queries and
    keys alike, which starts at zero; normalised over the keys.

    Source: Zhang et al., The Hedgehog & the Porcupine (2024), section 4, with the softmax over the
    features in place of the exponential. Differences: the map is written as a step away from the
    identity, so that it starts as one whatever number and width of heads are taken of it; one map
    serves queries and keys; it has no bias; and features have a floor, without which two that are
    spiky in different places have a product of zero, and so may all.
    """

    def __init__(self, width: int, head_dim: int) -> None:
        """Build the kernel.

        Args:
            width: largest H * D it is called with.
            head_dim: largest D.
        """
        super().__init__(max_length=None)
        self.map_WD = nn.Parameter(torch.zeros(width, head_dim))

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """The map is the identity again; nothing is drawn."""
        nn.init.zeros_(self.map_WD)

    def features(self, x_BHND: Tensor, positions_BN: Tensor) -> Tensor:
        """Twice as wide as the head, whatever the position."""
        _, heads, _, head_dim = x_BHND.shape
        map_HDD = self.map_WD[: heads * head_dim, :head_dim].unflatten(0, (heads, head_dim))
        return spiky_features(plus(x_BHND @ map_HDD, x_BHND))


class NormLinearKernel(AttentionKernel):
    """Linear attention with a norm on the output in place of the denominator.

    ``o = RMSNorm(φ(q) (φ(k)ᵀ v))`` with ``φ = 1 + elu``; the norm is over one head.

    Source: Qin et al., The Devil in Linear Transformer (2022), NormAttention of TransNormer.
    Differences: the sum over keys is divided by their number, which the norm would take out again
    but for its epsilon, so that epsilon means the same at every length; and each head is normalised
    by itself, so that the number of heads, which is searched, does not change the others' scale.
    """

    in_full = True
    reads_positions = True
    sums = staticmethod(causal_sums)
    EPSILON = 1e-6

    def __init__(self, max_dim: int) -> None:
        """Build the kernel with a gain for attention up to `max_dim` = H * D wide."""
        super().__init__()
        self.gain_W = nn.Parameter(torch.ones(max_dim))

    def _normed(self, out_BHND: Tensor) -> Tensor:
        _, heads, _, head_dim = out_BHND.shape
        gain_HD = self.gain_W[: heads * head_dim].view(heads, 1, head_dim)
        return F.rms_norm(out_BHND, (head_dim,), eps=self.EPSILON) * gain_HD

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
        with without_autocast(q_BHND.device):
            q, k, v = in_full_precision(q_BHND, k_BHMD, v_BHMD)
            k_BHMC = mean_weighted(elu_features(k), key_mask_BM)
            return self._normed(elu_features(q) @ (k_BHMC.mT @ v)).to(v_BHMD.dtype)

    def causal(
        self,
        q_BHND: Tensor,
        k_BHND: Tensor,
        v_BHND: Tensor,
        *,
        key_mask_BN: Tensor | None = None,
        span: int = 1,
        state: State | None = None,
        positions_1N: Tensor | None = None,
    ) -> tuple[Tensor, State]:
        """Attend to the past; the number of keys is that of the past."""
        past, states = Carried.of(state), k_BHND.shape[2]
        positions_BN = past.positions(key_mask_BN, states, span, positions_1N, k_BHND.device)
        with without_autocast(q_BHND.device):
            q, k, v = in_full_precision(q_BHND, k_BHND, v_BHND)
            k_BHNC = mask_features(elu_features(k), key_mask_BN)
            out_BHND, sums_BHCV = self.sums(elu_features(q), k_BHNC, v, past.sums, span)
            count_BN = ((positions_BN + 1) * span).clamp(min=1)
            out_BHND = self._normed(out_BHND / count_BN[:, None, :, None])
        return out_BHND.to(v_BHND.dtype), past.after(sums_BHCV, key_mask_BN, span)

    def memory(
        self, k_BHMD: Tensor, v_BHMD: Tensor, *, key_mask_BM: Tensor | None, span: int = 1
    ) -> State:
        """The mean over all keys; see `AttentionKernel.memory`."""
        with without_autocast(k_BHMD.device):
            k, v = in_full_precision(k_BHMD, v_BHMD)
            return (mean_weighted(elu_features(k), key_mask_BM).mT @ v,)

    def read(self, q_BHND: Tensor, memory: State, positions_1N: Tensor) -> Tensor:
        """Read the mean; see `AttentionKernel.read`."""
        with without_autocast(q_BHND.device):
            (q,) = in_full_precision(q_BHND)
            return self._normed(elu_features(q) @ memory[0]).to(q_BHND.dtype)
