"""The modules that become ONNX graphs: a classifier, the encoder of a source, a decoder's step.

A graph takes and returns plain tensors. What a decoder remembers is therefore spread out by name:
``state.L.PART`` of the self-attention of layer L, ``memory.L.PART`` of what it reads of the source.

Shapes: B batch, K beams, N new positions, M source positions, C classes, V target vocabulary,
H heads, D width of one head, P states per position.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import cast

import torch
from torch import Tensor, nn

from supernet.attention.base import State
from supernet.blocks import ElasticAttention
from supernet.decoding_state import DecodingState
from supernet.export.onnx_kernels import graph_form
from supernet.extraction import StandAlone
from supernet.layers import sinusoids
from supernet.models import EncoderClassifier, FixedNetwork, InputEmbedding
from supernet.sequence_models import (
    FixedLanguageModel,
    FixedTranslation,
    Positions,
    SequenceModel,
    TranslationModel,
)


def prepare(network: StandAlone) -> StandAlone:
    """The same network, on the same parameters, with nothing that depends on lengths."""
    shared = {id(tensor): tensor for tensor in (*network.parameters(), *network.buffers())}
    prepared = copy.deepcopy(network, memo=dict(shared)).eval()
    for module in list(prepared.modules()):
        if isinstance(module, ElasticAttention):
            for kind, kernel in module.kernels.items():
                module.kernels[kind] = graph_form(kernel)
        if isinstance(module, SequenceModel):
            module.add_module("decoder_positions", PositionsForm(module.decoder_positions))
        if isinstance(module, TranslationModel):
            module.add_module("encoder_positions", PositionsForm(module.encoder_positions))
        if isinstance(module, EncoderClassifier):
            module.add_module("embedding", EmbeddingForm(module.embedding))
    return prepared


Writer = FixedTranslation | FixedLanguageModel


class PositionsForm(nn.Module):
    """As `Positions`, with a start that is known only when the graph runs."""

    def __init__(self, positions: Positions) -> None:
        super().__init__()
        self.kind, self.learned = positions.settings.positions, positions.learned

    def forward(self, x_BND: Tensor, start: Tensor | int = 0) -> Tensor:
        """Embeddings of the positions from `start` on, ``(B, N, D)`` → ``(B, N, D)``."""
        width = x_BND.shape[2]
        x_BND = x_BND * width**0.5
        places_N = torch.arange(x_BND.shape[1], device=x_BND.device) + start
        if self.learned is not None:
            return x_BND + self.learned[places_N]
        if self.kind == "sinusoidal":
            return x_BND + sinusoids(places_N, width)
        return x_BND


class EmbeddingForm(nn.Module):
    """As `InputEmbedding`, with learned positions that are looked up instead of cut off."""

    def __init__(self, embedding: InputEmbedding) -> None:
        super().__init__()
        self.embedding = copy.copy(embedding)
        self.embedding._parameters = dict(embedding._parameters)
        self.embedding.positions = None
        self.positions = embedding.positions

    def forward(self, inputs: Tensor, embed_dim: int) -> Tensor:
        """Images ``(B, C, H, W)`` or tokens ``(B, N)`` → ``(B, N, D)``."""
        x_BND: Tensor = self.embedding(inputs, embed_dim)
        if self.positions is None:
            return x_BND
        return x_BND + self.positions[torch.arange(x_BND.shape[1], device=x_BND.device)]


class ClassifierGraph(nn.Module):
    """Images or padded tokens → logits."""

    def __init__(self, network: FixedNetwork) -> None:
        super().__init__()
        self.network = network

    def forward(self, inputs: Tensor) -> Tensor:
        """Images ``(B, C, H, W)`` or tokens ``(B, N)`` → logits ``(B, C)``."""
        return self.network(inputs)  # type: ignore[no-any-return]


class SourceGraph(nn.Module):
    """Sources → what the layers of the decoder read of them."""

    def __init__(self, network: FixedTranslation) -> None:
        super().__init__()
        self.network = network

    def forward(self, source_BM: Tensor) -> tuple[Tensor, ...]:
        """Padded sources ``(B, M)`` → memories, layer by layer."""
        memories = self.network.start(source_BM).memories
        return tuple(part for memory in memories for part in memory or ())


class StepGraph(nn.Module):
    """New tokens, and what is remembered → logits, and what to remember.

    In a translation network the K beams of a sentence stand in an axis of their own, and its
    memories are there once.
    """

    def __init__(self, network: Writer, states: Sequence[int], memories: Sequence[int]) -> None:
        """Build the graph.

        Args:
            network: a prepared translation network or language model, on its own.
            states: how many tensors each layer's state has.
            memories: how many each layer's memory has; empty in a language model.
        """
        super().__init__()
        self.network = network
        self.states, self.memories = tuple(states), tuple(memories)

    def forward(
        self,
        tokens: Tensor,
        position: Tensor,
        states: Sequence[Tensor],
        memories: Sequence[Tensor] = (),
    ) -> tuple[Tensor, ...]:
        """One step.

        Args:
            tokens: new target tokens ``(B, K, N)``; of a language model ``(B, N)``.
            position: of the first of them, from 0; a scalar.
            states: as the last step returned them, ``(B, K, …)`` or ``(B, …)``.
            memories: as `SourceGraph` returns them, ``(B, …)``; none in a language model.

        Returns:
            Logits of what follows each token, ``(B, K, N, V)`` or ``(B, N, V)``, and the states.
        """
        rows = tokens.shape[:-1]
        before = DecodingState(
            self.network.architecture,
            cast(int, position),
            tuple(_parts([_joined(state, len(rows)) for state in states], self.states)),
            tuple(_parts(memories, self.memories)) or (None,) * len(self.states),
        )
        logits, after = self.network.step(_joined(tokens, len(rows)), before)
        assert after.states is not None
        flat = [logits, *(part for state in after.states for part in state)]
        return tuple(tensor.unflatten(0, rows) if len(rows) > 1 else tensor for tensor in flat)


def _joined(tensor: Tensor, count: int) -> Tensor:
    """The first `count` axes as one."""
    return tensor.flatten(0, count - 1) if count > 1 else tensor


def _parts(tensors: Sequence[Tensor], counts: Sequence[int]) -> Iterator[State]:
    start = 0
    for count in counts:
        yield tuple(tensors[start : start + count])
        start += count
