"""Networks in the configuration format of HAT, which is YAML with one list for each gene.

HAT says ``decoder-arbitrary-ende-attn`` -1 for the last encoder layer, 1 for the last two and 2
for the last three; those are `ende_connect` 1, 2 and 3. It has softmax attention only.

Source: Wang et al., HAT: Hardware-Aware Transformers (2020), and its released ``*.yml`` files.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

from search_spaces.architecture import (
    Architecture,
    DecoderLayer,
    DecoderStack,
    EncoderLayer,
    EncoderStack,
)
from search_spaces.errors import ArchitectureError
from search_spaces.settings import ModelSettings

SUFFIX = "-subtransformer"
NUMBERS = ("encoder-embed-dim", "decoder-embed-dim", "encoder-layer-num", "decoder-layer-num")
ENCODER_LISTS = ("encoder-self-attention-heads-all", "encoder-ffn-embed-dim-all")
CONNECT = "decoder-arbitrary-ende-attn-all"
DECODER_LISTS = (
    "decoder-self-attention-heads-all",
    "decoder-ffn-embed-dim-all",
    "decoder-ende-attention-heads-all",
    CONNECT,
)
KEYS = (*NUMBERS, *ENCODER_LISTS, *DECODER_LISTS)

# Value in the file → number of encoder layers that cross-attention sees.
ENDE_CONNECT = {-1: 1, 1: 2, 2: 3}
_CONNECT_VALUE = {connect: value for value, connect in ENDE_CONNECT.items()}

LARGEST_FILE = 64_000  # characters; a network of a thousand layers has less
_EXPLAINED = (
    "# for arbitrary encoder decoder attention. -1 means attending to last one encoder layer\n"
    "# 1 means last two encoder layers, 2 means last three encoder layers\n"
)


def from_hat(text: str) -> Architecture:
    """Read a network.

    Lists may be longer than the number of layers, as in HAT's own files; the rest is not used.

    Raises:
        ArchitectureError: for what is no YAML or more than ``key: number`` and ``key: [numbers]``
            (nested values, aliases, tags), for a missing, unknown or repeated key, and for a value
            that HAT does not have.
    """
    genes = {key.removesuffix(SUFFIX): value for key, value in _plain(text).items()}
    missing = [key for key in KEYS if key not in genes]
    if missing:
        raise ArchitectureError(f"the key {missing[0] + SUFFIX!r} is missing")
    depths = {stack: _number(genes, f"{stack}-layer-num") for stack in ("encoder", "decoder")}
    for stack, depth in depths.items():
        if depth < 1:
            raise ArchitectureError(f"{stack}-layer-num{SUFFIX} is {depth}; at least 1 is needed")
    encoder = [_list(genes, key, depths["encoder"]) for key in ENCODER_LISTS]
    decoder = [_list(genes, key, depths["decoder"]) for key in DECODER_LISTS]
    return Architecture(
        EncoderStack(
            _number(genes, "encoder-embed-dim"),
            tuple(EncoderLayer("softmax", *layer) for layer in zip(*encoder, strict=True)),
        ),
        DecoderStack(
            _number(genes, "decoder-embed-dim"),
            tuple(
                DecoderLayer("softmax", heads, ffn, "softmax", cross, _connected(connect))
                for heads, ffn, cross, connect in zip(*decoder, strict=True)
            ),
        ),
    )


def to_hat(architecture: Architecture, settings: ModelSettings | None = None) -> str:
    """The network as HAT's configuration file says it.

    Args:
        architecture: of encoder and decoder, with softmax attention everywhere.
        settings: of its space, where it is known: HAT fixes the width of attention, not of a head.

    Raises:
        ArchitectureError: with what HAT cannot say.
    """
    problem = _unsayable(architecture)
    if problem is None and settings is not None and settings.qkv_dim is None:
        problem = (
            f"in this space a head is {settings.head_dim} wide, and more heads make attention "
            "wider; in HAT attention has a fixed width (qkv_dim)"
        )
    if problem is not None:
        raise ArchitectureError(f"HAT's format cannot say this network: {problem}")
    encoder, decoder = architecture.encoder, architecture.decoder
    assert encoder is not None and decoder is not None
    return "\n".join(
        [
            _lines(encoder.embed_dim, decoder.embed_dim, "embed-dim"),
            _lines(
                [layer.ffn_dim for layer in encoder.layers],
                [layer.ffn_dim for layer in decoder.layers],
                "ffn-embed-dim-all",
            ),
            _lines(len(encoder.layers), len(decoder.layers), "layer-num"),
            _lines(
                [layer.num_heads for layer in encoder.layers],
                [layer.self_num_heads for layer in decoder.layers],
                "self-attention-heads-all",
            )
            + _line(DECODER_LISTS[2], [layer.cross_num_heads for layer in decoder.layers]),
            _EXPLAINED
            + _line(CONNECT, [_CONNECT_VALUE[layer.ende_connect or 0] for layer in decoder.layers]),
        ]
    )


def _lines(encoder: object, decoder: object, gene: str) -> str:
    return _line(f"encoder-{gene}", encoder) + _line(f"decoder-{gene}", decoder)


def _line(key: str, value: object) -> str:
    return f"{key}{SUFFIX}: {value}\n"


def _unsayable(architecture: Architecture) -> str | None:
    """What HAT has no words for, in one sentence; None when there is nothing."""
    encoder, decoder = architecture.encoder, architecture.decoder
    if encoder is None or decoder is None:
        return "it has no encoder or no decoder, and HAT's networks translate"
    kinds = {layer.attention for layer in encoder.layers}
    kinds |= {layer.self_attention for layer in decoder.layers}
    kinds |= {layer.cross_attention for layer in decoder.layers if layer.cross_attention}
    if kinds != {"softmax"}:
        other = ", ".join(sorted(kinds - {"softmax"}))
        return f"it has attention of the kind {other}, and HAT has softmax only"
    groups = [layer.num_kv_heads for layer in encoder.layers]
    if any([*groups, *(layer.self_num_kv_heads for layer in decoder.layers)]):
        return "several of its heads share keys and values, and HAT's heads have their own"
    for number, layer in enumerate(decoder.layers, start=1):
        if layer.ende_connect is None:
            return f"decoder layer {number} has no cross-attention"
        if layer.ende_connect not in _CONNECT_VALUE:
            return (
                f"ende_connect of decoder layer {number} is {layer.ende_connect}, and HAT's "
                f"decoders see at most {max(_CONNECT_VALUE)} encoder layers"
            )
    return None


def _plain(text: str) -> Mapping[str, Any]:
    """A mapping of keys to numbers and lists of numbers, read without building anything else."""
    if len(text) > LARGEST_FILE:
        raise ArchitectureError(f"a network in HAT's format has at most {LARGEST_FILE} characters")
    try:
        _check_events(text)
        found = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError) as error:
        raise ArchitectureError(f"no YAML: {' '.join(str(error).split())}") from None
    if not isinstance(found, dict):
        raise ArchitectureError(
            f"no network in HAT's format: lines such as '{NUMBERS[0]}{SUFFIX}: 512' are needed"
        )
    for key in found:
        if not isinstance(key, str) or key.removesuffix(SUFFIX) not in KEYS:
            raise ArchitectureError(
                f"unknown key {key!r}; HAT's networks have {', '.join(KEYS)}, "
                f"each ending in {SUFFIX}"
            )
        if not key.endswith(SUFFIX) and key + SUFFIX in found:
            raise ArchitectureError(f"{key} is given with and without {SUFFIX}")
    return found


def _check_events(text: str) -> None:
    """Refuse, before anything is built, what a network never has.

    The parser yields events one after the other, so that neither nested aliases nor thousands of
    brackets take memory or the stack.
    """
    depth, keys, in_value = 0, set[str](), False
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        line = event.start_mark.line + 1
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) is not None:
            raise ArchitectureError(f"line {line}: aliases and anchors have no place here")
        if getattr(event, "tag", None) is not None:
            raise ArchitectureError(f"line {line}: the tag {event.tag!r} has no place here")
        if isinstance(event, yaml.MappingStartEvent | yaml.SequenceStartEvent):
            depth += 1
            if depth > 2 or (depth == 2 and isinstance(event, yaml.MappingStartEvent)):
                raise ArchitectureError(
                    f"line {line}: every value is a number or a list of numbers"
                )
        elif isinstance(event, yaml.MappingEndEvent | yaml.SequenceEndEvent):
            depth -= 1
            in_value = False
        elif isinstance(event, yaml.ScalarEvent) and depth == 1:
            if not in_value and event.value in keys:
                raise ArchitectureError(f"line {line}: the key {event.value!r} is there twice")
            keys |= set() if in_value else {event.value}
            in_value = not in_value
        if depth == 2:
            in_value = True


def _number(genes: Mapping[str, Any], key: str) -> int:
    value = genes[key]
    if not isinstance(value, int) or isinstance(value, bool):
        raise ArchitectureError(f"{key}{SUFFIX} is {value!r}; a whole number is needed")
    return value


def _list(genes: Mapping[str, Any], key: str, depth: int) -> list[int]:
    values = genes[key]
    fine = isinstance(values, list) and all(type(value) is int for value in values)
    if not fine or len(values) < depth:
        raise ArchitectureError(
            f"{key}{SUFFIX} is {str(values)[:60]}; a list of at least {depth} whole numbers is "
            "needed, one for each layer"
        )
    return list(values[:depth])


def _connected(value: int) -> int:
    if value not in ENDE_CONNECT:
        allowed = ", ".join(map(str, ENDE_CONNECT))
        raise ArchitectureError(f"{CONNECT}{SUFFIX} holds {value}; allowed are {allowed}")
    return ENDE_CONNECT[value]
