"""What the omnidirectional layers of a network take from which layer, as a file of its run.

`nas.stages.attention` writes ``attention/<id>.json``; reading and drawing it needs no torch.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, Self

from nas.run.folder import RunFolder
from nas.run.layout import attention_file
from nas.run.stage_digest import stage_digest
from nas.run.stages import ATTENTION, RETRAIN, Stage, network_stage
from search_spaces.architecture import Architecture
from search_spaces.errors import DamagedRunError, UsageError
from search_spaces.json_text import UNREADABLE, read_as
from search_spaces.omni import OmniLayer, OmniMap, Rows, omni_layers

SCHEMA = 1

Weights = Literal["trained from scratch", "inherited"]


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


def check_omni(architecture: Architecture, max_span: int) -> None:
    """Refuse a network of which there is nothing to see.

    Raises:
        UsageError: when none of its layers looks at several layers.
    """
    if not omni_layers(architecture, max_span):
        raise UsageError(
            f"the network {architecture.id} has no omnidirectional layer that looks at several "
            "layers, so that there is nothing to look into; choose one in which layers of another "
            "kind stand below an 'omni', which looks at them and at the last omni layer before"
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
