"""What the omnidirectional layers of a network take from which layer, as a file of its run.

`nas.stages.attention` writes ``attention/<id>.json``; reading and drawing it needs no torch.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal, Self

from annotated_types import Ge, Le, Len

from nas.run.folder import RunFolder
from nas.run.layout import attention_file
from nas.run.stage_digest import stage_digest
from nas.run.stages import ATTENTION, RETRAIN, Stage, network_stage
from search_spaces.architecture import Architecture, omni_spans
from search_spaces.errors import DamagedRunError, UsageError
from search_spaces.json_text import UNREADABLE, read_as

SCHEMA = 1

Share = Annotated[float, Ge(-1e-6), Le(1 + 1e-6)]
Row = tuple[Share, ...]
Rows = tuple[Row, ...]
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

    stack: Literal["encoder", "decoder"]
    layer: int
    sources: Annotated[tuple[int, ...], Len(2)]
    attention: Annotated[tuple[Rows, ...], Len(1)]
    pooling: Row

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
        found = read_as(cls, {name: value for name, value in data.items() if name != "schema"})
        if not found.layers:
            raise ValueError("it has no layers")
        spans = {one.layer: len(one.sources) for one in found.layers if one.stack == "encoder"}
        for layer in found.layers:
            for rows in layer.attention:
                _check_shape(rows, len(layer.sources), len(layer.sources))
            _check_shape((layer.pooling,), 1, len(layer.sources))
        for one in found.maps:
            for rows in (one.attention, one.pooling):
                _check_shape(rows, spans[one.layer], len(one.attention[0]))
        return found


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


def views_stage(folder: RunFolder, identity: str) -> Stage:
    """The stage that measures the views of a network, with the best weights that there are now."""
    retrained = folder.record(RETRAIN + identity) is not None
    return network_stage(
        ATTENTION,
        identity,
        ("declare", RETRAIN + identity if retrained else "supernet"),
        {attention_file(identity): "what its omni layers look at"},
    )


def read_views(folder: RunFolder, identity: str) -> OmniViews | None:
    """The views of a network; None where there are none of the weights that it has now.

    Raises:
        DamagedRunError: for a file that cannot be read, naming it.
    """
    name = attention_file(identity)
    if not (folder.path / name).is_file():
        return None
    stage = views_stage(folder, identity)
    record = folder.record(stage.name)
    if record is None or record.digest != stage_digest(folder, stage):
        return None
    try:
        return OmniViews.from_json(folder.read_json(name))
    except UNREADABLE as error:
        raise DamagedRunError(
            f"{folder.path / name} is damaged ({error}); nas show "
            f"{shlex.quote(str(folder.path))} --attention {identity} makes it anew"
        ) from error


def _check_shape(rows: Rows, count: int, width: int) -> None:
    if len(rows) != count or any(len(row) != width for row in rows):
        raise ValueError(f"there are not {count} rows of {width} shares")


def _means(rows: Rows) -> tuple[float, ...]:
    return tuple(sum(column) / len(rows) for column in zip(*rows, strict=True))
