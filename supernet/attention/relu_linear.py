"""Linear attention with ReLU features as one step of a gradient's computation.

The same as `MeanLinearKernel` computes by itself, up to rounding, in half the operations: for
states of less than fp32 whose gradient is asked for. A card then waits for the host to ask for
operations, more than it computes. Queries and keys pass the feature map together, values and
gradients are written where the next product reads them, padding is left out with the values, and
what lies between the precisions is cast on the way.

In fp32 nothing has to be cast, and memory decides: there autograd's own way is used.

Source: Qin et al., cosFormer (2022), and Choromanski et al., Rethinking Attention with Performers
(2021), as in `CosformerKernel` and `PerformerKernel`. The gradient by the sum of the weights is
``-(g · o) / sum`` of the rounded output o, as in Dao et al., FlashAttention (2022), appendix B.2.

Shapes: B batch, H heads, N queries, M keys, D width of one head, C features of one head, V = D + 1,
P what is projected (queries, keys, values), b batch times heads.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import wraps
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from supernet.attention.base import without_autocast
from supernet.attention.linear_features import DENOMINATOR_FLOOR
from supernet.shared import shared


def angle_shifts(max_length: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """What the angle of position 0 is, and that of which the sine is its cosine: ``(2, 1)``."""
    first = math.pi / 2 / max_length
    ends = first, first + math.pi / 2
    return torch.linspace(*ends, 2, dtype=dtype, device=device)[:, None]


def quick_waves(positions_BN: Tensor, max_length: int, dtype: torch.dtype) -> Tensor:
    """As the waves of `cosine_features`, in half the operations: cosines are sines, too."""
    shifts_21 = shared(angle_shifts, max_length, dtype, positions_BN.device)
    within_B1N11 = positions_BN.clamp(0, max_length - 1)[:, None, :, None, None]
    return shifts_21.add(within_B1N11, alpha=math.pi / 2 / max_length).sin_()


class FeatureMap(NamedTuple):
    """``(ReLU(x) + floor) * waves``, see `relu_features` and `cosine_features`.

    Attributes:
        zero: a single number, in the precision of the features.
        floor: times the waves.
        waves: of the positions, ``(B, 1, N, 2, 1)`` or with one row for all samples; None for
            features that know no positions.
    """

    zero: Tensor
    floor: Tensor
    waves: Tensor | None


def in_their_precision(step: Callable[..., Any]) -> Callable[..., Any]:
    """A backward step without autocast, within which it may be asked for."""

    @wraps(step)
    def taken(ctx: Any, *gradients: Any) -> Any:
        given = [one for one in gradients if one is not None] or ctx.saved_tensors
        with without_autocast(given[0].device):
            return step(ctx, *gradients)

    return taken


class Attended(torch.autograd.Function):
    """Every state sees every real state."""

    @staticmethod
    def forward(
        ctx: Any,
        qkv_BN3HD: Tensor,
        mask_BN: Tensor | None,
        seen_BN: Tensor | None,
        zero: Tensor,
        floor: Tensor,
        waves: Tensor | None,
    ) -> Tensor:
        """Queries, keys and values → ``(B, N, H, D)``.

        The mask is True at real states. Seen are these, and all where none is real: with values of
        0, so that the sum of the weights is not 0 as well.
        """
        features = FeatureMap(zero, floor, waves)
        maps_2bNC = _featured(qkv_BN3HD[:, :, :2], features)
        values_bNV = _with_ones(qkv_BN3HD[:, :, 2], mask_BN, seen_BN, zero)
        kept_bCV = torch.bmm(maps_2bNC[1].mT, values_bNV)
        sums_bNV = torch.bmm(maps_2bNC[0], kept_bCV)
        out_BNHD = _divided(sums_bNV, qkv_BN3HD)
        ctx.save_for_backward(
            qkv_BN3HD, *features, mask_BN, maps_2bNC, values_bNV, kept_bCV, sums_bNV, out_BNHD
        )
        return out_BNHD

    @staticmethod
    @in_their_precision
    @once_differentiable
    def backward(ctx: Any, grad_BNHD: Tensor) -> tuple[Tensor | None, ...]:
        """The gradient by queries, keys and values."""
        qkv_BN3HD, zero, floor, waves, mask_BN, maps_2bNC, values_bNV, kept_bCV, *sums = (
            ctx.saved_tensors
        )
        by_sums_bNV = _by_sums(zero, grad_BNHD, *sums)
        by_kept_bCV = torch.bmm(maps_2bNC[0].mT, by_sums_bNV)
        by_maps_2bNC = torch.empty_like(maps_2bNC)
        torch.bmm(by_sums_bNV, kept_bCV.mT, out=by_maps_2bNC[0])
        torch.bmm(values_bNV, by_kept_bCV.mT, out=by_maps_2bNC[1])
        by_values_bND = torch.bmm(maps_2bNC[1], by_kept_bCV[:, :, :-1])
        by_qkv_BN3HD = _by_features(by_maps_2bNC, qkv_BN3HD, FeatureMap(zero, floor, waves))
        _put_values(by_values_bND, mask_BN, by_qkv_BN3HD[:, :, 2])
        return by_qkv_BN3HD, None, None, None, None, None


class AttendedPast(torch.autograd.Function):
    """Every state sees the real ones up to its own position, by products of all pairs."""

    @staticmethod
    def forward(
        ctx: Any,
        qkv_BN3HD: Tensor,
        mask_BN: Tensor | None,
        later_NN: Tensor | None,
        zero: Tensor,
        floor: Tensor,
        waves: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """Queries, keys and values → ``(B, N, H, D)``, and the sums ``(B, H, C, V)`` over all.

        `later_NN` is True at states of a later position; None for one state per position.
        """
        (batch, _, _, heads, _), features = qkv_BN3HD.shape, FeatureMap(zero, floor, waves)
        maps_2bNC = _featured(qkv_BN3HD[:, :, :2], features)
        values_bNV = _with_ones(qkv_BN3HD[:, :, 2], mask_BN, mask_BN, zero)
        weights_bNN = _past_only(torch.bmm(maps_2bNC[0], maps_2bNC[1].mT), later_NN)
        sums_bNV = torch.bmm(weights_bNN, values_bNV)
        if mask_BN is not None:  # before the first real state nothing is seen
            sums_bNV[:, :, -1:].clamp_(min=DENOMINATOR_FLOOR)
        out_BNHD = _divided(sums_bNV, qkv_BN3HD)
        kept_bCV = torch.bmm(maps_2bNC[1].mT, values_bNV)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(
            *(qkv_BN3HD, *features, mask_BN, later_NN),
            *(maps_2bNC, values_bNV, weights_bNN, sums_bNV, out_BNHD),
        )
        return out_BNHD, kept_bCV.view(batch, heads, *kept_bCV.shape[1:])

    @staticmethod
    @in_their_precision
    @once_differentiable
    def backward(
        ctx: Any, grad_BNHD: Tensor | None, by_kept_BHCV: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        """The gradient by queries, keys and values."""
        qkv_BN3HD, zero, floor, waves, mask_BN, later_NN, *made = ctx.saved_tensors
        maps_2bNC, values_bNV, weights_bNN, *sums = made
        grad_BNHD = torch.zeros_like(sums[1]) if grad_BNHD is None else grad_BNHD
        by_sums_bNV = _by_sums(zero, grad_BNHD, *sums)
        by_weights_bNN = _past_only(torch.bmm(by_sums_bNV, values_bNV.mT), later_NN)
        by_maps_2bNC = torch.empty_like(maps_2bNC)
        torch.bmm(by_weights_bNN, maps_2bNC[1], out=by_maps_2bNC[0])
        torch.bmm(by_weights_bNN.mT, maps_2bNC[0], out=by_maps_2bNC[1])
        by_values_bND = torch.bmm(weights_bNN.mT, by_sums_bNV[:, :, :-1])
        if by_kept_BHCV is not None:
            by_kept_bCV = by_kept_BHCV.flatten(0, 1)
            by_maps_2bNC[1].baddbmm_(values_bNV, by_kept_bCV.mT)
            by_values_bND.baddbmm_(maps_2bNC[1], by_kept_bCV[:, :, :-1])
        by_qkv_BN3HD = _by_features(by_maps_2bNC, qkv_BN3HD, FeatureMap(zero, floor, waves))
        _put_values(by_values_bND, mask_BN, by_qkv_BN3HD[:, :, 2])
        return by_qkv_BN3HD, None, None, None, None, None


class Kept(torch.autograd.Function):
    """The sums over all real keys."""

    @staticmethod
    def forward(
        ctx: Any,
        kv_BM2HD: Tensor,
        mask_BM: Tensor | None,
        seen_BM: Tensor | None,
        zero: Tensor,
        floor: Tensor,
        waves: Tensor | None,
    ) -> Tensor:
        """Keys and values → ``(B, H, C, V)``; masks as of `Attended`."""
        (batch, _, _, heads, _), features = kv_BM2HD.shape, FeatureMap(zero, floor, waves)
        (maps_bMC,) = _featured(kv_BM2HD[:, :, :1], features)
        values_bMV = _with_ones(kv_BM2HD[:, :, 1], mask_BM, seen_BM, zero)
        ctx.save_for_backward(kv_BM2HD, *features, mask_BM, maps_bMC, values_bMV)
        kept_bCV = torch.bmm(maps_bMC.mT, values_bMV)
        return kept_bCV.view(batch, heads, *kept_bCV.shape[1:])

    @staticmethod
    @in_their_precision
    @once_differentiable
    def backward(ctx: Any, by_kept_BHCV: Tensor) -> tuple[Tensor | None, ...]:
        """The gradient by keys and values."""
        kv_BM2HD, zero, floor, waves, mask_BM, maps_bMC, values_bMV = ctx.saved_tensors
        by_kept_bCV = by_kept_BHCV.flatten(0, 1)
        by_maps_bMC = torch.bmm(values_bMV, by_kept_bCV.mT)
        by_values_bMD = torch.bmm(maps_bMC, by_kept_bCV[:, :, :-1])
        by_kv_BM2HD = _by_features(by_maps_bMC[None], kv_BM2HD, FeatureMap(zero, floor, waves))
        _put_values(by_values_bMD, mask_BM, by_kv_BM2HD[:, :, 1])
        return by_kv_BM2HD, None, None, None, None, None


class Read(torch.autograd.Function):
    """Queries see what `Kept` gave."""

    @staticmethod
    def forward(
        ctx: Any,
        q_BN1HD: Tensor,
        kept_BHCV: Tensor,
        zero: Tensor,
        floor: Tensor,
        waves: Tensor | None,
    ) -> Tensor:
        """Queries and sums → ``(B, N, H, D)``."""
        features = FeatureMap(zero, floor, waves)
        (maps_bNC,) = _featured(q_BN1HD, features)
        sums_bNV = torch.bmm(maps_bNC, kept_BHCV.flatten(0, 1))
        out_BNHD = _divided(sums_bNV, q_BN1HD)
        ctx.save_for_backward(q_BN1HD, *features, kept_BHCV, maps_bNC, sums_bNV, out_BNHD)
        return out_BNHD

    @staticmethod
    @in_their_precision
    @once_differentiable
    def backward(ctx: Any, grad_BNHD: Tensor) -> tuple[Tensor | None, ...]:
        """The gradients by queries and sums."""
        q_BN1HD, zero, floor, waves, kept_BHCV, maps_bNC, *sums = ctx.saved_tensors
        by_sums_bNV = _by_sums(zero, grad_BNHD, *sums)
        by_kept_bCV = torch.bmm(maps_bNC.mT, by_sums_bNV)
        by_maps_bNC = torch.bmm(by_sums_bNV, kept_BHCV.flatten(0, 1).mT)
        by_q_BN1HD = _by_features(by_maps_bNC[None], q_BN1HD, FeatureMap(zero, floor, waves))
        return by_q_BN1HD, by_kept_bCV.view_as(kept_BHCV), None, None, None


def _featured(x_BNPHD: Tensor, features: FeatureMap) -> Tensor:
    """Features of queries and keys, or of one of them: ``(P, b, N, C)``."""
    batch, states, parts, heads, width = x_BNPHD.shape
    _, floor, waves = features
    x_PBHND = x_BNPHD.relu().permute(2, 0, 3, 1, 4)
    if waves is None:
        out = floor.new_empty(parts, batch, heads, states, width)
        torch.add(x_PBHND, floor, out=out)
    else:
        out = floor.new_empty(parts, batch, heads, states, 2, width)
        torch.addcmul(floor, x_PBHND[..., None, :], waves, out=out)
    return out.view(parts, batch * heads, states, -1)


def _by_features(by_maps_PbNC: Tensor, x_BNPHD: Tensor, features: FeatureMap) -> Tensor:
    """The gradient by what was projected, so far of what has features, the first ones."""
    batch, states, _, heads, width = x_BNPHD.shape
    by_PBHND = by_maps_PbNC.view(-1, batch, heads, states, by_maps_PbNC.shape[-1])
    if features.waves is not None:
        by_sine, by_cosine = by_PBHND.unflatten(-1, (2, width)).unbind(-2)
        sine, cosine = features.waves.unbind(-2)
        by_PBHND = (by_sine * sine).addcmul_(by_cosine, cosine)
    found_BNPHD = x_BNPHD.new_empty(x_BNPHD.shape)
    x_PBHND, into_PBHND = (
        x[:, :, : len(by_PBHND)].permute(2, 0, 3, 1, 4) for x in (x_BNPHD, found_BNPHD)
    )
    torch.ops.aten.threshold_backward.grad_input(by_PBHND, x_PBHND, 0, grad_input=into_PBHND)
    return found_BNPHD


def _with_ones(
    v_BMHD: Tensor, mask_BM: Tensor | None, seen_BM: Tensor | None, zero: Tensor
) -> Tensor:
    """As `causal_linear.with_ones`, with values of 0 at padding and ones at what is seen.

    Returns:
        ``(b, M, V)`` in the precision of `zero`.
    """
    batch, keys, heads, width = v_BMHD.shape
    out_BHMV = zero.new_empty(batch, heads, keys, width + 1)
    values_BHMD, ones_BHM1 = out_BHMV.split((width, 1), dim=-1)
    if mask_BM is None or seen_BM is None:
        values_BHMD.copy_(v_BMHD.transpose(1, 2))
        ones_BHM1.fill_(1.0)
    else:
        torch.mul(v_BMHD.transpose(1, 2), mask_BM[:, None, :, None], out=values_BHMD)
        ones_BHM1.copy_(seen_BM[:, None, :, None])
    return out_BHMV.flatten(0, 1)


def _put_values(by_values_bMD: Tensor, mask_BM: Tensor | None, into_BMHD: Tensor) -> None:
    """Write the gradient by values where it belongs, with zeros at padding."""
    into_BHMD = into_BMHD.transpose(1, 2)
    by_values_BHMD = by_values_bMD.view(into_BHMD.shape)
    if mask_BM is None:
        into_BHMD.copy_(by_values_BHMD)
    else:
        torch.mul(by_values_BHMD, mask_BM[:, None, :, None], out=into_BHMD)


def _divided(sums_bNV: Tensor, like_BNPHD: Tensor) -> Tensor:
    """The sums of weighted values, divided by those of the weights, which are the last column.

    Returns:
        ``(B, N, H, D)`` in the precision of what was projected.
    """
    batch, states, _, heads, width = like_BNPHD.shape
    out_BNHD = like_BNPHD.new_empty(batch, states, heads, width)
    values_BHND, weights_BHN1 = sums_bNV.unflatten(0, (batch, heads)).split((width, 1), dim=-1)
    torch.div(values_BHND, weights_BHN1, out=out_BNHD.transpose(1, 2))
    return out_BNHD


def _by_sums(zero: Tensor, grad_BNHD: Tensor, sums_bNV: Tensor, out_BNHD: Tensor) -> Tensor:
    """The gradient by what `_divided` was given, ``(b, N, V)``."""
    batch, _, heads, width = out_BNHD.shape
    found_bNV = torch.empty_like(sums_bNV)
    weights_BHN1 = sums_bNV.unflatten(0, (batch, heads))[..., -1:]
    by_values, by_weights = found_bNV.unflatten(0, (batch, heads)).split((width, 1), dim=-1)
    torch.div(grad_BNHD.transpose(1, 2), weights_BHN1, out=by_values)
    less_BHND = torch.addcmul(zero, by_values, out_BNHD.transpose(1, 2), value=-1)
    torch.sum(less_BHND, dim=-1, keepdim=True, out=by_weights)
    return found_bNV


def _past_only(weights_bNN: Tensor, later_NN: Tensor | None) -> Tensor:
    """Weights, in place, or their gradient, without those of keys at a later position."""
    return weights_bNN.tril_() if later_NN is None else weights_bNN.masked_fill_(later_NN, 0.0)
