"""What an adapter of a family has to say, and what several of them share."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any, ClassVar, NamedTuple

from search_spaces.architecture import (
    SKIP,
    Architecture,
    AttentionKind,
    DecoderLayer,
    DecoderStack,
    EncoderLayer,
    EncoderStack,
    self_attention,
)
from search_spaces.settings import Activation, ModelSettings
from search_spaces.tasks import TaskName
from supernet.encoder_models import EncoderClassifier, EncoderEmbedder
from supernet.extraction import StandAlone
from supernet.pretrained.config import Config
from supernet.pretrained.names import NamePair
from supernet.sequence_models import LanguageModel

ACTIVATIONS: Mapping[str, Activation] = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "silu": "silu",
    "swish": "silu",
}
"""Their names of activations and ours; ``gelu_new`` and torch's tanh form are one function."""
THEIR_ACTIVATIONS: Mapping[Activation, str] = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_tanh": "gelu_new",
    "silu": "silu",
}
MOST_LAYERS = 1_000
# Settings that no network reads whose layers are softmax and windows, told by kinds themselves.
UNREAD = (
    "window",
    "linear_kernel",
    "omni_kernel",
    "omni_span",
    "linformer_rank",
    "bigbird_block",
    "share_attention_weights",
    "own_outputs",
    "window_first",
)


class Sizes(NamedTuple):
    """The sizes of a network whose layers differ in their kinds of attention alone."""

    embed_dim: int
    kinds: tuple[AttentionKind, ...]
    num_heads: int
    num_kv_heads: int
    ffn_dim: int


class Family(ABC):
    """The networks of one ``model_type``, as they are read.

    Attributes:
        model_type: as ``config.json`` has it.
        classes: of its networks, whose weights are read.
        base: what names of tensors begin with, but for those of an output layer; a bare model's
            folder leaves it out.
        unused: tensors that change no output, by full match of their name without `base`.
        carried: those of them that are written again, where their width is still that of the
            network, so that the library finds all it looks for.
    """

    model_type: ClassVar[str]
    classes: ClassVar[tuple[str, ...]]
    base: ClassVar[str]
    unused: ClassVar[tuple[str, ...]] = ()
    carried: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def task_of(self, settings: ModelSettings, architecture: Architecture) -> TaskName:
        """What a network of the family does."""

    @abstractmethod
    def read(self, config: Config) -> tuple[ModelSettings, Architecture]:
        """What a configuration describes.

        Raises:
            DataError: for a setting that is not known, by name.
        """

    @abstractmethod
    def pairs(self, settings: ModelSettings, architecture: Architecture) -> Iterator[NamePair]:
        """Every parameter of a network of the family, once, with its tensor."""

    def is_unused(self, name: str) -> bool:
        """Whether a tensor, named without `base`, changes no output."""
        return any(re.fullmatch(pattern, name) for pattern in self.unused)


class StockFamily(Family):
    """A family that transformers has itself, so that its networks are written for it, too.

    Attributes:
        task: what its networks do.
        classes: of transformers; the first is the one that is written.
    """

    task: ClassVar[TaskName]

    def task_of(self, settings: ModelSettings, architecture: Architecture) -> TaskName:
        """See `Family.task_of`."""
        return self.task

    @abstractmethod
    def sized(self, settings: ModelSettings, sizes: Sizes) -> dict[str, Any]:
        """The settings of a configuration that depend on a network's sizes and kinds."""

    def problem(self, settings: ModelSettings, sizes: Sizes) -> str | None:
        """Why the family has no such network, beside what `sizes_of` finds; None if it has."""
        odd = next((kind for kind in sizes.kinds if kind != "softmax"), None)
        return None if odd is None else f"{self.model_type} knows softmax only, not {odd!r}"


class HeadsInEmbedding(StockFamily):
    """A family whose heads are parts of the embedding, each with keys."""

    def problem(self, settings: ModelSettings, sizes: Sizes) -> str | None:
        """See `StockFamily.problem`."""
        name = self.model_type
        if sizes.num_kv_heads != sizes.num_heads:
            return f"{name} has as many heads of keys as of queries, not {sizes.num_kv_heads}"
        width = settings.attention_dim(sizes.num_heads)
        if width != sizes.embed_dim:
            return (
                f"in {name} all heads together are as wide as the embedding, {sizes.embed_dim}; "
                f"here they are {width}"
            )
        return super().problem(settings, sizes)


def network_task(network: StandAlone) -> TaskName | None:
    """What a network does, as tasks of checkpoints go; None for one that no family does."""
    if isinstance(network.network, EncoderEmbedder):
        return "embedding"
    if isinstance(network.network, LanguageModel):
        return "language_modelling"
    return "classification" if isinstance(network.network, EncoderClassifier) else None


def sizes_of(architecture: Architecture) -> Sizes | str:
    """The sizes of a network; where layers differ in them, what does, as a sentence."""
    stack = architecture.decoder or architecture.encoder
    assert stack is not None
    if architecture.decoder is not None and architecture.decoder.memory_length:
        return "it has a memory of earlier segments"
    if SKIP in (_kind(layer) for layer in stack.layers):
        return "it has layers without attention"
    for name in ("num_heads", "num_kv_heads", "ffn_dim"):
        values = sorted({_size(layer, name) for layer in stack.layers})
        if len(values) > 1:
            return (
                f"its layers differ in {name} ({', '.join(map(str, values))}), which is one number "
                "for all layers there"
            )
    first = stack.layers[0]
    return Sizes(
        embed_dim=stack.embed_dim,
        kinds=tuple(_kind(layer) for layer in stack.layers),
        num_heads=_size(first, "num_heads"),
        num_kv_heads=_size(first, "num_kv_heads"),
        ffn_dim=first.ffn_dim,
    )


def _kind(layer: EncoderLayer | DecoderLayer) -> AttentionKind:
    return self_attention(layer).attention


def _size(layer: EncoderLayer | DecoderLayer, name: str) -> int:
    _, heads, groups = self_attention(layer)
    values = {"num_heads": heads, "num_kv_heads": groups or heads, "ffn_dim": layer.ffn_dim}
    return values[name]


def encoder_network(sizes: Sizes) -> Architecture:
    """An encoder of these sizes."""
    layers = tuple(
        EncoderLayer(kind, sizes.num_heads, sizes.ffn_dim, sizes.num_kv_heads)
        for kind in sizes.kinds
    )
    return Architecture(encoder=EncoderStack(sizes.embed_dim, layers))


def decoder_network(sizes: Sizes) -> Architecture:
    """A language model of these sizes."""
    layers = tuple(
        DecoderLayer(kind, sizes.num_heads, sizes.ffn_dim, self_num_kv_heads=sizes.num_kv_heads)
        for kind in sizes.kinds
    )
    return Architecture(decoder=DecoderStack(sizes.embed_dim, layers))


def num_layers(config: Config, key: str) -> int:
    """The number of layers, which is looked at before anything is built."""
    found = config.integer(key)
    if found > MOST_LAYERS:
        raise config.wrong(key, found, f"at most {MOST_LAYERS:,} layers")
    return found


def differing(one: ModelSettings, other: ModelSettings) -> list[str]:
    """Names of the settings in which networks of softmax and windows differ."""
    names = (field.name for field in fields(ModelSettings))
    return [n for n in names if n not in UNREAD and getattr(one, n) != getattr(other, n)]
