"""A decoder: layers over the past of each position, and what is carried on between two tokens."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from supernet.export.template.attention import Carried, Settings
from supernet.export.template.layers import (
    FeedForward,
    attention_norm_of,
    cross_attention_of,
    final_norm,
    highest,
    layer_spans,
    norm_of,
    self_attention_of,
    side_by_side,
)

PAD, BOS, EOS = 0, 1, 2  # padding, begin and end mark


class DecoderLayer(nn.Module):
    """Attention to the past (and to the source), and feed-forward, each added to what came in."""

    def __init__(
        self, model: Settings, width: int, source: int | None, layer: dict[str, Any], span: int
    ) -> None:
        super().__init__()
        self.pre_norm, self.span = model["norm"] == "pre", span
        self.self_norm = attention_norm_of(model, layer["self_attention"], width)
        self.self_attention = self_attention_of(model, layer, "self_", width, span)
        if source is not None:
            self.cross_norm = norm_of(model, width)
            self.cross_attention = cross_attention_of(model, layer, width, source)
            self.joined = layer["ende_connect"]  # outputs of the encoder that are seen
        self.ffn_norm = norm_of(model, width)
        self.ffn = FeedForward(model, width, layer["ffn_dim"])

    def forward(
        self, x: Tensor, past: Carried | None, memory: Carried | None, positions: Tensor
    ) -> tuple[Tensor, Carried]:
        """``(B, N, D)`` -> ``(B, N, D)``, and what self-attention carries on."""
        after: Carried = ()
        if self.self_attention is not None:
            given = self.self_norm(x) if self.pre_norm else x
            attended, after = self.self_attention.causal(given, past, positions)
            x = x + attended
        if self.pre_norm:
            if memory is not None:
                x = x + self.cross_attention.read(self.cross_norm(x), memory, positions)
            return x + self.ffn(self.ffn_norm(x)), after
        x = self.self_norm(x)
        if memory is not None:
            x = self.cross_norm(x + self.cross_attention.read(x, memory, positions))
        return self.ffn_norm(x + self.ffn(x)), after


class Decoder(nn.Module):
    """All decoder layers, one after the other."""

    def __init__(self, description: dict[str, Any]) -> None:
        super().__init__()
        model, stacks = description["model"], description["architecture"]
        width, layers = stacks["decoder"]["embed_dim"], stacks["decoder"]["layers"]
        source = stacks["encoder"]["embed_dim"] if "encoder" in stacks else None
        spans = layer_spans([layer["self_attention"] for layer in layers], model["omni_span"])
        self.layers = nn.ModuleList(
            DecoderLayer(model, width, source, layer, span)
            for layer, span in zip(layers, spans, strict=True)
        )
        self.final_norm = final_norm(model, width)

    def memories(self, outputs: Tensor, real: Tensor) -> list[Carried | None]:
        """What each layer keeps of a source: the encoder's output ``(B, M, D)``, or several."""
        parts = list(outputs.unbind(1)) if outputs.dim() == 4 else [outputs]
        positions = torch.arange(real.shape[1], device=real.device)
        found = []
        for layer in self.layers:
            # The last outputs of the encoder, those of one source position together.
            count = layer.joined
            states, there = side_by_side(parts[-count:]), real.repeat_interleave(count, dim=1)
            places = positions.repeat_interleave(count)
            found.append(layer.cross_attention.memory(states, there, places))
        return found

    def forward(
        self,
        x: Tensor,
        pasts: list[Carried | None],
        memories: list[Carried | None],
        positions: Tensor,
    ) -> tuple[Tensor, list[Carried | None]]:
        """``(B, N, D)`` -> ``(B, N, D)``, and what each layer carries on."""
        outputs, after = [x], []
        for layer, past, memory in zip(self.layers, pasts, memories, strict=True):
            # An omnidirectional layer sees the outputs of several layers at once.
            span = layer.span
            places = positions.repeat_interleave(span)
            states, past = layer(side_by_side(outputs[-span:]), past, memory, places)
            outputs.append(highest(states, span))
            after.append(past)
        return self.final_norm(outputs[-1]), after


@dataclass
class State:
    """What is remembered between two tokens.

    `layers` is what each layer's self-attention carries on, None before the first token;
    `memories` what each keeps of the source, None without one; `memory_length` the earlier tokens
    that the next segment of a text sees.
    """

    position: int
    layers: list[Carried | None]
    memories: list[Carried | None]
    memory_length: int = 0

    def rows(self, rows: Tensor) -> State:
        """The state of these rows of the batch; a row may come up often or not at all."""
        layers = [taken(one, rows) for one in self.layers]
        return replace(self, layers=layers, memories=[taken(one, rows) for one in self.memories])

    def next_segment(self) -> State:
        """The state before the next segment of a text: the last keys and values stay."""
        if not self.memory_length:
            raise ValueError("the network has no memory of earlier segments")
        layers = [
            # Copies, or all that they are cut from would be kept alive.
            None if one is None else tuple(p[:, :, -self.memory_length :].clone() for p in one)
            for one in self.layers
        ]
        return replace(self, position=0, layers=layers)


def taken(carried: Carried | None, rows: Tensor) -> Carried | None:
    """These rows of everything that is carried."""
    return None if carried is None else tuple(part.index_select(0, rows) for part in carried)
