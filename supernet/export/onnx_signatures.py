"""What the graphs of a network are called with: names, axes of any size, and an example to trace.

Shapes: B batch, K beams, N new positions, M source positions, H heads, D width of one head,
C features, V value columns, P states per position.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from search_spaces.architecture import AttentionKind, DecoderLayer
from search_spaces.settings import ImageInput
from supernet.attention.bigbird import BigBirdKernel
from supernet.attention.linear import CosformerKernel, MeanLinearKernel, NormLinearKernel
from supernet.blocks import ElasticAttention
from supernet.decoder import ElasticDecoderBlock
from supernet.export.onnx_graphs import ClassifierGraph, SourceGraph, StepGraph, Writer, prepare
from supernet.extraction import StandAlone
from supernet.models import FixedNetwork
from supernet.plan import decoder_of, decoder_spans
from supernet.sequence_models import FixedTranslation

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
    """The graphs of a network: one to classify, or those that read a source and write a text.

    The network is left as it is; the graphs are on its parameters.

    Args:
        network: in fp32, on the CPU.
    """
    prepared = prepare(network)
    if isinstance(prepared, FixedNetwork):
        return [_classifier(prepared)]
    if isinstance(prepared, FixedTranslation):
        source = _source(prepared)
        with torch.no_grad():
            memories = source.module(source.inputs[0].example)
        return [source, _step(prepared, list(zip(source.outputs, memories, strict=True)))]
    return [_step(prepared, [])]


def _classifier(network: FixedNetwork) -> Graph:
    shape = network.network.settings.input
    if isinstance(shape, ImageInput):
        size = (BATCH, shape.channels, shape.image_size, shape.image_size)
        inputs = Signature("images", torch.zeros(size), {0: "batch"})
    else:
        tokens_BN = _tokens(BATCH, min(SOURCE, network.network.settings.max_length))
        inputs = Signature("tokens", tokens_BN, {0: "batch", 1: "length"})
    return Graph("classifier", ClassifierGraph(network), (inputs,), ("logits",), (None,))


def _source(network: FixedTranslation) -> Graph:
    names: list[str] = []
    for number, block, layer in _layers(network):
        assert block.cross_attention is not None and layer.cross_attention is not None
        kernel = _kernel(block.cross_attention, layer.cross_attention)
        names += [f"memory.{number}.{part}" for part in _memory_parts(kernel)]
    source_BM = _tokens(BATCH, min(SOURCE, network.network.settings.max_length))
    source = Signature("source", source_BM, {0: "batch", 1: "source"})
    return Graph("source", SourceGraph(network), (source,), tuple(names), (None,))


def _step(network: Writer, memories: list[tuple[str, Tensor]]) -> Graph:
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


def _states(network: Writer, number: int, rows: Axes, sizes: tuple[int, ...]) -> list[Signature]:
    """What a layer's self-attention remembers: sums, or keys and values of what was read."""
    _, block, layer = list(_layers(network))[number]
    span = decoder_spans(network.network.settings, decoder_of(network.architecture))[number]
    kernel = _kernel(block.self_attention, layer.self_attention)
    heads = layer.self_num_heads
    width = network.network.settings.attention_dim(heads) // heads
    name = f"state.{number}"
    if isinstance(kernel, MeanLinearKernel | NormLinearKernel):
        features = width * (2 if isinstance(kernel, CosformerKernel) else 1)
        columns = width + isinstance(kernel, MeanLinearKernel)
        return [
            Signature(f"{name}.sums", torch.zeros(*sizes, heads, features, columns), rows),
            Signature(f"{name}.seen", torch.full(sizes, PAST), rows),
        ]
    past = torch.zeros(*sizes, heads, span * (PAST + 2 * number), width)
    axes = {**rows, len(rows) + 1: f"past_{number}"}
    return [Signature(f"{name}.keys", past, axes), Signature(f"{name}.values", past.clone(), axes)]


def _memory_parts(kernel: nn.Module) -> tuple[str, ...]:
    if isinstance(kernel, MeanLinearKernel | NormLinearKernel):
        return ("sums",)
    if isinstance(kernel, BigBirdKernel):
        return ("keys", "values", "mask", "blocks")
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


def _layers(network: Writer) -> Iterator[tuple[int, ElasticDecoderBlock, DecoderLayer]]:
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
