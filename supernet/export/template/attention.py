"""Attention: projections, and scaled dot products with and without distances."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from supernet.export.template.sizes import (
    DECODER_SPANS,
    OMNI,
    PADDING,
    RELATIVE_DECODER,
    RELATIVE_ENCODER,
    RELATIVE_POSITIONS,
    SOFTMAX_CROSS,
    SOFTMAX_DECODER,
    SOFTMAX_ENCODER,
)

Carried = tuple[Tensor, ...]  # what attention remembers of earlier positions, or of a source


class Attention(nn.Module):
    """Queries, keys, values and output of all heads; subclasses attend."""

    def __init__(
        self, width: int, key_width: int, heads: int, head_width: int, span: int = 1
    ) -> None:
        super().__init__()
        self.heads, self.head_width = heads, head_width
        if OMNI:
            self.span = span  # states that stand at one position
        self.query = nn.Linear(width, heads * head_width)
        self.key = nn.Linear(key_width, heads * head_width)
        self.value = nn.Linear(key_width, heads * head_width)
        self.output = nn.Linear(heads * head_width, width)

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
    position = torch.arange(k.shape[2], device=k.device)
    if DECODER_SPANS:
        position = position // together
    return position[None, :] <= position[k.shape[2] - q.shape[2] :, None]


class SoftmaxAttention(Attention):
    """Scaled dot products."""

    if SOFTMAX_ENCODER:

        def forward(self, x: Tensor, real: Tensor) -> Tensor:
            """``(B, N, D)`` -> ``(B, N, D)``, all positions seeing all."""
            q, k, v = self.project(x)
            if PADDING:
                mask = real[:, None, None, :]
                return self.merge(F.scaled_dot_product_attention(q, k, v, mask))
            else:
                return self.merge(F.scaled_dot_product_attention(q, k, v))

    if SOFTMAX_DECODER:

        def causal(
            self, x: Tensor, past: Carried | None, positions: Tensor
        ) -> tuple[Tensor, Carried]:
            """``(B, N, D)`` -> ``(B, N, D)``, seeing the past: all keys and values are carried."""
            q, k, v = self.project(x)
            k, v = with_past(past, k, v)
            mask = past_mask(q, k, self.span) if DECODER_SPANS else past_mask(q, k)
            return self.merge(F.scaled_dot_product_attention(q, k, v, mask)), (k, v)

    if SOFTMAX_CROSS:

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

    def __init__(self, width: int, key_width: int, heads: int, head_width: int) -> None:
        super().__init__(width, key_width, heads, head_width)
        rows = 2 * RELATIVE_POSITIONS + 1
        self.relative_keys = nn.Parameter(torch.zeros(rows, heads * head_width))

    def distance_logits(self, q: Tensor, keys: int) -> Tensor:
        """``(B, H, N, M)``: what each query says to the distance of each key."""
        table = self.relative_keys.view(-1, self.heads, self.head_width).permute(1, 2, 0)
        logits = (q * self.head_width**-0.5) @ table  # (B, H, N, rows of the table)
        position = torch.arange(keys, device=q.device)
        distance = position[None, :] - position[keys - q.shape[2] :, None]  # (N, M)
        row = distance.clamp(-RELATIVE_POSITIONS, RELATIVE_POSITIONS) + RELATIVE_POSITIONS
        return logits.gather(-1, row.expand(*logits.shape[:2], -1, -1))

    if RELATIVE_ENCODER:

        def forward(self, x: Tensor, real: Tensor) -> Tensor:
            """``(B, N, D)`` -> ``(B, N, D)``, all positions seeing all."""
            q, k, v = self.project(x)
            bias = self.distance_logits(q, k.shape[2])
            if PADDING:
                bias = bias.masked_fill(~real[:, None, None, :], -torch.inf)
            return self.merge(F.scaled_dot_product_attention(q, k, v, bias))

    if RELATIVE_DECODER:

        def causal(
            self, x: Tensor, past: Carried | None, positions: Tensor
        ) -> tuple[Tensor, Carried]:
            """``(B, N, D)`` -> ``(B, N, D)``, seeing the past: all keys and values are carried."""
            q, k, v = self.project(x)
            k, v = with_past(past, k, v)
            bias = self.distance_logits(q, k.shape[2]).masked_fill(~past_mask(q, k), -torch.inf)
            return self.merge(F.scaled_dot_product_attention(q, k, v, bias)), (k, v)
