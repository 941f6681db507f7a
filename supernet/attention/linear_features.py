"""Feature maps of linear attention, and padding among the features of keys.

Shapes: B batch, H heads, N queries, M keys, D width of one head, C features of one head.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from supernet.attention.in_place import plus
from supernet.shared import shared

FEATURE_FLOOR = 1e-3
SPIKE_FLOOR = 1e-6
"""A millionth of the largest feature: 4,096 keys that do not match weigh less than a hundredth of
one that does, and the sum of weights stays above `DENOMINATOR_FLOOR`."""
DENOMINATOR_FLOOR = 1e-12
"""Least sum of weights that is divided by. The equations have none; the published code of cosFormer
has 1e-6, which for a head of 8 bites where a single key lies M / 8 positions and more from a query
that sees nothing else. The least sum with a real key is ``1e-6 D sin(π / 2M)``, so this one only
keeps queries without any real key, whose sums are 0, from 0 / 0."""


def relu_features(x: Tensor) -> Tensor:
    """``ReLU(x) + 1e-3``: not negative, and never zero throughout."""
    return plus(x.relu(), FEATURE_FLOOR)


def elu_features(x: Tensor) -> Tensor:
    """``1 + elu(x)``: positive and smooth."""
    return plus(F.elu(x), 1.0)


def spiky_features(x: Tensor) -> Tensor:
    """``softmax([x, -x]) + 1e-6``, twice as wide: positive, and of sum 1 but for the floor."""
    return plus(torch.cat((x, -x), dim=-1).softmax(dim=-1), SPIKE_FLOOR)


def cosine_features(features_BHND: Tensor, positions_BN: Tensor, max_length: int) -> Tensor:
    """Features whose inner products carry ``cos(θ_i - θ_j)``, twice as wide.

    Args:
        features_BHND: features without positions, not negative.
        positions_BN: positions from 0, ``(B, N)`` or ``(1, N)``. Positions outside the model, which
            only padding has, are moved to its ends.
        max_length: the constant M in ``θ_i = (π/2) (position + 1) / M``.

    Returns:
        ``(B, H, N, 2D)``: the features times sine, then times cosine.
    """
    waves_B1N21 = shared(_waves, positions_BN, max_length, features_BHND.dtype)
    return (features_BHND[:, :, :, None, :] * waves_B1N21).flatten(3)


def _waves(positions_BN: Tensor, max_length: int, dtype: torch.dtype) -> Tensor:
    """Sine and cosine of the angle of each position, ``(B, 1, N, 2, 1)``."""
    steps_BN = (positions_BN + 1).clamp(1, max_length).to(dtype)
    angle_BN = steps_BN * (math.pi / 2 / max_length)
    return torch.stack((angle_BN.sin(), angle_BN.cos()), dim=-1)[:, None, :, :, None]


def floors_of(waves_B1N21: Tensor) -> Tensor:
    """What a feature at its floor is, times the waves."""
    return FEATURE_FLOOR * waves_B1N21


def floor_of(dtype: torch.dtype, device: torch.device) -> Tensor:
    """The floor of features without waves, ``(1,)``: a number would not raise a sum's precision."""
    return torch.full((1,), FEATURE_FLOOR, dtype=dtype, device=device)


def mask_features(k_BHMC: Tensor, key_mask_BM: Tensor | None) -> Tensor:
    """Key features with zeros at padding, which takes it out of every sum over keys."""
    if key_mask_BM is None:
        return k_BHMC
    return k_BHMC.masked_fill(shared(_padding, key_mask_BM), 0.0)


def _padding(key_mask_BM: Tensor) -> Tensor:
    return ~key_mask_BM[:, None, :, None]


def mean_weighted(k_BHMC: Tensor, key_mask_BM: Tensor | None) -> Tensor:
    """Masked key features, divided by the number of real keys."""
    if key_mask_BM is None:
        return k_BHMC / k_BHMC.shape[2]
    count_B = key_mask_BM.sum(dim=1).clamp(min=1)
    return mask_features(k_BHMC, key_mask_BM) / count_B[:, None, None, None]
