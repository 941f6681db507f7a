"""What the omnidirectional layers of a network take from which layer, as a file of its run.

`nas.stages.attention` writes ``attention/<id>.json``; reading and drawing it needs no torch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, Self

from nas.run.folder import RunFolder
from nas.run.layout import attention_file
from search_spaces.architecture import Architecture, omni_spans
from search_spaces.errors import DamagedRunError, UsageError
from search_spaces.json_text import UNREADABLE

SCHEMA = 1

Rows = tuple[tuple[float, ...], ...]
Weights = Literal["trained from scratch", "inherited"]


@dataclass(frozen=True, slots=True)
class OmniLayer:
    """Shares of one omni layer, means over the examples' real positions.

    Attributes:
        stack: ``encoder`` or ``decoder``.
        layer: its number, from 1.
        sources: the outputs it looks at: 0 for the embeddings, otherwise a layer's number.
        attention: by head, a row for each source of the queries, with the share of attention that
            each source of the keys gets from it.
        pooling: share of the features that the pooling keeps from each source.
    """

    stack: str
    layer: int
    sources: tuple[int, ...]
    attention: tuple[Rows, ...]
    pooling: tuple[float, ...]

    @property
    def by_head(self) -> Rows:
        """By head, the share of attention that each source gets."""
        return tuple(_means(rows) for rows in self.attention)

    @property
    def attended(self) -> tuple[float, ...]:
        """The share of attention that each source gets, mean over heads."""
        return _means(self.by_head)

    @property
    def name(self) -> str:
        """As people call it."""
        return f"{self.stack} layer {self.layer}"


@dataclass(frozen=True, slots=True)
class OmniMap:
    """Shares of one image, patch by patch.

    Attributes:
        example: its number in the validation split, from 0.
        layer: of the encoder.
        attention: for each source, the share of all attention that each patch gets.
        pooling: for each source, the share of each patch's features that it gives.
    """

    example: int
    layer: int
    attention: Rows
    pooling: Rows


@dataclass(frozen=True, slots=True)
class OmniViews:
    """All that was measured of a network's omni layers.

    Attributes:
        id: of the network.
        weights: those it was measured with.
        examples: validation examples that were read.
        layers: one for each omni layer that looks at several layers.
        maps: of the first examples, where they are images.
    """

    id: str
    weights: Weights
    examples: int
    layers: tuple[OmniLayer, ...]
    maps: tuple[OmniMap, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The content of the file."""
        return {"schema": SCHEMA, **asdict(self)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Views from their file.

        Raises:
            ValueError: for numbers that are no shares, or do not fit together.
            LookupError: for something that is missing.
            TypeError: for something of another kind.
        """
        if data["schema"] != SCHEMA:
            raise ValueError(f"its schema is {data['schema']!r}, known is {SCHEMA}")
        if data["weights"] not in ("trained from scratch", "inherited"):
            raise ValueError(f"weights are {data['weights']!r}")
        layers = tuple(_layer(one) for one in data["layers"])
        if not layers:
            raise ValueError("it has no layers")
        spans = {one.layer: len(one.sources) for one in layers if one.stack == "encoder"}
        return cls(
            str(data["id"]),
            data["weights"],
            int(data["examples"]),
            layers,
            tuple(_map(one, spans) for one in data["maps"]),
        )


def sees_several_layers(architecture: Architecture, max_span: int) -> bool:
    """Whether a network has an omni layer that looks at more than one layer's output."""
    stacks: list[Sequence[Any]] = []
    if architecture.encoder is not None:
        stacks.append([layer.attention for layer in architecture.encoder.layers])
    if architecture.decoder is not None:
        stacks.append([layer.self_attention for layer in architecture.decoder.layers])
    return any(span > 1 for kinds in stacks for span in omni_spans(kinds, max_span))


def check_omni(architecture: Architecture, max_span: int) -> None:
    """Refuse a network of which there is nothing to see.

    Raises:
        UsageError: when none of its layers looks at several layers.
    """
    if not sees_several_layers(architecture, max_span):
        raise UsageError(
            f"the network {architecture.id} has no omnidirectional layer that looks at several "
            "layers; choose one whose picture shows 'omni' beyond the first layer"
        )


def read_views(folder: RunFolder, identity: str) -> OmniViews | None:
    """The views of a network; None where they were not measured yet.

    Raises:
        DamagedRunError: for a file that cannot be read, naming it.
    """
    name = attention_file(identity)
    if not (folder.path / name).is_file():
        return None
    try:
        return OmniViews.from_json(folder.read_json(name))
    except UNREADABLE as error:
        raise DamagedRunError(
            f"{folder.path / name} is damaged ({error}); nas show {folder.path} --attention "
            f"{identity} makes it anew"
        ) from error


def _layer(data: Mapping[str, Any]) -> OmniLayer:
    sources = tuple(int(source) for source in data["sources"])
    attention = tuple(_rows(rows, len(sources), len(sources)) for rows in data["attention"])
    if data["stack"] not in ("encoder", "decoder") or not attention or len(sources) < 2:
        raise ValueError("a layer has no stack, heads or sources")
    pooling = _rows([data["pooling"]], 1, len(sources))[0]
    return OmniLayer(data["stack"], int(data["layer"]), sources, attention, pooling)


def _map(data: Mapping[str, Any], spans: Mapping[int, int]) -> OmniMap:
    layer = int(data["layer"])
    count, patches = spans[layer], len(data["attention"][0])
    parts = (_rows(data[name], count, patches) for name in ("attention", "pooling"))
    return OmniMap(int(data["example"]), layer, *parts)


def _rows(data: Sequence[Sequence[Any]], count: int, width: int) -> Rows:
    rows = tuple(tuple(_share(number) for number in row) for row in data)
    if len(rows) != count or any(len(row) != width for row in rows):
        raise ValueError(f"there are not {count} rows of {width} shares")
    return rows


def _share(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{value!r} is no share")
    if not -1e-6 <= value <= 1 + 1e-6:
        raise ValueError(f"{value!r} is not between 0 and 1")
    return float(value)


def _means(rows: Rows) -> tuple[float, ...]:
    return tuple(sum(column) / len(rows) for column in zip(*rows, strict=True))
