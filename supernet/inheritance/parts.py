"""The parts of a checkpoint's network that a supernet takes over, and what it says in the end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from search_spaces.architecture import Architecture, DecoderLayer, EncoderLayer, self_attention
from supernet.blocks import ElasticAttention, Projections
from supernet.depth import Stack
from supernet.encoder_models import EncoderEmbedder, PooledEncoder
from supernet.extraction import StandAlone
from supernet.layers import ElasticFeedForward
from supernet.sequence_models import LanguageModel

Weights = dict[str, Tensor]


@dataclass(frozen=True)
class LayerParts:
    """What of a layer is put in order.

    Attributes:
        projections: of its attention; None where it has none.
        ffn: its feed-forward network.
        num_heads: of its queries.
        groups: heads of its keys where they are fewer, so that heads stay where they are.
        learns: whether attention has parameters beside its projections, a head's own among them, so
            that heads stay where they are, too.
    """

    projections: Projections | None
    ffn: ElasticFeedForward
    num_heads: int
    groups: int | None
    learns: bool


def stack_name(architecture: Architecture) -> str:
    """The only stack of a network: ``encoder`` or ``decoder``."""
    return "decoder" if architecture.encoder is None else "encoder"


def stack_of(network: StandAlone) -> Stack:
    """The only stack of a network on its own."""
    stack = getattr(network.network, stack_name(network.architecture))
    assert isinstance(stack, Stack)
    return stack


def attention_of(block: nn.Module) -> ElasticAttention:
    """The self-attention of a block of either stack."""
    found = getattr(block, "attention", None) or block.self_attention
    assert isinstance(found, ElasticAttention)
    return found


def layer_parts(network: StandAlone) -> list[LayerParts]:
    """The parts of each layer of a network on its own, first layer first."""
    found = []
    for block, layer in zip(stack_of(network).blocks, _layers(network.architecture), strict=True):
        attention = attention_of(block)
        projections = next(iter(attention.projections.values()), None)
        learns = next(attention.kernels.parameters(), None) is not None
        assert projections is None or isinstance(projections, Projections)
        assert isinstance(block.ffn, ElasticFeedForward)
        found.append(LayerParts(projections, block.ffn, *_heads(layer), learns))
    return found


def real_positions(network: StandAlone, inputs: Tensor) -> Tensor | None:
    """True at positions that are not padding, ``(B, N)``; None where there is none."""
    model = network.network
    return model.real_positions(inputs) if isinstance(model, PooledEncoder) else None


def final_states(network: StandAlone, inputs: Tensor, architecture: Architecture) -> Tensor:
    """What a network says in the end, before a vocabulary makes it large.

    Returns:
        Embeddings ``(B, D)``, logits of classes ``(B, C)``, or a decoder's last states
        ``(B, N, D)``.
    """
    model: Any = network.network
    if isinstance(model, LanguageModel):
        return model.read(inputs, architecture)
    if isinstance(model, EncoderEmbedder):
        return model(inputs, architecture)[1]  # type: ignore[no-any-return]
    return model(inputs, architecture)  # type: ignore[no-any-return]


def _layers(architecture: Architecture) -> Sequence[EncoderLayer | DecoderLayer]:
    stack = architecture.encoder or architecture.decoder
    assert stack is not None
    return stack.layers


def _heads(layer: EncoderLayer | DecoderLayer) -> tuple[int, int | None]:
    """Heads of queries, and of keys where they are fewer."""
    _, heads, groups = self_attention(layer)
    return heads, None if groups == heads else groups
