"""Linear attention: sums over the keys serve all queries."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from supernet.export.template.attention import (
    KERNELS,
    Attention,
    Carried,
    Settings,
    Sizes,
    in_full,
    past_mask,
)


def causal_sums(
    q: Tensor, k: Tensor, v: Tensor, past: Tensor | None, together: int
) -> tuple[Tensor, Tensor]:
    """Products of queries with the sum of ``k v^T`` over their past, and that sum at the end.

    Features q and k are ``(B, H, N, C)``, values v ``(B, H, N, V)``. Inside of a chunk queries meet
    keys; all chunks before it are one matrix, so the cost grows with the length alone.
    """
    chunk = max(1, 64 // together) * together
    sums = q.new_zeros(*q.shape[:2], q.shape[3], v.shape[3]) if past is None else past
    parts = []
    for qs, ks, vs in zip(q.split(chunk, 2), k.split(chunk, 2), v.split(chunk, 2), strict=True):
        weights = (qs @ ks.mT).masked_fill(~past_mask(qs, ks, together), 0.0)
        parts.append(weights @ vs + qs @ sums)
        sums = sums + ks.mT @ vs
    return torch.cat(parts, dim=2), sums


def with_ones(v: Tensor) -> Tensor:
    """Values with a last column of ones, in which the sum of the weights comes out."""
    return F.pad(v, (0, 1), value=1.0)


def divided(sums: Tensor) -> Tensor:
    """Sums of weighted values, divided by the sum of the weights."""
    return sums[..., :-1] / sums[..., -1:].clamp(min=1e-12)


class LinearAttention(Attention):
    """Weights are products of features, so that sums over the keys serve all queries.

    Sums are carried and read in fp32 at least, whatever the network is in.
    """

    def features(self, x: Tensor, positions: Tensor) -> Tensor:
        """``ReLU + 1e-3``: never zero throughout."""
        return x.relu() + 1e-3

    def forward(self, x: Tensor, real: Tensor | None) -> Tensor:
        """``(B, N, D)`` -> ``(B, N, D)``, all positions seeing all; `real` is False at padding."""
        positions = torch.arange(x.shape[1], device=x.device)
        q, k, v = map(in_full, self.project(x))
        q, k = self.features(q, positions), self.features(k, positions)
        if real is not None:
            k = k.masked_fill(~real[:, None, :, None], 0.0)
        return self.merge(divided(q @ (k.mT @ with_ones(v))).to(x.dtype))

    def causal(self, x: Tensor, past: Carried | None, positions: Tensor) -> tuple[Tensor, Carried]:
        """``(B, N, D)`` -> ``(B, N, D)``, seeing the past, of which one sum is carried."""
        q, k, v = map(in_full, self.project(x, positions))
        q, k = self.features(q, positions), self.features(k, positions)
        before = None if past is None else past[0]
        sums, after = causal_sums(q, k, with_ones(v), before, self.span)
        return self.merge(divided(sums).to(x.dtype)), (after,)

    def memory(self, x: Tensor, real: Tensor, positions: Tensor) -> Carried:
        """The sum over a source ``(B, M, D)``, whose size does not depend on its length."""
        k, v = (in_full(self.split(layer(x))) for layer in (self.key, self.value))
        k = self.features(k, positions).masked_fill(~real[:, None, :, None], 0.0)
        return (k.mT @ with_ones(v),)

    def read(self, x: Tensor, memory: Carried, positions: Tensor) -> Tensor:
        """``(B, N, D)`` -> ``(B, N, D)``, seeing a source."""
        q = self.features(in_full(self.split(self.query(x))), positions)
        return self.merge(divided(q @ memory[0]).to(x.dtype))


class CosformerAttention(LinearAttention):
    """Linear attention whose weights fall off with the distance like a cosine (cosFormer, 2022)."""

    def __init__(self, model: Settings, sizes: Sizes) -> None:
        super().__init__(model, sizes)
        self.max_length = model["max_length"]

    def features(self, x: Tensor, positions: Tensor) -> Tensor:
        """Times sine, then times cosine of the position's angle: ``(B, H, N, 2 * W)``."""
        angle = ((positions + 1) * (math.pi / 2 / self.max_length))[:, None]
        x = x.relu() + 1e-3
        sine, cosine = angle.sin().to(x.dtype), angle.cos().to(x.dtype)
        return torch.cat((x * sine, x * cosine), dim=-1)


class EluAttention(LinearAttention):
    """Linear attention whose features are ``1 + elu`` (Katharopoulos et al., 2020)."""

    rotates = True

    def features(self, x: Tensor, positions: Tensor) -> Tensor:
        """Positive and smooth, as wide as the head."""
        return F.elu(x) + 1.0


class HedgehogAttention(LinearAttention):
    """Linear attention with learned features that are spiky like a softmax (Hedgehog, 2024)."""

    rotates = True

    def __init__(self, model: Settings, sizes: Sizes) -> None:
        super().__init__(model, sizes)
        self.map = nn.Parameter(torch.zeros(self.heads * self.head_width, self.head_width))

    def features(self, x: Tensor, positions: Tensor) -> Tensor:
        """A softmax over features and their opposites: ``(B, H, N, 2 * W)``."""
        x = x + x @ self.map.to(x.dtype).unflatten(0, (self.heads, self.head_width))
        return torch.cat((x, -x), dim=-1).softmax(dim=-1) + 1e-6


class NormLinearAttention(Attention):
    """Linear attention with a norm in place of the denominator (TransNormer, 2022).

    Sums are in fp32 at least, as those of `LinearAttention`.
    """

    def __init__(self, model: Settings, sizes: Sizes) -> None:
        super().__init__(model, sizes)
        self.gain = nn.Parameter(torch.ones(self.heads * self.head_width))

    def normed(self, x: Tensor) -> Tensor:
        """Each head ``(B, H, N, W)`` by itself."""
        gain = self.gain.view(self.heads, 1, self.head_width)
        return F.rms_norm(x, (self.head_width,), eps=1e-6) * gain

    def forward(self, x: Tensor, real: Tensor | None) -> Tensor:
        """``(B, N, D)`` -> ``(B, N, D)``, all positions seeing all; `real` is False at padding."""
        q, k, v = map(in_full, self.project(x))
        q, k = F.elu(q) + 1.0, F.elu(k) + 1.0
        if real is None:
            k = k / k.shape[2]
        else:
            count = real.sum(dim=1).clamp(min=1)[:, None, None, None]
            k = k.masked_fill(~real[:, None, :, None], 0.0) / count
        return self.merge(self.normed(q @ (k.mT @ v)).to(x.dtype))

    def causal(self, x: Tensor, past: Carried | None, positions: Tensor) -> tuple[Tensor, Carried]:
        """``(B, N, D)`` -> ``(B, N, D)``, seeing the past, of which one sum is carried."""
        q, k, v = map(in_full, self.project(x))
        before = None if past is None else past[0]
        sums, after = causal_sums(F.elu(q) + 1.0, F.elu(k) + 1.0, v, before, self.span)
        return self.merge(self.normed(sums / (positions + 1)[:, None]).to(x.dtype)), (after,)

    def memory(self, x: Tensor, real: Tensor, positions: Tensor) -> Carried:
        """The mean over a source ``(B, M, D)``."""
        k, v = (in_full(self.split(layer(x))) for layer in (self.key, self.value))
        count = real.sum(dim=1).clamp(min=1)[:, None, None, None]
        k = (F.elu(k) + 1.0).masked_fill(~real[:, None, :, None], 0.0) / count
        return (k.mT @ v,)

    def read(self, x: Tensor, memory: Carried, positions: Tensor) -> Tensor:
        """``(B, N, D)`` -> ``(B, N, D)``, seeing a source."""
        q = F.elu(in_full(self.split(self.query(x)))) + 1.0
        return self.merge(self.normed(q @ memory[0]).to(x.dtype))


KERNELS |= {
    "performer": LinearAttention,
    "cosformer": CosformerAttention,
    "elu": EluAttention,
    "hedgehog": HedgehogAttention,
    "norm": NormLinearAttention,
}
