"""What encoders and decoders have in common: feed-forward, positions, layers seen at once."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from supernet.export.template.attention import KERNELS, Attention, Settings, kernel_name


class FeedForward(nn.Module):
    """Two linear layers with an activation between."""

    def __init__(self, model: Settings, width: int, inner_width: int) -> None:
        super().__init__()
        self.inner = nn.Linear(width, inner_width)
        self.activation = F.gelu if model["activation"] == "gelu" else F.relu
        self.outer = nn.Linear(inner_width, width)

    def forward(self, x: Tensor) -> Tensor:
        """``(B, N, D)`` -> ``(B, N, D)``."""
        return self.outer(self.activation(self.inner(x)))


def attention_of(
    model: Settings, kind: str, width: int, heads: int, span: int = 1, source: int | None = None
) -> Attention:
    """Attention of a kind; `source` is the width of the source for cross-attention."""
    kernel = KERNELS[kernel_name(model, kind, cross=source is not None)]
    return kernel(model, width, source or width, heads, span)


def layer_spans(kinds: list[str], largest: int) -> list[int]:
    """How many layer outputs each layer sees: omnidirectional ones those since the last such."""
    spans, previous = [], 0
    for number, kind in enumerate(kinds, start=1):
        spans.append(min(largest, number - previous) if kind == "omni" else 1)
        previous = number if kind == "omni" else previous
    return spans


def side_by_side(outputs: list[Tensor]) -> Tensor:
    """P outputs ``(B, N, D)`` as states ``(B, N * P, D)``, those of a position together."""
    return torch.stack(outputs, dim=2).flatten(1, 2)


def highest(states: Tensor, span: int) -> Tensor:
    """The largest of the states of each position: ``(B, N * P, D)`` -> ``(B, N, D)``."""
    return states.unflatten(1, (-1, span)).amax(dim=2)


def final_norm(model: Settings, width: int) -> nn.Module:
    """The norm behind the last layer, where norms stand in front of blocks."""
    return nn.LayerNorm(width) if model["norm"] == "pre" else nn.Identity()


def learned_positions(model: Settings, width: int) -> nn.Parameter | None:
    """A row for each position, where these are learned."""
    learned = model["positions"] == "learned"
    return nn.Parameter(torch.zeros(model["max_length"], width)) if learned else None


def placed(x: Tensor, start: int, model: Settings, learned: Tensor | None) -> Tensor:
    """Embeddings ``(B, N, D)``, with what tells their positions from `start` on."""
    end, width = start + x.shape[1], x.shape[2]
    if end > model["max_length"]:
        raise ValueError(f"{end} positions, but the network has {model['max_length']}")
    if learned is not None:
        return x + learned[start:end]
    if model["positions"] == "sinusoidal":
        pair = torch.arange((width + 1) // 2, device=x.device, dtype=torch.float32)
        rate = torch.exp(pair * (-2.0 * math.log(10_000.0) / width))
        angle = torch.arange(start, end, device=x.device, dtype=torch.float32)[:, None] * rate
        waves = torch.stack((angle.sin(), angle.cos()), dim=2).flatten(1)[:, :width]
        return x + waves.to(x.dtype)
    return x
