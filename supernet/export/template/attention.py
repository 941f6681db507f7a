"""Attention: projections, and scaled dot products with and without distances."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Carried = tuple[Tensor, ...]  # what attention remembers of earlier positions, or of a source
Settings = dict[str, Any]  # the table "model" of architecture.json
KERNELS: dict[str, type[Attention]] = {}  # by name; each class below adds itself


def kernel_name(model: Settings, kind: str, cross: bool = False) -> str:
    """What a layer of that kind computes; between source and target there are no distances."""
    base, _, variant = kind.partition(":")  # linear, or linear:elu, or window:64
    if base == "softmax":
        return "relative" if model["relative_positions"] and not cross else "softmax"
    if base == "window":
        return "window"
    return variant or model[f"{base}_kernel"]


@dataclass
class Sizes:
    """Sizes of one attention.

    `width` of what asks and `key_width` of what is looked at, heads of queries and of keys and
    values, states that stand at one position, positions that a window sees on a side, and whether
    another sequence is looked at.
    """

    width: int
    key_width: int
    heads: int
    kv_heads: int
    span: int = 1
    window: int = 0
    cross: bool = False


class Attention(nn.Module):
    """Queries, keys, values and output of all heads; subclasses attend.

    `rotates` says whether rotary positions turn queries and keys, `takes_groups` whether a head of
    keys and values stays one head for a group of queries' heads until they meet.
    """

    rotates: ClassVar[bool] = False
    takes_groups: ClassVar[bool] = False

    def __init__(self, model: Settings, sizes: Sizes) -> None:
        super().__init__()
        heads, self.span = sizes.heads, sizes.span
        self.heads, self.kv_heads = heads, sizes.kv_heads
        self.head_width = model["qkv_dim"] // heads if "qkv_dim" in model else model["head_dim"]
        inner, kv_inner = heads * self.head_width, sizes.kv_heads * self.head_width
        bias = model["qkv_bias"]
        self.query = nn.Linear(sizes.width, inner, bias)
        self.key = nn.Linear(sizes.key_width, kv_inner, bias)
        self.value = nn.Linear(sizes.key_width, kv_inner, bias)
        self.output = nn.Linear(inner, sizes.width, model["output_bias"])
        self.normed_heads = model["qk_norm"] and not sizes.cross
        if self.normed_heads:
            self.query_norm = nn.RMSNorm(self.head_width, model["norm_eps"])
            self.key_norm = nn.RMSNorm(self.head_width, model["norm_eps"])
        share = model["rotary_share"] if model["positions"] == "rotary" and self.rotates else 0.0
        self.turned, self.model = int(self.head_width * share) // 2 * 2, model

    def split(self, x: Tensor) -> Tensor:
        """``(B, N, H * W)`` -> ``(B, H, N, W)``."""
        return x.unflatten(-1, (-1, self.head_width)).transpose(1, 2)

    def merge(self, x: Tensor) -> Tensor:
        """``(B, H, N, W)`` -> ``(B, N, D)``."""
        return self.output(x.transpose(1, 2).flatten(2))

    def project(self, x: Tensor, positions: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values of ``(B, N, D)``, each ``(B, H, N, W)``.

        `positions` ``(N,)`` are those of the states; None counts them from 0.
        """
        q, k, v = self.split(self.query(x)), self.split(self.key(x)), self.split(self.value(x))
        if self.normed_heads:
            q, k = self.query_norm(q), self.key_norm(k)
        if self.turned:
            if positions is None:
                positions = torch.arange(x.shape[1], device=x.device) // self.span
            q, k = (turned(part, positions, self.turned, self.model) for part in (q, k))
        if not self.takes_groups:
            k, v = repeated(k, self.heads), repeated(v, self.heads)
        return q, k, v


def turned(x: Tensor, positions: Tensor, width: int, model: Settings) -> Tensor:
    """The first features of each head turned by angles that grow with the position (RoPE).

    Feature i is paired with feature ``i + width / 2``. Slow pairs turn even slower where the waves
    are stretched for texts that are longer than those of the first training.
    """
    pair = torch.arange(0, width, 2, device=x.device, dtype=torch.float32)
    rate = 1.0 / model["rotary_theta"] ** (pair / width)
    low, high = model["rotary_low_freq_factor"], model["rotary_high_freq_factor"]
    turns = rate * (model["rotary_original_length"] / (2 * math.pi))
    kept = ((turns - low) / (high - low)).clamp(0.0, 1.0)
    rate = rate * (kept + (1.0 - kept) / model["rotary_factor"])
    angle = positions.to(torch.float32)[:, None] * rate
    cosine, sine = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    first, second, rest = x.split((width // 2, width // 2, x.shape[-1] - width), dim=-1)
    return torch.cat((first * cosine - second * sine, second * cosine + first * sine, rest), dim=-1)


def in_full(x: Tensor) -> Tensor:
    """At least fp32: sums over a long past lose too much in less."""
    return x if x.dtype == torch.float64 else x.float()


def repeated(x: Tensor, heads: int) -> Tensor:
    """Keys or values, each head once for every head of queries that it serves."""
    return x if x.shape[1] == heads else x.repeat_interleave(heads // x.shape[1], dim=1)


def attended(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    """Scaled dot products; heads of keys and values may serve groups of queries' heads."""
    k, v = repeated(k, q.shape[1]), repeated(v, q.shape[1])
    return F.scaled_dot_product_attention(q, k, v, mask)


def with_past(past: Carried | None, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Keys and values of the past, and the new ones behind them."""
    if past is None:
        return k, v
    return torch.cat((past[0], k), dim=2), torch.cat((past[1], v), dim=2)


def past_mask(q: Tensor, k: Tensor, together: int = 1) -> Tensor:
    """True where a key stands no later than a query, ``(N, M)``; queries are the last keys."""
    position = torch.arange(k.shape[2], device=k.device) // together
    return position[None, :] <= position[k.shape[2] - q.shape[2] :, None]


class SoftmaxAttention(Attention):
    """Scaled dot products."""

    rotates = True
    takes_groups = True

    def forward(self, x: Tensor, real: Tensor | None) -> Tensor:
        """``(B, N, D)`` -> ``(B, N, D)``, all positions seeing all; `real` is False at padding."""
        q, k, v = self.project(x)
        mask = None if real is None else real[:, None, None, :]
        return self.merge(attended(q, k, v, mask))

    def causal(self, x: Tensor, past: Carried | None, positions: Tensor) -> tuple[Tensor, Carried]:
        """``(B, N, D)`` -> ``(B, N, D)``, seeing the past: all keys and values are carried."""
        q, k, v = self.project(x, positions)
        k, v = with_past(past, k, v)
        mask = past_mask(q, k, self.span)
        return self.merge(attended(q, k, v, mask)), (k, v)

    def memory(self, x: Tensor, real: Tensor, positions: Tensor) -> Carried:
        """Keys and values of a source ``(B, M, D)``."""
        return self.split(self.key(x)), self.split(self.value(x)), real

    def read(self, x: Tensor, memory: Carried, positions: Tensor) -> Tensor:
        """``(B, N, D)`` -> ``(B, N, D)``, seeing a source."""
        k, v, real = memory
        q, mask = self.split(self.query(x)), real[:, None, None, :]
        return self.merge(attended(q, k, v, mask))


class RelativeAttention(Attention):
    """Scaled dot products with a learned key for each distance (Shaw et al., 2018)."""

    takes_groups = True

    def __init__(self, model: Settings, sizes: Sizes) -> None:
        super().__init__(model, sizes)
        self.farthest = model["relative_positions"]
        rows = 2 * self.farthest + 1
        self.relative_keys = nn.Parameter(torch.zeros(rows, self.heads * self.head_width))

    def distance_logits(self, q: Tensor, keys: int) -> Tensor:
        """``(B, H, N, M)``: what each query says to the distance of each key."""
        table = self.relative_keys.view(-1, self.heads, self.head_width).permute(1, 2, 0)
        logits = (q * self.head_width**-0.5) @ table  # (B, H, N, rows of the table)
        position = torch.arange(keys, device=q.device)
        distance = position[None, :] - position[keys - q.shape[2] :, None]  # (N, M)
        row = distance.clamp(-self.farthest, self.farthest) + self.farthest
        return logits.gather(-1, row.expand(*logits.shape[:2], -1, -1))

    def forward(self, x: Tensor, real: Tensor | None) -> Tensor:
        """``(B, N, D)`` -> ``(B, N, D)``, all positions seeing all; `real` is False at padding."""
        q, k, v = self.project(x)
        bias = self.distance_logits(q, k.shape[2])
        if real is not None:
            bias = bias.masked_fill(~real[:, None, None, :], -torch.inf)
        return self.merge(attended(q, k, v, bias))

    def causal(self, x: Tensor, past: Carried | None, positions: Tensor) -> tuple[Tensor, Carried]:
        """``(B, N, D)`` -> ``(B, N, D)``, seeing the past: all keys and values are carried."""
        q, k, v = self.project(x, positions)
        k, v = with_past(past, k, v)
        bias = self.distance_logits(q, k.shape[2]).masked_fill(~past_mask(q, k), -torch.inf)
        return self.merge(attended(q, k, v, bias)), (k, v)


KERNELS |= {"softmax": SoftmaxAttention, "full": SoftmaxAttention, "relative": RelativeAttention}
