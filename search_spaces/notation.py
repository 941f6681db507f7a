"""An architecture as one short line, to paste into a paper, an issue or a shell.

By example::

    E512: 3*s8/2048 l4/1024 | D512: 5*s8+s4@2/2048 s8+l4@1/3072 #2acc9276145d

A stack is its embedding size and its layers, first to last: attention kind (`s`oftmax, `l`inear,
`o`mni, `w`indow) and heads, a slash, hidden units of the FFN. A variant of the kind stands in
brackets and the number of heads of keys and values, where it is another, after a k:
``w[64]8k2/1024 l[gated_delta]8/1024``; a dash is no attention, ``-/1024``. A decoder layer with
cross-attention adds its kind and heads and, after the @, how many encoder layers it sees. ``3*``
repeats a layer; ``m64`` after the decoder's embedding size is a memory of 64 positions. After the #
stands the id, which tells whether the line was copied whole; it may be left out.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable

from search_spaces.architecture import (
    ATTENTION_KINDS,
    SKIP,
    Architecture,
    AttentionKind,
    DecoderLayer,
    DecoderStack,
    EncoderLayer,
    EncoderStack,
    base_kind,
    variant_of,
)
from search_spaces.errors import ArchitectureError

EXAMPLE = "E512: 6*s8/2048 | D512: 6*s8+s8@1/2048"
MOST_LAYERS = 1_000
LONGEST_TEXT = 64_000  # characters

NOTHING = "-"  # in the place of a kind and its heads: no attention
_LETTER = {kind: kind[0] for kind in ATTENTION_KINDS if kind != SKIP}
_KIND = {letter: kind for kind, letter in _LETTER.items()}
_SIZE = "[0-9]{1,9}"
_STACK = re.compile(rf"(?P<stack>[ED])(?P<dim>{_SIZE})(?:m(?P<memory>{_SIZE}))?:(?P<layers>[^:]*)")
_VARIANT = r"[a-z0-9_]{1,32}"
_LAYER = re.compile(
    rf"(?:(?P<count>{_SIZE})\*)?(?:{NOTHING}|"
    rf"(?P<kind>[slow])(?:\[(?P<variant>{_VARIANT})\])?(?P<heads>{_SIZE})(?:k(?P<kv>{_SIZE}))?)"
    rf"(?:\+(?P<cross>[slow])(?:\[(?P<cross_variant>{_VARIANT})\])?"
    rf"(?P<cross_heads>{_SIZE})@(?P<connect>{_SIZE}))?/(?P<ffn>{_SIZE})"
)
_LOOKS = re.compile(rf"\s*[ED]{_SIZE}(m{_SIZE})?\s*:")


def looks_like_text(text: str) -> bool:
    """Whether a text begins as a line of `to_text` does."""
    return _LOOKS.match(text) is not None


def to_text(architecture: Architecture) -> str:
    """The architecture as one line of ASCII, its id at the end."""
    stacks = []
    if (encoder := architecture.encoder) is not None:
        stacks.append(_stack_text(f"E{encoder.embed_dim}", map(_encoder_layer, encoder.layers)))
    if (decoder := architecture.decoder) is not None:
        memory = f"m{decoder.memory_length}" if decoder.memory_length else ""
        head = f"D{decoder.embed_dim}{memory}"
        stacks.append(_stack_text(head, map(_decoder_layer, decoder.layers)))
    return f"{' | '.join(stacks)} #{architecture.id}"


def from_text(text: str) -> Architecture:
    """Read one line of `to_text`; spaces and line breaks may stand between layers as they like.

    Raises:
        ArchitectureError: for another form, naming the part, or for an id that does not fit.
    """
    if len(text) > LONGEST_TEXT:
        raise ArchitectureError(f"an architecture's line has at most {LONGEST_TEXT} characters")
    body, mark, wanted = text.partition("#")
    parts = [part.strip() for part in body.split("|")]
    found = [(part, _STACK.fullmatch(part)) for part in parts]
    for part, match in found:
        if match is None:
            raise ArchitectureError(
                f"{_short(part)} is no stack: a line has the form {EXAMPLE!r}, with E for the "
                "encoder and D for the decoder"
            )
    stacks = [match for _, match in found if match is not None]
    names = [match["stack"] for match in stacks]
    if names not in (["E"], ["D"], ["E", "D"]):
        raise ArchitectureError(
            f"the line has the stacks {' | '.join(names)}; allowed are E, D, or E before D"
        )
    encoders = [_encoder(match) for match in stacks if match["stack"] == "E"]
    decoders = [_decoder(match) for match in stacks if match["stack"] == "D"]
    architecture = Architecture(
        encoders[0] if encoders else None, decoders[0] if decoders else None
    )
    if mark and wanted.strip() != architecture.id:
        raise ArchitectureError(
            f"the line ends in #{_short(wanted.strip())[1:-1]}, but what it says is the network "
            f"{architecture.id}: it was not copied whole, or was changed; without the # and the "
            "id it is taken as it is"
        )
    return architecture


def _stack_text(head: str, layers: Iterable[str]) -> str:
    runs = ((layer, len(list(same))) for layer, same in itertools.groupby(layers))
    shown = [layer if count == 1 else f"{count}*{layer}" for layer, count in runs]
    return f"{head}: {' '.join(shown)}"


def _kind_text(kind: AttentionKind) -> str:
    variant = variant_of(kind)
    return _LETTER[base_kind(kind)] + (f"[{variant}]" if variant else "")


def _own_text(kind: AttentionKind, heads: int, kv_heads: int | None) -> str:
    if kind == SKIP:
        return NOTHING
    return f"{_kind_text(kind)}{heads}" + ("" if kv_heads is None else f"k{kv_heads}")


def _encoder_layer(layer: EncoderLayer) -> str:
    return f"{_own_text(layer.attention, layer.num_heads, layer.num_kv_heads)}/{layer.ffn_dim}"


def _decoder_layer(layer: DecoderLayer) -> str:
    cross = ""
    if layer.cross_attention is not None:
        cross = f"+{_kind_text(layer.cross_attention)}{layer.cross_num_heads}@{layer.ende_connect}"
    own = _own_text(layer.self_attention, layer.self_num_heads, layer.self_num_kv_heads)
    return f"{own}{cross}/{layer.ffn_dim}"


def _kind(letter: str, variant: str | None) -> AttentionKind:
    return _KIND[letter] if variant is None else f"{_KIND[letter]}:{variant}"


def _own(layer: re.Match[str]) -> tuple[AttentionKind, int, int | None]:
    """Kind, heads and heads of keys of self-attention."""
    if layer["kind"] is None:
        return SKIP, 1, None
    kv_heads = None if layer["kv"] is None else int(layer["kv"])
    return _kind(layer["kind"], layer["variant"]), int(layer["heads"]), kv_heads


def _encoder(stack: re.Match[str]) -> EncoderStack:
    if stack["memory"] is not None:
        raise ArchitectureError(f"E{stack['dim']}m{stack['memory']}: only a decoder has a memory")
    layers = []
    for layer in _layers(stack):
        if layer["cross"] is not None:
            raise ArchitectureError(f"{layer[0]!r}: an encoder layer has no cross-attention")
        kind, heads, kv_heads = _own(layer)
        layers.append(EncoderLayer(kind, heads, int(layer["ffn"]), kv_heads))
    return EncoderStack(int(stack["dim"]), tuple(layers))


def _decoder(stack: re.Match[str]) -> DecoderStack:
    layers = []
    for layer in _layers(stack):
        kind, heads, kv_heads = _own(layer)
        own = kind, heads, int(layer["ffn"])
        if layer["cross"] is None:
            layers.append(DecoderLayer(*own, self_num_kv_heads=kv_heads))
        else:
            kind = _kind(layer["cross"], layer["cross_variant"])
            cross = kind, int(layer["cross_heads"]), int(layer["connect"])
            layers.append(DecoderLayer(*own, *cross, self_num_kv_heads=kv_heads))
    return DecoderStack(int(stack["dim"]), tuple(layers), int(stack["memory"] or 0))


def _layers(stack: re.Match[str]) -> list[re.Match[str]]:
    layers: list[re.Match[str]] = []
    for word in stack["layers"].split():
        match = _LAYER.fullmatch(word)
        if match is None:
            raise ArchitectureError(
                f"{_short(word)} is no layer: kind (s, l, o or w) and heads, or a dash for no "
                "attention, a slash and the FFN's size, as in s8/2048; in a decoder with "
                "cross-attention s8+l4@1/2048"
            )
        count = int(match["count"] or 1)
        if not 0 < count <= MOST_LAYERS - len(layers):
            raise ArchitectureError(
                f"{_short(word)}: a stack has between 1 and {MOST_LAYERS} layers"
            )
        layers += [match] * count
    return layers


def _short(text: str) -> str:
    return repr(text if len(text) <= 40 else f"{text[:37]}...")
