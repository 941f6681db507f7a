"""The graphs of a network: one that classifies or embeds, the encoder of a source, a step.

A graph takes and returns plain tensors. What a decoder remembers is therefore spread out by name:
``state.L.PART`` of the self-attention of layer L, ``memory.L.PART`` of what it reads of the source.
Beside each module stand the names of its inputs, their axes of any size, and an example to trace.

Shapes: B batch, K beams, N new positions, M source positions, C classes or features, V target
vocabulary or value columns, H heads, D width of one head, P states per position.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from search_spaces.architecture import SKIP, AttentionKind, DecoderLayer
from search_spaces.settings import ImageInput
from supernet.attention.base import AttentionKernel, State
from supernet.attention.bigbird import BigBirdKernel
from supernet.attention.decay import DecayKernel
from supernet.attention.gated_delta import GatedDeltaKernel
from supernet.attention.linear import (
    CosformerKernel,
    HedgehogKernel,
    MeanLinearKernel,
    NormLinearKernel,
)
from supernet.blocks import ElasticAttention
from supernet.decoder import ElasticDecoderBlock
from supernet.decoding_state import DecodingState
from supernet.encoder_models import (
    EncoderClassifier,
    EncoderEmbedder,
    InputEmbedding,
    PooledEncoder,
)
from supernet.export.onnx_kernels import traceable
from supernet.extraction import StandAlone
from supernet.layers import sinusoids
from supernet.plan import decoder_of, decoder_spans
from supernet.sequence_models import Positions, SequenceModel, TranslationModel

# Sizes of the example; all differ, so that none is taken for another.
BATCH, BEAMS, NEW, SOURCE, PAST = 3, 2, 5, 7, 11

Axes = dict[int, str]


@dataclass(frozen=True, eq=False, slots=True)
class Signature:
    """One tensor that goes into a graph or comes out.

    Attributes:
        name: of the tensor.
        example: what is traced with.
        axes: names of the axes that may have any size.
    """

    name: str
    example: Tensor
    axes: Axes


@dataclass(frozen=True, eq=False, slots=True)
class Graph:
    """A module that becomes a graph.

    Attributes:
        name: of the file, without its ending.
        module: in evaluation mode.
        inputs: in the order of the module's arguments.
        outputs: names, in order.
        groups: how many of the inputs make up each argument; None for one that is no list.
    """

    name: str
    module: nn.Module
    inputs: tuple[Signature, ...]
    outputs: tuple[str, ...]
    groups: tuple[int | None, ...]

    def grouped(self, values: list[Any]) -> tuple[Any, ...]:
        """One value for each input, as the module's arguments take them."""
        left, found = list(values), []
        for size in self.groups:
            found.append(left.pop(0) if size is None else left[:size])
            left = left if size is None else left[size:]
        return tuple(found)


def graphs_of(network: StandAlone) -> list[Graph]:
    """The graphs of a network: one that classifies or embeds, or those that write a text.

    The network is left as it is; the graphs are on its parameters.

    Args:
        network: in fp32, on the CPU.
    """
    prepared = prepare(network)
    if isinstance(prepared.network, EncoderClassifier):
        return [_classifier(prepared)]
    if isinstance(prepared.network, EncoderEmbedder):
        return [_embedder(prepared)]
    if isinstance(prepared.network, TranslationModel):
        source = _source(prepared)
        with torch.no_grad():
            memories = source.module(source.inputs[0].example)
        return [source, _step(prepared, list(zip(source.outputs, memories, strict=True)))]
    return [_step(prepared, [])]


def _classifier(network: StandAlone) -> Graph:
    shape = network.network.settings.input
    if isinstance(shape, ImageInput):
        size = (BATCH, shape.channels, shape.image_size, shape.image_size)
        inputs = Signature("images", torch.zeros(size), {0: "batch"})
    else:
        inputs = _text(network)
    return Graph("classifier", WholeGraph(network), (inputs,), ("logits",), (None,))


def _embedder(network: StandAlone) -> Graph:
    outputs = ("last_hidden_state", "sentence_embedding")
    return Graph("embedder", WholeGraph(network), (_text(network),), outputs, (None,))


def _text(network: StandAlone) -> Signature:
    tokens_BN = _tokens(BATCH, min(SOURCE, network.network.settings.max_length))
    return Signature("tokens", tokens_BN, {0: "batch", 1: "length"})


def _source(network: StandAlone) -> Graph:
    names: list[str] = []
    for number, block, layer in _layers(network):
        assert block.cross_attention is not None and layer.cross_attention is not None
        kernel = _kernel(block.cross_attention, layer.cross_attention)
        names += [f"memory.{number}.{part}" for part in _memory_parts(kernel)]
    source_BM = _tokens(BATCH, min(SOURCE, network.network.settings.max_length))
    source = Signature("source", source_BM, {0: "batch", 1: "source"})
    return Graph("source", SourceGraph(network), (source,), tuple(names), (None,))


def _step(network: StandAlone, memories: list[tuple[str, Tensor]]) -> Graph:
    rows: Axes = {0: "batch", 1: "beams"} if memories else {0: "batch"}
    sizes = (BATCH, BEAMS) if memories else (BATCH,)
    states = [_states(network, number, rows, sizes) for number, _, _ in _layers(network)]
    read = [Signature(name, tensor, _memory_axes(name)) for name, tensor in memories]
    inputs = [
        Signature("tokens", _tokens(*sizes, NEW), {**rows, len(rows): "new"}),
        Signature("position", torch.tensor(PAST), {}),
        *(one for layer in states for one in layer),
        *read,
    ]
    counts = [sum(one.name.startswith(f"memory.{n}.") for one in read) for n in range(len(states))]
    module = StepGraph(network, [len(layer) for layer in states], counts if read else [])
    outputs = ("logits", *(f"next.{one.name}" for layer in states for one in layer))
    groups = (None, None, sum(len(layer) for layer in states), *([len(read)] if read else []))
    return Graph("step", module, tuple(inputs), outputs, groups)


def _states(
    network: StandAlone, number: int, rows: Axes, sizes: tuple[int, ...]
) -> list[Signature]:
    """What a layer's self-attention remembers: sums, or keys and values of what was read.

    Of a windowed layer these are the last ones, and never more than the window has; of a layer
    without attention there is nothing.
    """
    _, block, layer = list(_layers(network))[number]
    if layer.self_attention == SKIP:
        return []
    span = decoder_spans(network.network.settings, decoder_of(network.architecture))[number]
    kernel = _kernel(block.self_attention, layer.self_attention)
    settings, heads = network.network.settings, layer.self_num_heads
    width, name = settings.head_width(heads), f"state.{number}"

    def zeros(part: str, *shape: int) -> Signature:
        return Signature(f"{name}.{part}", torch.zeros(*sizes, *shape), rows)

    match kernel:
        case MeanLinearKernel() | NormLinearKernel():
            features = width * (2 if isinstance(kernel, CosformerKernel | HedgehogKernel) else 1)
            columns = width + isinstance(kernel, MeanLinearKernel)
            return [zeros("sums", heads, features, columns)]
        case DecayKernel():
            return [zeros("sums", heads, width, width)]
        case GatedDeltaKernel():
            return [
                zeros("sums", heads, width, width),
                zeros("inputs", 3 * heads, kernel.TAPS - 1, width),
            ]
    assert isinstance(kernel, AttentionKernel)
    kept = heads if not kernel.takes_groups else layer.self_num_kv_heads or heads
    past = torch.zeros(*sizes, kept, span * (PAST + 2 * number), width)
    axes = {**rows, len(rows) + 1: f"past_{number}"}
    return [Signature(f"{name}.keys", past, axes), Signature(f"{name}.values", past.clone(), axes)]


def _memory_parts(kernel: nn.Module) -> tuple[str, ...]:
    if isinstance(kernel, MeanLinearKernel | NormLinearKernel):
        return ("sums",)
    if isinstance(kernel, BigBirdKernel):
        return ("keys", "values", "blocks")
    return ("keys", "values", "mask")


def _memory_axes(name: str) -> Axes:
    _, number, part = name.split(".")
    match part:
        case "sums":
            return {0: "batch"}
        case "keys" | "values":
            return {0: "batch", 2: f"read_{number}"}
        case _:
            return {0: "batch", 1: f"read_{number}"}


def _layers(network: StandAlone) -> Iterator[tuple[int, ElasticDecoderBlock, DecoderLayer]]:
    assert isinstance(network.network, SequenceModel)
    layers = decoder_of(network.architecture).layers
    for number, (block, layer) in enumerate(
        zip(network.network.decoder.blocks, layers, strict=True)
    ):
        assert isinstance(block, ElasticDecoderBlock)
        yield number, block, layer


def _kernel(attention: ElasticAttention, kind: AttentionKind) -> nn.Module:
    return attention.kernels[kind]


def _tokens(*size: int) -> Tensor:
    """Ones: a token of every vocabulary, and no padding."""
    return torch.ones(size, dtype=torch.int64)


# -- modules --------------------------------------------------------------------------------------


def prepare(network: StandAlone) -> StandAlone:
    """The same network, on the same parameters, with nothing that depends on lengths."""
    shared = {id(tensor): tensor for tensor in (*network.parameters(), *network.buffers())}
    prepared = copy.deepcopy(network, memo=dict(shared)).eval()
    for module in list(prepared.modules()):
        if isinstance(module, ElasticAttention):
            for kind, kernel in module.kernels.items():
                module.kernels[kind] = traceable(kernel)
        if isinstance(module, SequenceModel):
            module.add_module("decoder_positions", TraceablePositions(module.decoder_positions))
        if isinstance(module, TranslationModel):
            module.add_module("encoder_positions", TraceablePositions(module.encoder_positions))
        if isinstance(module, PooledEncoder):
            module.add_module("embedding", TraceableEmbedding(module.embedding))
    return prepared


class TraceablePositions(nn.Module):
    """As `Positions`, with a start that is known only when the graph runs."""

    def __init__(self, positions: Positions) -> None:
        super().__init__()
        self.settings, self.learned = positions.settings, positions.learned
        self.extras = positions.extras

    def forward(self, x_BND: Tensor, start: Tensor | int = 0) -> Tensor:
        """Embeddings of the positions from `start` on, ``(B, N, D)`` → ``(B, N, D)``."""
        width = x_BND.shape[2]
        if self.settings.scale_embeddings:
            x_BND = x_BND * width**0.5
        places_N = torch.arange(x_BND.shape[1], device=x_BND.device) + start
        if self.learned is not None:
            x_BND = x_BND + self.learned[places_N]
        elif self.settings.positions == "sinusoidal":
            x_BND = x_BND + sinusoids(places_N, width)
        return self.extras(x_BND)  # type: ignore[no-any-return]


class TraceableEmbedding(nn.Module):
    """As `InputEmbedding`, with learned positions that are looked up instead of cut off."""

    def __init__(self, embedding: InputEmbedding) -> None:
        super().__init__()
        self.embedding = copy.copy(embedding)
        self.embedding._parameters = dict(embedding._parameters)
        self.embedding._modules = embedding._modules | {"extras": nn.Identity()}
        self.embedding.positions = None
        self.positions, self.extras = embedding.positions, embedding.extras

    def forward(self, inputs: Tensor, embed_dim: int) -> Tensor:
        """Images ``(B, C, H, W)`` or tokens ``(B, N)`` → ``(B, N, D)``."""
        x_BND: Tensor = self.embedding(inputs, embed_dim)
        if self.positions is not None:
            x_BND = x_BND + self.positions[torch.arange(x_BND.shape[1], device=x_BND.device)]
        return self.extras(x_BND)  # type: ignore[no-any-return]


class WholeGraph(nn.Module):
    """Images or padded tokens → all that the network says of them."""

    def __init__(self, network: StandAlone) -> None:
        super().__init__()
        self.network = network

    def forward(self, inputs: Tensor) -> Any:
        """Images ``(B, C, H, W)`` or tokens ``(B, N)`` → as the model's."""
        return self.network(inputs)


class SourceGraph(nn.Module):
    """Sources → what the layers of the decoder read of them."""

    def __init__(self, network: StandAlone) -> None:
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

    def __init__(self, network: StandAlone, states: Sequence[int], memories: Sequence[int]) -> None:
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
