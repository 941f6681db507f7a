"""Rotary positions: pairs of features of a head turned by angles that grow with the position.

The product of a turned query and a turned key depends on their distance alone. That of their
features in linear attention, made of what was turned, depends on where the two stand as well.

Source: Su et al., RoFormer (2021), equation 34. As in Llama feature i is paired with feature
``i + R/2`` of the R turned ones (halves), where the paper pairs neighbours: the same but for the
order of features.

Shapes: B batch, H heads, N states, D width of one head, R features of it that are turned.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from search_spaces.settings import ModelSettings


class Rotation:
    """The turns of given positions, worked out once for all layers that use them.

    Attributes:
        settings: of the space: base of the wave lengths, and share of a head that is turned.
        positions_N: of the new positions, from 0.
    """

    def __init__(self, settings: ModelSettings, positions_N: Tensor) -> None:
        self.settings = settings
        self.positions_N = positions_N
        self._waves: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}

    def __call__(self, x_BHND: Tensor, span: int = 1) -> Tensor:
        """Queries or keys, turned; `span` states stand at each position."""
        head_dim = x_BHND.shape[-1]
        turned = self.settings.rotary_dim(head_dim)
        key = (head_dim, span)
        if key not in self._waves:
            self._waves[key] = rotary_waves(
                self.positions_N.repeat_interleave(span) if span > 1 else self.positions_N,
                rotary_rates(self.settings, turned, self.positions_N.device),
            )
        cosine, sine = self._waves[key]
        return rotated(x_BHND, cosine.to(x_BHND.dtype), sine.to(x_BHND.dtype))


def rotation_of(settings: ModelSettings, positions_N: Tensor) -> Rotation | None:
    """The rotation of these positions; None where a space's networks have none."""
    return Rotation(settings, positions_N) if settings.positions == "rotary" else None


def rotary_rates(settings: ModelSettings, turned: int, device: torch.device) -> Tensor:
    """Radians that a position turns each pair of the R turned features by, ``(R/2,)``; fp32.

    That is ``theta^(-2i/R)``, and less for waves that are stretched.

    Source: position interpolation, Chen et al. (2023), equation 4, where all are stretched alike;
    where they are not, the published code of Llama 3.1 (Grattafiori et al. 2024, section 3.4.3).
    """
    pair = torch.arange(0, turned, 2, device=device, dtype=torch.float32)
    rate = 1.0 / settings.rotary_theta ** (pair / turned)
    if settings.rotary_factor == 1.0:
        return rate
    kept: Tensor | float = 0.0
    if settings.rotary_original_length:
        turns = rate * (settings.rotary_original_length / (2 * math.pi))
        low, high = settings.rotary_low_freq_factor, settings.rotary_high_freq_factor
        kept = ((turns - low) / (high - low)).clamp(0.0, 1.0)
    return rate * (kept + (1.0 - kept) / settings.rotary_factor)


def rotary_waves(positions_N: Tensor, rate: Tensor) -> tuple[Tensor, Tensor]:
    """Cosines and sines ``(N, R)`` of positions by rates ``(R/2,)``, twice; fp32."""
    angle_NR = (positions_N.to(torch.float32)[:, None] * rate).repeat(1, 2)
    return angle_NR.cos(), angle_NR.sin()


def rotated(x_BHND: Tensor, cosine_NR: Tensor, sine_NR: Tensor) -> Tensor:
    """The leading R features turned, the others as they are."""
    turned = cosine_NR.shape[-1]
    x_BHNR = x_BHND[..., :turned]
    first, second = x_BHNR.chunk(2, dim=-1)
    out_BHNR = x_BHNR * cosine_NR + torch.cat((-second, first), dim=-1) * sine_NR
    if turned == x_BHND.shape[-1]:
        return out_BHNR
    return torch.cat((out_BHNR, x_BHND[..., turned:]), dim=-1)
