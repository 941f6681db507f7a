"""How large each part of a model must be built: the maxima of a space, or one network's sizes.

A supernet and a stand-alone network are the same modules, built from different plans.
"""

from __future__ import annotations

from dataclasses import dataclass

from search_spaces.architecture import (
    Architecture,
    AttentionKind,
    DecoderLayer,
    DecoderStack,
    EncoderStack,
    omni_spans,
)
from search_spaces.settings import ModelSettings
from search_spaces.space import SearchSpace


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """Largest sizes of one attention block.

    Attributes:
        width: widest queries.
        key_width: widest keys and values.
        num_heads: most heads.
        head_dim: widest head.
        kinds: attention kinds that need parameters here.
        span: most states per position that are attended; 1 without an omni layer.
        own_outputs: numbers of heads with an output layer of their own.
    """

    width: int
    key_width: int
    num_heads: int
    head_dim: int
    kinds: tuple[AttentionKind, ...]
    span: int = 1
    own_outputs: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class LayerPlan:
    """Largest sizes of one encoder layer.

    Attributes:
        attention: of its attention block.
        ffn_dim: most hidden units.
        own_outputs: numbers of hidden units with an output layer of their own.
    """

    attention: AttentionPlan
    ffn_dim: int
    own_outputs: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class StackPlan:
    """Largest embedding size and the plan of every layer."""

    embed_dim: int
    layers: tuple[LayerPlan, ...]


@dataclass(frozen=True, slots=True)
class DecoderLayerPlan:
    """Largest sizes of one decoder layer; `cross_attention` is None in a decoder-only model."""

    self_attention: AttentionPlan
    cross_attention: AttentionPlan | None
    ffn_dim: int
    own_outputs: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class DecoderPlan:
    """Largest embedding sizes of decoder and encoder, and the plan of every layer.

    `encoder_dim` is 0 in a decoder-only model.
    """

    embed_dim: int
    encoder_dim: int
    layers: tuple[DecoderLayerPlan, ...]


def plans_of_space(space: SearchSpace) -> list[StackPlan | DecoderPlan]:
    """The plan of each stack of the supernet, the encoder's first."""
    return [
        encoder_plan_of_space(space) if stack == "encoder" else decoder_plan_of_space(space)
        for stack in space.stacks
    ]


def plans_of_network(
    settings: ModelSettings, architecture: Architecture
) -> list[StackPlan | DecoderPlan]:
    """The plan of each stack of one network, the encoder's first."""
    plans: list[StackPlan | DecoderPlan] = []
    if architecture.encoder is not None:
        plans.append(encoder_plan_of_network(settings, architecture.encoder))
    if architecture.decoder is not None:
        plans.append(decoder_plan_of_network(settings, architecture))
    return plans


def encoder_plan_of_space(space: SearchSpace) -> StackPlan:
    """The plan of the supernet's encoder: every maximum of the space."""
    layers = []
    for number in range(space.max_layers("encoder")):
        attention = _attention_of_space(space, f"encoder.{number}", "", number)
        name = f"encoder.{number}.ffn_dim"
        layers.append(LayerPlan(attention, _largest(space, name), _own_outputs(space, name)))
    return StackPlan(_largest(space, "encoder.embed_dim"), tuple(layers))


def decoder_plan_of_space(space: SearchSpace) -> DecoderPlan:
    """The plan of the supernet's decoder: every maximum of the space."""
    with_encoder = "encoder" in space.stacks
    layers = []
    for number in range(space.max_layers("decoder")):
        name = f"decoder.{number}"
        cross = _attention_of_space(space, name, "cross_", 0) if with_encoder else None
        layers.append(
            DecoderLayerPlan(
                self_attention=_attention_of_space(space, name, "self_", number),
                cross_attention=cross,
                ffn_dim=_largest(space, f"{name}.ffn_dim"),
                own_outputs=_own_outputs(space, f"{name}.ffn_dim"),
            )
        )
    encoder_dim = _largest(space, "encoder.embed_dim") if with_encoder else 0
    return DecoderPlan(_largest(space, "decoder.embed_dim"), encoder_dim, tuple(layers))


def _attention_of_space(space: SearchSpace, layer: str, prefix: str, below: int) -> AttentionPlan:
    """The maxima of one attention block with `below` layers below it."""
    kinds = tuple(str(c) for c in space.slot(f"{layer}.{prefix}attention").choices)
    heads = [int(c) for c in space.slot(f"{layer}.{prefix}num_heads").choices]
    groups: list[int | None] = [None]
    if (name := f"{layer}.{prefix}num_kv_heads") in space.slot_index:
        groups = [int(c) for c in space.slot(name).choices]
    return AttentionPlan(
        width=max(space.model.attention_dim(h) for h in heads),
        key_width=max(space.model.key_dim(h, group) for h in heads for group in groups),
        num_heads=max(heads),
        head_dim=max(space.model.head_width(h) for h in heads),
        kinds=kinds,
        span=min(space.model.omni_span, below + 1) if "omni" in kinds else 1,
        own_outputs=_own_outputs(space, f"{layer}.{prefix}num_heads"),
    )


def _largest(space: SearchSpace, slot: str) -> int:
    return max(int(choice) for choice in space.slot(slot).choices)


def _own_outputs(space: SearchSpace, slot: str) -> tuple[int, ...]:
    """Choices below the largest, where they have output layers of their own."""
    below = sorted(int(choice) for choice in space.slot(slot).choices)[:-1]
    return tuple(below) if space.model.own_outputs else ()


def encoder_plan_of_network(settings: ModelSettings, encoder: EncoderStack) -> StackPlan:
    """The plan of one network's encoder: exactly its sizes."""
    spans = omni_spans([layer.attention for layer in encoder.layers], settings.omni_span)
    layers = tuple(
        LayerPlan(
            _attention_of_layer(
                settings, layer.attention, layer.num_heads, layer.num_kv_heads, span
            ),
            layer.ffn_dim,
        )
        for layer, span in zip(encoder.layers, spans, strict=True)
    )
    return StackPlan(encoder.embed_dim, layers)


def decoder_plan_of_network(settings: ModelSettings, architecture: Architecture) -> DecoderPlan:
    """The plan of one network's decoder: exactly its sizes."""
    decoder, encoder = decoder_of(architecture), architecture.encoder
    layers = tuple(
        DecoderLayerPlan(
            _attention_of_layer(
                settings,
                layer.self_attention,
                layer.self_num_heads,
                layer.self_num_kv_heads,
                span,
            ),
            _cross_plan(settings, layer),
            layer.ffn_dim,
        )
        for layer, span in zip(decoder.layers, decoder_spans(settings, decoder), strict=True)
    )
    return DecoderPlan(decoder.embed_dim, encoder.embed_dim if encoder else 0, layers)


def _cross_plan(settings: ModelSettings, layer: DecoderLayer) -> AttentionPlan | None:
    if layer.cross_attention is None or layer.cross_num_heads is None:
        return None
    return _attention_of_layer(settings, layer.cross_attention, layer.cross_num_heads)


def _attention_of_layer(
    settings: ModelSettings,
    kind: AttentionKind,
    num_heads: int,
    num_kv_heads: int | None = None,
    span: int = 1,
) -> AttentionPlan:
    """Exactly the sizes of one attention block."""
    width, key_width = settings.attention_dim(num_heads), settings.key_dim(num_heads, num_kv_heads)
    head_dim = settings.head_width(num_heads)
    return AttentionPlan(width, key_width, num_heads, head_dim, (kind,), span)


def decoder_spans(settings: ModelSettings, decoder: DecoderStack) -> tuple[int, ...]:
    """States per position that each decoder layer runs on."""
    return omni_spans([layer.self_attention for layer in decoder.layers], settings.omni_span)


def encoder_of(architecture: Architecture) -> EncoderStack:
    """The encoder of an architecture that is known to have one."""
    assert architecture.encoder is not None, "the model needs a network with an encoder"
    return architecture.encoder


def decoder_of(architecture: Architecture) -> DecoderStack:
    """The decoder of an architecture that is known to have one."""
    assert architecture.decoder is not None, "the model needs a network with a decoder"
    return architecture.decoder
