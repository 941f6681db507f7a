"""The Pareto front of a run as far as it is known, also while it is still measuring."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nas.objectives import Objective, objective
from nas.report.contents import RunContents
from nas.report.reading import read_contents
from nas.request.spec import SearchSpec
from nas.run.folder import RunFolder
from nas.search.front import Front, FrontEntry, best_entries


@dataclass(frozen=True)
class LiveFront:
    """What nothing dominates among everything whose quality was measured so far.

    Networks are timed last, the best of them only: until then they count with the latency and
    memory that are predicted.

    Attributes:
        front: the run's result, once it has one.
        objectives: what is minimised.
        entries: of the result, or of what was measured so far; best quality first.
        measured: every network with a measured quality and a value, measured or else predicted,
            for each other objective; the dominated ones included.
        predicted: the best networks of the evolution, by prediction.
        retrained: ids of the networks that were trained from scratch.
    """

    front: Front | None
    objectives: tuple[Objective, ...]
    entries: tuple[FrontEntry, ...]
    measured: tuple[FrontEntry, ...]
    predicted: tuple[FrontEntry, ...]
    retrained: tuple[str, ...]


def live_front(folder: RunFolder) -> LiveFront:
    """Read how far a run's front is; changes nothing.

    Raises:
        DamagedRunError: for a file that is there and cannot be read.
    """
    return front_so_far(read_contents(folder))


def front_so_far(contents: RunContents) -> LiveFront:
    """How far the front of a run is that was read already."""
    spec = contents.spec
    objectives = tuple(objective(name, spec.quality) for name in spec.objectives)
    measured = _measured(contents, spec)
    front = contents.front
    entries = _best(measured, objectives, spec) if front is None else front.entries
    retrained = tuple(result.id for result in contents.retrained)
    return LiveFront(front, objectives, entries, measured, contents.population, retrained)


def find_network(contents: RunContents, identity: str) -> FrontEntry | None:
    """A network of a run by its id: from the front, else verified, observed or evolved."""
    front = () if contents.front is None else contents.front.entries
    for entries in (front, contents.verified, contents.observed, contents.population):
        for entry in entries:
            if entry.id == identity:
                return entry
    return None


def _measured(contents: RunContents, spec: SearchSpec) -> tuple[FrontEntry, ...]:
    """Verified networks replace their observations."""
    known = {entry.id: entry for entry in (*contents.observed, *contents.verified)}
    wanted = {*spec.objectives, *spec.limits}
    return tuple(entry for entry in known.values() if wanted <= entry.values.keys())


def _best(
    measured: Sequence[FrontEntry], objectives: tuple[Objective, ...], spec: SearchSpec
) -> tuple[FrontEntry, ...]:
    best = best_entries(measured, objectives, spec.limits)
    return tuple(sorted(best, key=lambda e: (e.value(objectives[0].name), e.id)))
