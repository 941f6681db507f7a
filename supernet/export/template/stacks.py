"""Layers, and the stacks of them that are encoder and decoder."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from supernet.export.template.attention import Carried, SoftmaxAttention
from supernet.export.template.sizes import (
    DECODER_SPANS,
    DECODER_WIDTH,
    ENCODER_SPANS,
    ENCODER_WIDTH,
    GELU,
    JOINED,
    LAST_OUTPUTS,
    PADDING,
    POSITIONS,
    PRE_NORM,
    TRANSLATOR,
)


class FeedForward(nn.Module):
    """Two linear layers with an activation between."""

    def __init__(self, width: int, inner_width: int) -> None:
        super().__init__()
        self.inner = nn.Linear(width, inner_width)
        self.outer = nn.Linear(inner_width, width)

    def forward(self, x: Tensor) -> Tensor:
        """``(B, N, D)`` -> ``(B, N, D)``."""
        if GELU:
            return self.outer(F.gelu(self.inner(x)))
        else:
            return self.outer(F.relu(self.inner(x)))


def side_by_side(outputs: list[Tensor]) -> Tensor:
    """P outputs ``(B, N, D)`` as states ``(B, N * P, D)``, those of a position together."""
    return torch.stack(outputs, dim=2).flatten(1, 2)


def largest(states: Tensor, span: int) -> Tensor:
    """The largest of the states of each position: ``(B, N * P, D)`` -> ``(B, N, D)``."""
    return states.unflatten(1, (-1, span)).amax(dim=2)


class EncoderLayer(nn.Module):
    """Attention and feed-forward, each added to what came in."""

    def __init__(self, width: int, attention: nn.Module, ffn_width: int) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(width)
        self.attention = attention
        self.ffn_norm = nn.LayerNorm(width)
        self.ffn = FeedForward(width, ffn_width)

    def forward(self, x: Tensor, real: Tensor) -> Tensor:
        """``(B, N, D)`` -> ``(B, N, D)``."""
        if PRE_NORM:
            x = x + self.attention(self.attention_norm(x), real)
            return x + self.ffn(self.ffn_norm(x))
        else:
            x = self.attention_norm(x + self.attention(x, real))
            return self.ffn_norm(x + self.ffn(x))


def encoder_layers() -> list[nn.Module]:
    """First to last; attention with its width, its keys' width, heads and width of a head."""
    return [
        EncoderLayer(16, SoftmaxAttention(16, 16, 2, 4), ffn_width=32),
    ]


class Encoder(nn.Module):
    """All encoder layers, one after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(encoder_layers())
        if PRE_NORM:
            self.final_norm = nn.LayerNorm(ENCODER_WIDTH)

    def forward(self, x: Tensor, real: Tensor) -> Tensor:
        """``(B, N, D)`` -> the last output, of the same shape."""
        if ENCODER_SPANS or JOINED:
            outputs = [x]
        for layer in self.layers:
            if ENCODER_SPANS:
                # An omnidirectional layer sees the outputs of several layers at once.
                span = layer.attention.span
                states = side_by_side(outputs[-span:])
                if PADDING:
                    states = layer(states, real.repeat_interleave(span, dim=1))
                else:
                    states = layer(states)
                x = largest(states, span)
            else:
                x = layer(x, real)
            if ENCODER_SPANS or JOINED:
                outputs.append(x)
        if JOINED:
            # The decoder sees the last outputs, (B, outputs, N, D).
            x = torch.stack(outputs[-LAST_OUTPUTS:], dim=1)
        return self.final_norm(x) if PRE_NORM else x


class DecoderLayer(nn.Module):
    """Attention to the past (and to the source), and feed-forward, each added to what came in."""

    def __init__(
        self,
        width: int,
        self_attention: nn.Module,
        cross_attention: nn.Module,
        ffn_width: int,
        joined: int = 1,
    ) -> None:
        super().__init__()
        self.self_norm = nn.LayerNorm(width)
        self.self_attention = self_attention
        if TRANSLATOR:
            self.cross_norm = nn.LayerNorm(width)
            self.cross_attention = cross_attention
        if JOINED:
            self.joined = joined  # outputs of the encoder that cross-attention sees
        self.ffn_norm = nn.LayerNorm(width)
        self.ffn = FeedForward(width, ffn_width)

    def forward(
        self, x: Tensor, past: Carried | None, memory: Carried, positions: Tensor
    ) -> tuple[Tensor, Carried]:
        """``(B, N, D)`` -> ``(B, N, D)``, and what self-attention carries on."""
        if PRE_NORM:
            attended, past = self.self_attention.causal(self.self_norm(x), past, positions)
            x = x + attended
            if TRANSLATOR:
                x = x + self.cross_attention.read(self.cross_norm(x), memory, positions)
            return x + self.ffn(self.ffn_norm(x)), past
        else:
            attended, past = self.self_attention.causal(x, past, positions)
            x = self.self_norm(x + attended)
            if TRANSLATOR:
                x = self.cross_norm(x + self.cross_attention.read(x, memory, positions))
            return self.ffn_norm(x + self.ffn(x)), past


def decoder_layers() -> list[nn.Module]:
    """First to last; attention with its width, its keys' width, heads and width of a head."""
    return [
        DecoderLayer(8, SoftmaxAttention(8, 8, 2, 4), SoftmaxAttention(8, 16, 2, 4), ffn_width=32),
    ]


class Decoder(nn.Module):
    """All decoder layers, one after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(decoder_layers())
        if PRE_NORM:
            self.final_norm = nn.LayerNorm(DECODER_WIDTH)

    if TRANSLATOR:

        def memories(self, outputs: Tensor, real: Tensor) -> list[Carried]:
            """What each layer keeps of a source: the encoder's output ``(B, M, D)``."""
            if POSITIONS:
                positions = torch.arange(real.shape[1], device=real.device)
            found = []
            for layer in self.layers:
                if JOINED:
                    # The last outputs of the encoder, those of one source position together.
                    count = layer.joined
                    states = side_by_side(list(outputs.unbind(1)[-count:]))
                    there = real.repeat_interleave(count, dim=1)
                    if POSITIONS:
                        places = positions.repeat_interleave(count)
                    found.append(layer.cross_attention.memory(states, there, places))
                else:
                    found.append(layer.cross_attention.memory(outputs, real, positions))
            return found

    def forward(
        self,
        x: Tensor,
        pasts: list[Carried | None],
        memories: list[Carried],
        positions: Tensor,
    ) -> tuple[Tensor, list[Carried | None]]:
        """``(B, N, D)`` -> ``(B, N, D)``, and what each layer carries on."""
        if DECODER_SPANS:
            outputs = [x]
        after = []
        for number, layer in enumerate(self.layers):
            if TRANSLATOR:
                memory = memories[number]
            if DECODER_SPANS:
                # An omnidirectional layer sees the outputs of several layers at once.
                span = layer.self_attention.span
                if POSITIONS:
                    places = positions.repeat_interleave(span)
                states, past = layer(side_by_side(outputs[-span:]), pasts[number], memory, places)
                x = largest(states, span)
                outputs.append(x)
            else:
                x, past = layer(x, pasts[number], memory, positions)
            after.append(past)
        return self.final_norm(x) if PRE_NORM else x, after
