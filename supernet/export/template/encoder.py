"""An encoder: layers over all positions of a text or an image."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from supernet.export.template.attention import Settings
from supernet.export.template.layers import (
    FeedForward,
    attention_norm_of,
    final_norm,
    highest,
    layer_spans,
    norm_of,
    self_attention_of,
    side_by_side,
)


class EncoderLayer(nn.Module):
    """Attention and feed-forward, each added to what came in."""

    def __init__(self, model: Settings, width: int, layer: dict[str, Any], span: int) -> None:
        super().__init__()
        self.pre_norm, self.span = model["norm"] == "pre", span
        self.attention_norm = attention_norm_of(model, layer["attention"], width)
        self.attention = self_attention_of(model, layer, "", width, span)
        self.ffn_norm = norm_of(model, width)
        self.ffn = FeedForward(model, width, layer["ffn_dim"])

    def forward(self, x: Tensor, real: Tensor | None) -> Tensor:
        """``(B, N, D)`` -> ``(B, N, D)``; `real` ``(B, N)`` is False at padding."""
        if self.pre_norm:
            if self.attention is not None:
                x = x + self.attention(self.attention_norm(x), real)
            return x + self.ffn(self.ffn_norm(x))
        if self.attention is not None:
            x = x + self.attention(x, real)
        x = self.attention_norm(x)
        return self.ffn_norm(x + self.ffn(x))


class Encoder(nn.Module):
    """All encoder layers, one after the other.

    `last_outputs` of them are what a decoder sees.
    """

    def __init__(self, description: dict[str, Any]) -> None:
        super().__init__()
        model, stacks = description["model"], description["architecture"]
        width, layers = stacks["encoder"]["embed_dim"], stacks["encoder"]["layers"]
        spans = layer_spans([layer["attention"] for layer in layers], model["omni_span"])
        self.layers = nn.ModuleList(
            EncoderLayer(model, width, layer, span)
            for layer, span in zip(layers, spans, strict=True)
        )
        self.final_norm = final_norm(model, width)
        readers = stacks["decoder"]["layers"] if "decoder" in stacks else []
        self.last_outputs = max((layer["ende_connect"] for layer in readers), default=1)

    def forward(self, x: Tensor, real: Tensor | None) -> Tensor:
        """``(B, N, D)`` -> the last output, of the same shape; several ``(B, outputs, N, D)``."""
        outputs = [x]
        for layer in self.layers:
            # An omnidirectional layer sees the outputs of several layers at once.
            span = layer.span
            there = None if real is None else real.repeat_interleave(span, dim=1)
            outputs.append(highest(layer(side_by_side(outputs[-span:]), there), span))
        if self.last_outputs == 1:
            return self.final_norm(outputs[-1])
        return self.final_norm(torch.stack(outputs[-self.last_outputs :], dim=1))
