"""What encoders and decoders have in common: feed-forward, positions, layers seen at once."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from supernet.export.template.attention import KERNELS, Attention, Settings, Sizes, kernel_name

ACTIVATIONS = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "silu": F.silu,
}


class FeedForward(nn.Module):
    """Two linear layers with an activation between; where there is a third, it is a gate."""

    def __init__(self, model: Settings, width: int, inner_width: int) -> None:
        super().__init__()
        bias = model["ffn_bias"]
        self.gated = model["ffn_form"] == "gated"
        if self.gated:
            self.gate = nn.Linear(width, inner_width, bias)
        self.inner = nn.Linear(width, inner_width, bias)
        self.activation = ACTIVATIONS[model["activation"]]
        self.outer = nn.Linear(inner_width, width, bias)

    def forward(self, x: Tensor) -> Tensor:
        """``(B, N, D)`` -> ``(B, N, D)``."""
        if self.gated:
            return self.outer(self.activation(self.gate(x)) * self.inner(x))
        return self.outer(self.activation(self.inner(x)))


def norm_of(model: Settings, width: int) -> nn.Module:
    """The norm that all blocks have."""
    kind = nn.RMSNorm if model["norm_kind"] == "rms" else nn.LayerNorm
    return kind(width, eps=model["norm_eps"])


def self_attention_of(
    model: Settings, layer: dict[str, Any], prefix: str, width: int, span: int
) -> Attention | None:
    """Self-attention of a layer, whose sizes begin with a prefix; None where there is none."""
    kind, heads = layer[f"{prefix}attention"], layer[f"{prefix}num_heads"]
    if kind == "skip":
        return None
    kv_heads = layer.get(f"{prefix}num_kv_heads", heads)
    window = int(kind.partition(":")[2] or model["window"]) if kind.startswith("window") else 0
    sizes = Sizes(width, width, heads, kv_heads, span, window)
    return KERNELS[kernel_name(model, kind)](model, sizes)


def attention_norm_of(model: Settings, kind: str, width: int) -> nn.Module:
    """The norm of self-attention; none in front of what is not there."""
    skipped = kind == "skip" and model["norm"] == "pre"
    return nn.Identity() if skipped else norm_of(model, width)


def cross_attention_of(
    model: Settings, layer: dict[str, Any], width: int, source: int
) -> Attention:
    """Attention of a layer to a source of that width."""
    kind, heads = layer["cross_attention"], layer["cross_num_heads"]
    return KERNELS[kernel_name(model, kind, cross=True)](
        model, Sizes(width, source, heads, heads, cross=True)
    )


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
    return norm_of(model, width) if model["norm"] == "pre" else nn.Identity()


def learned_positions(model: Settings, width: int) -> nn.Parameter | None:
    """A row for each position, where these are learned."""
    learned = model["positions"] == "learned"
    return nn.Parameter(torch.zeros(model["max_length"], width)) if learned else None


def token_types(model: Settings, width: int) -> nn.Parameter | None:
    """A row for each type of token, where there are any; all tokens are of type 0."""
    count = model["token_types"]
    return nn.Parameter(torch.zeros(count, width)) if count else None


def embedding_norm_of(model: Settings, width: int) -> nn.Module:
    """The norm behind embeddings and positions, where there is one."""
    return norm_of(model, width) if model["embedding_norm"] else nn.Identity()


def scaled(x: Tensor, model: Settings) -> Tensor:
    """Embeddings of tokens ``(B, N, D)``, about as large as what is added to them."""
    return x * x.shape[2] ** 0.5 if model["scale_embeddings"] else x


def placed(
    x: Tensor, start: int, model: Settings, learned: Tensor | None, types: Tensor | None
) -> Tensor:
    """Embeddings ``(B, N, D)``, with their type and what tells their positions from `start` on."""
    end, width = start + x.shape[1], x.shape[2]
    if end > model["max_length"]:
        raise ValueError(f"{end} positions, but the network has {model['max_length']}")
    if learned is not None:
        x = x + learned[start:end]
    elif model["positions"] == "sinusoidal":
        pair = torch.arange((width + 1) // 2, device=x.device, dtype=torch.float32)
        rate = torch.exp(pair * (-2.0 * math.log(10_000.0) / width))
        angle = torch.arange(start, end, device=x.device, dtype=torch.float32)[:, None] * rate
        waves = torch.stack((angle.sin(), angle.cos()), dim=2).flatten(1)[:, :width]
        x = x + waves.to(x.dtype)
    return x if types is None else x + types[0]
