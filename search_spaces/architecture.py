"""A network, and nothing else: frozen, hashable, canonical.

Genes of layers that are not there do not exist, so two equal networks are one object with one id.
What all networks of a space share (patch size, norm placement, kernels) is `ModelSettings`.
"""

from __future__ import annotations

import difflib
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from functools import cached_property
from typing import Any, NamedTuple, Self, get_args

from search_spaces.errors import ArchitectureError, UsageError
from search_spaces.settings import LinearKernel

AttentionKind = str
"""``kind`` or ``kind:variant``: ``softmax``, ``window:64`` (positions), ``linear:gated_delta``."""
SKIP: AttentionKind = "skip"
"""No attention at all: the layer is its FFN. A control, and the cheapest of all."""
ATTENTION_KINDS = ("softmax", "linear", "omni", "window", SKIP)
LINEAR_KERNELS: tuple[LinearKernel, ...] = get_args(LinearKernel)
LARGEST_WINDOW = 1_000_000

ID_LENGTH = 12


def base_kind(attention: AttentionKind) -> str:
    """``linear`` of ``linear:gated_delta``."""
    return attention.partition(":")[0]


def variant_of(attention: AttentionKind) -> str:
    """``gated_delta`` of ``linear:gated_delta``; empty where the settings of the space decide."""
    return attention.partition(":")[2]


def kind_problem(attention: object) -> str | None:
    """What is wrong with a kind of attention, as the end of a sentence; None for one that is."""
    kind, colon, variant = attention.partition(":") if isinstance(attention, str) else ("", "", "")
    if kind not in ATTENTION_KINDS or (colon and kind not in ("linear", "window")):
        return f"allowed are {', '.join(ATTENTION_KINDS)}, window:POSITIONS and linear:KERNEL"
    if not colon:
        return None
    if kind == "linear":
        kernels = ", ".join(f"linear:{name}" for name in LINEAR_KERNELS)
        return None if variant in LINEAR_KERNELS else f"allowed are {kernels}"
    size = int(variant) if variant.isascii() and variant.isdigit() and len(variant) < 8 else 0
    fits = 1 <= size <= LARGEST_WINDOW and str(size) == variant
    return None if fits else f"a window is window:16, with 1 to {LARGEST_WINDOW:,} positions"


def kind_order(attention: AttentionKind) -> tuple[int, int]:
    """The place of a kind among others: kinds in their usual order, small windows first."""
    kind, variant = base_kind(attention), variant_of(attention)
    number = ATTENTION_KINDS.index(kind)
    if not variant:
        return number, -1
    return number, int(variant) if kind == "window" else LINEAR_KERNELS.index(variant)


@dataclass(frozen=True, slots=True)
class EncoderLayer:
    """One encoder layer: attention kind, number of heads and hidden units of the FFN.

    ``num_kv_heads`` is the number of heads of keys and values, each of which serves a group of
    queries' heads; None is as many as heads, and so is their number. A layer of the kind ``skip``
    has no heads, which is written as one head.
    """

    attention: AttentionKind
    num_heads: int
    ffn_dim: int
    num_kv_heads: int | None = None

    def __post_init__(self) -> None:
        _check_layer(self)
        _check_heads(self, "")


@dataclass(frozen=True, slots=True)
class DecoderLayer:
    """One decoder layer; the three cross-attention fields are None in a decoder-only network.

    ``ende_connect`` k means that cross-attention sees the outputs of the last k encoder layers,
    joined along time. ``self_num_kv_heads`` is as ``num_kv_heads`` of an encoder layer, and so are
    the heads of ``skip``, which only self-attention may be.
    """

    self_attention: AttentionKind
    self_num_heads: int
    ffn_dim: int
    cross_attention: AttentionKind | None = None
    cross_num_heads: int | None = None
    ende_connect: int | None = None
    self_num_kv_heads: int | None = None

    def __post_init__(self) -> None:
        _check_layer(self)
        _check_heads(self, "self_")
        cross = (self.cross_attention, self.cross_num_heads, self.ende_connect)
        if any(part is None for part in cross) != all(part is None for part in cross):
            raise ArchitectureError(
                "a decoder layer needs all of cross_attention, cross_num_heads and ende_connect, "
                f"or none of them (decoder-only); given {cross}"
            )
        if self.cross_attention == SKIP:
            raise ArchitectureError(
                f"cross_attention is {SKIP!r}: without it a decoder would not see the source; "
                "choose another kind"
            )


class SelfAttention(NamedTuple):
    """The self-attention of a layer of either stack, under the names that it has in an encoder."""

    attention: AttentionKind
    num_heads: int
    num_kv_heads: int | None


def self_attention(layer: EncoderLayer | DecoderLayer) -> SelfAttention:
    """Of a layer."""
    if isinstance(layer, EncoderLayer):
        return SelfAttention(layer.attention, layer.num_heads, layer.num_kv_heads)
    return SelfAttention(layer.self_attention, layer.self_num_heads, layer.self_num_kv_heads)


# Looked up once: networks are read by the ten thousand.
_FIELDS = {kind: fields(kind) for kind in (EncoderLayer, DecoderLayer)}


@dataclass(frozen=True, slots=True)
class EncoderStack:
    """The encoder: one embedding size and its layers, first to last."""

    embed_dim: int
    layers: tuple[EncoderLayer, ...]

    def __post_init__(self) -> None:
        _check_stack(self)


@dataclass(frozen=True, slots=True)
class DecoderStack:
    """The decoder: one embedding size and its layers, first to last.

    ``memory_length`` is the number of positions of earlier segments that every layer of a language
    model still sees; 0 is no memory. Only softmax attention has a past that can be cut.
    """

    embed_dim: int
    layers: tuple[DecoderLayer, ...]
    memory_length: int = 0

    def __post_init__(self) -> None:
        _check_stack(self)
        _check_memory(self)


@dataclass(frozen=True)
class Architecture:
    """A transformer: an encoder, a decoder, or both.

    Raises:
        ArchitectureError: on construction, for a missing stack, a size that is not a positive
            integer, an unknown attention kind or an `ende_connect` deeper than the encoder.
    """

    encoder: EncoderStack | None = None
    decoder: DecoderStack | None = None

    def __post_init__(self) -> None:
        if self.encoder is None and self.decoder is None:
            raise ArchitectureError("an architecture needs an encoder, a decoder or both")
        if self.encoder is not None and self.decoder is not None and self.decoder.memory_length:
            raise ArchitectureError(
                f"memory_length is {self.decoder.memory_length}, but the network has an encoder: "
                "a memory of earlier segments belongs to language models, leave it out"
            )
        for layer in self.decoder.layers if self.decoder else ():
            depth = len(self.encoder.layers) if self.encoder else 0
            if (layer.ende_connect or 0) > depth:
                raise ArchitectureError(
                    f"ende_connect is {layer.ende_connect}, but the encoder has {depth} layers"
                )

    @cached_property
    def id(self) -> str:
        """First 12 hex digits of the sha256 of the sorted JSON: equal networks, equal ids."""
        text = json.dumps(self.to_json(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:ID_LENGTH]

    def to_json(self) -> dict[str, Any]:
        """The JSON form; what is not there (a stack, cross-attention, a memory) is left out."""
        stacks = {"encoder": self.encoder, "decoder": self.decoder}
        return {name: _stack_json(stack) for name, stack in stacks.items() if stack is not None}

    @classmethod
    def from_json(cls, data: object) -> Self:
        """Read the JSON form.

        Raises:
            ArchitectureError: naming the first key that is missing, unknown or of a wrong type.
        """
        if not isinstance(data, Mapping):
            raise ArchitectureError(f"an architecture is a JSON object, not {type(data).__name__}")
        unknown = set(data) - {"encoder", "decoder"}
        if unknown:
            raise ArchitectureError(
                f"unknown key {sorted(unknown)[0]!r} in an architecture; "
                "allowed are 'encoder' and 'decoder'"
            )
        encoder, decoder = data.get("encoder"), data.get("decoder")
        return cls(
            encoder=None if encoder is None else _encoder_from_json(encoder),
            decoder=None if decoder is None else _decoder_from_json(decoder),
        )


def _check_layer(layer: EncoderLayer | DecoderLayer) -> None:
    for field in _FIELDS[type(layer)]:
        value = getattr(layer, field.name)
        if value is None and field.default is None:
            continue
        if field.name.endswith("attention"):
            if (problem := kind_problem(value)) is not None:
                raise ArchitectureError(f"{field.name} is {value!r}; {problem}")
        else:
            _check_size(field.name, value)


def _check_heads(layer: EncoderLayer | DecoderLayer, prefix: str) -> None:
    """Heads of keys and values serve groups of equal size; as many as heads is written None.

    Without attention there are none, and all that is written of them means the same.
    """
    heads, kv_heads = f"{prefix}num_heads", f"{prefix}num_kv_heads"
    if getattr(layer, f"{prefix}attention") == SKIP:
        object.__setattr__(layer, heads, 1)
        object.__setattr__(layer, kv_heads, None)
    number, groups = getattr(layer, heads), getattr(layer, kv_heads)
    if groups is None:
        return
    if number % groups:
        raise ArchitectureError(
            f"{kv_heads} is {groups}, which does not divide {heads} = {number}; each head of keys "
            "and values serves as many heads of queries"
        )
    if groups == number:
        object.__setattr__(layer, kv_heads, None)


def _check_stack(stack: EncoderStack | DecoderStack) -> None:
    _check_size("embed_dim", stack.embed_dim)
    if not stack.layers:
        raise ArchitectureError("a stack needs at least one layer; given none")


def _check_memory(stack: DecoderStack) -> None:
    length = stack.memory_length
    if not isinstance(length, int) or isinstance(length, bool) or length < 0:
        raise ArchitectureError(
            f"memory_length must be a positive integer, or 0 for no memory; given {length!r}"
        )
    for number, layer in enumerate(stack.layers if length else (), start=1):
        if layer.self_attention != "softmax":
            raise ArchitectureError(
                f"memory_length is {length}, but self-attention of decoder layer {number} is "
                f"{layer.self_attention!r}; a memory needs 'softmax' in every layer"
            )


def _check_size(name: str, value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ArchitectureError(f"{name} must be a positive integer; given {value!r}")


def _stack_json(stack: EncoderStack | DecoderStack) -> dict[str, Any]:
    layers = [_layer_json(layer) for layer in stack.layers]
    memory = stack.memory_length if isinstance(stack, DecoderStack) else 0
    rest = {"memory_length": memory} if memory else {}
    return {"embed_dim": stack.embed_dim, "layers": layers, **rest}


def _layer_json(layer: EncoderLayer | DecoderLayer) -> dict[str, Any]:
    values = ((field.name, getattr(layer, field.name)) for field in _FIELDS[type(layer)])
    return {name: value for name, value in values if value is not None}


def _encoder_from_json(data: object) -> EncoderStack:
    embed_dim, layers = _stack_parts("encoder", data, {f.name for f in fields(EncoderLayer)})
    return EncoderStack(embed_dim, tuple(EncoderLayer(**layer) for layer in layers))


def _decoder_from_json(data: object) -> DecoderStack:
    memory_length = 0
    if isinstance(data, Mapping) and "memory_length" in data:
        memory_length = data["memory_length"]
        data = {key: value for key, value in data.items() if key != "memory_length"}
    embed_dim, layers = _stack_parts("decoder", data, {f.name for f in fields(DecoderLayer)})
    decoder_layers = tuple(DecoderLayer(**layer) for layer in layers)
    return DecoderStack(embed_dim, decoder_layers, memory_length)


def _stack_parts(name: str, data: object, allowed: set[str]) -> tuple[int, list[dict[str, Any]]]:
    if not isinstance(data, Mapping) or set(data) != {"embed_dim", "layers"}:
        also = " (and 'memory_length' where there is one)" if name == "decoder" else ""
        raise ArchitectureError(
            f"{name} must be an object with exactly 'embed_dim' and 'layers'{also}"
        )
    if not isinstance(data["layers"], list):
        raise ArchitectureError(f"{name}.layers must be a list of objects")
    kind = EncoderLayer if name == "encoder" else DecoderLayer
    required = {field.name for field in fields(kind) if field.default is MISSING}
    for number, layer in enumerate(data["layers"], start=1):
        keys = set(layer) if isinstance(layer, Mapping) else set()
        if not required <= keys <= allowed:
            raise ArchitectureError(
                f"layer {number} of {name} has the keys {sorted(keys)}; "
                f"needed are {sorted(required)}, allowed {sorted(allowed)}"
            )
    return data["embed_dim"], list(data["layers"])


def omni_spans(kinds: Sequence[AttentionKind], max_span: int) -> tuple[int, ...]:
    """How many layer outputs each layer looks at: 1, or more where the layer is omnidirectional.

    Layer l (from 1) of kind ``omni`` sees the outputs of the layers since the previous omni layer
    p, that one's output included and the embeddings being output 0, at most `max_span` of them:
    ``min(max_span, l - p)``.

    Source: OmniNet, section 3.2.4 (partitioned OmniNet), with the partition as a gene per layer.
    """
    spans = []
    previous = 0
    for number, kind in enumerate(kinds, start=1):
        omni = base_kind(kind) == "omni"
        spans.append(min(max_span, number - previous) if omni else 1)
        previous = number if omni else previous
    return tuple(spans)


def find_id(given: str, ids: Iterable[str], what: str, letters: int = 1) -> str:
    """The one id that is given in full or by its first letters.

    Args:
        given: what somebody typed.
        ids: of the networks there are.
        what: such a network is called, for the message.
        letters: how many are needed at least.

    Raises:
        UsageError: when it is that of several, naming them, or of none, naming the nearest.
    """
    known = sorted(set(ids))
    if given in known:
        return given
    found = [one for one in known if len(given) >= letters and one.startswith(given)]
    if len(found) == 1:
        return found[0]
    if found:
        raise UsageError(f"several ids begin with {given}: {', '.join(found)}")
    if given and len(given) < letters and any(one.startswith(given) for one in known):
        raise UsageError(
            f"of an id at least the first {letters} letters are needed; given {given!r}"
        )
    nearest = difflib.get_close_matches(given, known, n=1, cutoff=0.0)
    hint = f"the nearest id is {nearest[0]}" if nearest else "there is none yet"
    raise UsageError(f"{given!r} is the id of no {what}; {hint}")
