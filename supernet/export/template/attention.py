"""Attention: projections, and scaled dot products with and without distances."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Carried = tuple[Tensor, ...]  # what attention remembers of earlier positions, or of a source
Settings = dict[str, Any]  # the table "model" of architecture.json
KERNELS: dict[str, type[Attention]] = {}  # by name; each class below adds itself


def kernel_name(model: Settings, kind: str, cross: bool = False) -> str:
    """What a layer of that kind computes; between source and target there are no distances."""
    if kind == "softmax":
        return "relative" if model["relative_positions"] and not cross else "softmax"
    return model[f"{kind}_kernel"]


class Attention(nn.Module):
    """Queries, keys, values and output of all heads; subclasses attend.

    `span` states stand at one position.
    """

    def __init__(
        self, model: Settings, width: int, key_width: int, heads: int, span: int = 1
    ) -> None:
        super().__init__()
        self.heads, self.span = heads, span
        self.head_width = model["qkv_dim"] // heads if "qkv_dim" in model else model["head_dim"]
        inner = heads * self.head_width
        self.query = nn.Linear(width, inner)
        self.key = nn.Linear(key_width, inner)
        self.value = nn.Linear(key_width, inner)
        self.output = nn.Linear(inner, width)

    def split(self, x: Tensor) -> Tensor:
        """``(B, N, H * W)`` -> ``(B, H, N, W)``."""
        return x.unflatten(-1, (self.heads, self.head_width)).transpose(1, 2)

    def merge(self, x: Tensor) -> Tensor:
        """``(B, H, N, W)`` -> ``(B, N, D)``."""
        return self.output(x.transpose(1, 2).flatten(2))

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values of ``(B, N, D)``, each ``(B, H, N, W)``."""
        return self.split(self.query(x)), self.split(self.key(x)), self.split(self.value(x))


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

    def forward(self, x: Tensor, real: Tensor | None) -> Tensor:
        """``(B, N, D)`` -> ``(B, N, D)``, all positions seeing all; `real` is False at padding."""
        q, k, v = self.project(x)
        mask = None if real is None else real[:, None, None, :]
        return self.merge(F.scaled_dot_product_attention(q, k, v, mask))

    def causal(self, x: Tensor, past: Carried | None, positions: Tensor) -> tuple[Tensor, Carried]:
        """``(B, N, D)`` -> ``(B, N, D)``, seeing the past: all keys and values are carried."""
        q, k, v = self.project(x)
        k, v = with_past(past, k, v)
        mask = past_mask(q, k, self.span)
        return self.merge(F.scaled_dot_product_attention(q, k, v, mask)), (k, v)

    def memory(self, x: Tensor, real: Tensor, positions: Tensor) -> Carried:
        """Keys and values of a source ``(B, M, D)``."""
        return self.split(self.key(x)), self.split(self.value(x)), real

    def read(self, x: Tensor, memory: Carried, positions: Tensor) -> Tensor:
        """``(B, N, D)`` -> ``(B, N, D)``, seeing a source."""
        k, v, real = memory
        q, mask = self.split(self.query(x)), real[:, None, None, :]
        return self.merge(F.scaled_dot_product_attention(q, k, v, mask))


class RelativeAttention(Attention):
    """Scaled dot products with a learned key for each distance (Shaw et al., 2018)."""

    def __init__(
        self, model: Settings, width: int, key_width: int, heads: int, span: int = 1
    ) -> None:
        super().__init__(model, width, key_width, heads, span)
        self.farthest = model["relative_positions"]
        rows = 2 * self.farthest + 1
        self.relative_keys = nn.Parameter(torch.zeros(rows, heads * self.head_width))

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
        return self.merge(F.scaled_dot_product_attention(q, k, v, bias))

    def causal(self, x: Tensor, past: Carried | None, positions: Tensor) -> tuple[Tensor, Carried]:
        """``(B, N, D)`` -> ``(B, N, D)``, seeing the past: all keys and values are carried."""
        q, k, v = self.project(x)
        k, v = with_past(past, k, v)
        bias = self.distance_logits(q, k.shape[2]).masked_fill(~past_mask(q, k), -torch.inf)
        return self.merge(F.scaled_dot_product_attention(q, k, v, bias)), (k, v)


KERNELS |= {"softmax": SoftmaxAttention, "full": SoftmaxAttention, "relative": RelativeAttention}
