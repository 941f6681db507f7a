"""The result of a run: networks that nothing dominates, as kept in ``pareto.json``."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from nas.objectives import OBJECTIVES, QUALITY, Objective
from nas.pareto import hypervolume, knee_index, non_dominated
from nas.run_folder import RunFolder
from search_spaces.architecture import Architecture
from search_spaces.errors import DamagedRunError, NasError, UsageError

FRONT_FILE = "pareto.json"
SCHEMA = 1


@dataclass(frozen=True)
class FrontEntry:
    """One network of the front.

    Attributes:
        id: the architecture's id.
        architecture: the network.
        measured: name → value, every objective among them.
        predicted: name → value, as far as something was predicted.
    """

    id: str
    architecture: Architecture
    measured: Mapping[str, float]
    predicted: Mapping[str, float]

    def to_json(self) -> dict[str, Any]:
        """The entry as it stands in ``pareto.json``."""
        return {
            "id": self.id,
            "architecture": self.architecture.to_json(),
            "measured": dict(self.measured),
            "predicted": dict(self.predicted),
        }


@dataclass(frozen=True)
class Front:
    """The front and its worth.

    Attributes:
        objectives: what was minimised.
        reference: one value per objective; a network there would be of no use.
        entries: sorted by the first objective, then by id.
        hypervolume: share, 0 to 1, of the box between zero and the reference that is dominated.
    """

    objectives: tuple[Objective, ...]
    reference: tuple[float, ...]
    entries: tuple[FrontEntry, ...]
    hypervolume: float

    def points(self) -> NDArray[np.float64]:
        """The measured objectives, ``(N, M)``."""
        return points_of(self.entries, self.objectives)

    def to_json(self) -> dict[str, Any]:
        """The content of ``pareto.json``."""
        objectives = [
            {**objective.to_json(), "reference": reference}
            for objective, reference in zip(self.objectives, self.reference, strict=True)
        ]
        return {
            "schema": SCHEMA,
            "objectives": objectives,
            "front": [entry.to_json() for entry in self.entries],
            "hypervolume": self.hypervolume,
        }

    @classmethod
    def from_json(cls, data: Any) -> Self:
        """Read ``pareto.json``.

        Raises:
            DamagedRunError: when a part is missing or of another schema.
        """
        try:
            if data["schema"] != SCHEMA:
                raise DamagedRunError(
                    f"{FRONT_FILE} has schema {data['schema']}; this version reads {SCHEMA}"
                )
            objectives = tuple(_objective(item) for item in data["objectives"])
            entries = tuple(_entry(item, objectives) for item in data["front"])
            if not entries:
                raise ValueError("the front is empty")
            return cls(
                objectives=objectives,
                reference=tuple(_number(item["reference"]) for item in data["objectives"]),
                entries=entries,
                hypervolume=_number(data["hypervolume"]),
            )
        except (LookupError, TypeError, ValueError, AttributeError, UsageError) as error:
            raise DamagedRunError(f"{FRONT_FILE} is damaged: {error}") from error


def _objective(item: Mapping[str, Any]) -> Objective:
    metric, unit = item["metric"], item["unit"]
    if not (isinstance(metric, str) and isinstance(unit, str)):
        raise ValueError(f"the objective {item['name']} has no metric and unit")
    return replace(OBJECTIVES[item["name"]], metric=metric, unit=unit)


def _entry(item: Mapping[str, Any], objectives: Sequence[Objective]) -> FrontEntry:
    architecture = Architecture.from_json(item["architecture"])
    if not isinstance(item["id"], str):
        raise ValueError(f"{item['id']!r} is not an id")
    measured = {name: _number(value) for name, value in item["measured"].items()}
    predicted = {name: _number(value) for name, value in item["predicted"].items()}
    for objective in objectives:
        if objective.name not in measured:
            raise ValueError(f"the network {architecture.id} has no measured {objective.name}")
    return FrontEntry(item["id"], architecture, measured, predicted)


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{value!r} is not a finite number")
    return value


def points_of(
    entries: Sequence[FrontEntry], objectives: Sequence[Objective]
) -> NDArray[np.float64]:
    """The measured objectives of the entries, ``(N, M)``."""
    rows = [[entry.measured[o.name] for o in objectives] for entry in entries]
    return np.array(rows, dtype=np.float64).reshape(len(rows), len(objectives))


def build_front(
    entries: Sequence[FrontEntry],
    objectives: Sequence[Objective],
    reference: Sequence[float],
    limits: Mapping[str, float],
) -> Front:
    """The networks within the limits that no other dominates.

    Raises:
        NasError: when no network keeps the limits.
    """
    kept = [e for e in entries if all(e.measured[name] <= most for name, most in limits.items())]
    if not kept:
        wanted = ", ".join(f"{name} ≤ {value:g}" for name, value in limits.items())
        raise NasError(
            f"none of the {len(entries)} measured networks keeps {wanted}; search longer "
            "(--preset standard) or raise the limit"
        )
    points = points_of(kept, objectives)
    best = [entry for entry, good in zip(kept, non_dominated(points), strict=True) if good]
    unique = {entry.id: entry for entry in best}.values()
    ordered = sorted(unique, key=lambda entry: (entry.measured[objectives[0].name], entry.id))
    scaled = points_of(ordered, objectives) / np.array(reference)
    volume = round(hypervolume(scaled, np.ones(len(objectives))), 9)
    return Front(tuple(objectives), tuple(reference), tuple(ordered), volume)


def read_front(folder: RunFolder) -> Front:
    """The front of a run.

    Raises:
        UsageError: when the run has none yet.
        DamagedRunError: when it cannot be read.
    """
    if not (folder.path / FRONT_FILE).exists():
        raise UsageError(f"{folder.path} has no front yet; nas resume {folder.path} finishes it")
    return Front.from_json(folder.read_json(FRONT_FILE))


def pick(front: Front, how: str) -> FrontEntry:
    """Choose one network.

    Args:
        front: where from.
        how: ``best`` (lowest loss), ``knee`` (the network furthest from the line between the
            ends of the front, see `nas.pareto.knee_index`), or an id of the front.

    Raises:
        UsageError: for an id that is not on the front, naming the nearest.
    """
    if how == "best":
        return min(front.entries, key=lambda entry: (entry.measured[QUALITY], entry.id))
    if how == "knee":
        return front.entries[knee_index(front.points())]
    ids = [entry.id for entry in front.entries]
    matches = [entry for entry in front.entries if len(how) >= 4 and entry.id.startswith(how)]
    if len(matches) == 1:
        return matches[0]
    nearest = difflib.get_close_matches(how, ids, n=1, cutoff=0.0)
    raise UsageError(
        f"{how!r} is neither 'knee' nor 'best' nor the id of a network on the front; "
        f"the nearest id is {nearest[0]}"
    )
