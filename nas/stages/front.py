"""The stage that keeps what nothing dominates."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from nas.run.duration import Asked, Plan
from nas.run.events import Event, FrontUpdated, Progress
from nas.run.layout import BASELINE_FILE, BASELINES_FILE, FRONT_FILE
from nas.search.front import Baseline, Front, FrontEntry, build_front
from nas.stages.base import Run
from nas.stages.measured import (
    measured_entries,
    with_confirmed,
)


def work(run: Run) -> Iterator[Event]:
    """Put everything that was measured together and keep what nothing dominates."""
    front = replace(found_front(run), baselines=tuple(_baselines(run)))
    run.folder.write_json(FRONT_FILE, front.to_json())
    points = tuple(_shown(entry, run.spec.objectives) for entry in front.entries)
    yield FrontUpdated("front", points, front.hypervolume)
    yield Progress("front", 1, 1, f"{len(front.entries)} networks")


def found_front(run: Run) -> Front:
    """What nothing dominates of all that was measured."""
    objectives = [run.spec.objective(name) for name in run.spec.objectives]
    entries = with_confirmed(run, measured_entries(run))
    device = run.elsewhere or ""
    front = build_front(entries, objectives, run.reference, run.spec.limits, device, run.origin)
    return replace(front, checkpoint=_checkpoint(run, entries))


def _checkpoint(run: Run, entries: Sequence[FrontEntry]) -> FrontEntry | None:
    """The checkpoint with its own scores; what the supernet makes of it differs a little."""
    if run.checkpoint is None:
        return None
    own = run.folder.read_json(BASELINE_FILE)
    for entry in entries:
        if entry.id == own["id"]:
            return replace(entry, measured={**entry.measured, **own["values"]})
    return None


def _baselines(run: Run) -> Iterator[Baseline]:
    if run.spec.baseline is not None:
        for item in run.folder.read_json(BASELINES_FILE):
            yield Baseline.from_json(item, run.domain.network)


def _shown(entry: FrontEntry, names: Sequence[str]) -> dict[str, float]:
    return dict(entry.measured) | {name: entry.value(name) for name in names}


def plan(asked: Asked) -> Plan:
    """How much there is to do."""
    return Plan("sorts what is known")
