"""The Pareto front of a run so far, also while it is still measuring, and how it has grown."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nas.objectives import OBJECTIVES, QUALITY, Objective, exact, rates
from nas.results.contents import RunContents
from nas.search.front import Front, FrontEntry, best_entries, minimised, points_of
from nas.search.pareto import hypervolume, non_dominated
from search_spaces.tasks import TASKS
from search_spaces.variation import largest

MOST_POINTS = 120


@dataclass(frozen=True)
class PartialFront:
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


def partial_front(contents: RunContents) -> PartialFront:
    """The front of a run as far as it is known; verified networks replace their observations."""
    spec, front = contents.spec, contents.front
    objectives = tuple(spec.objective(name) for name in spec.objectives)
    known = {entry.id: entry for entry in (*contents.observed, *contents.verified)}
    wanted = {*spec.objectives, *spec.limits}
    measured = tuple(entry for entry in known.values() if wanted <= entry.values.keys())
    if front is None:
        best = best_entries(measured, objectives, spec.limits)
        entries = tuple(sorted(best, key=lambda e: (e.value(objectives[0].name), e.id)))
    else:
        entries = front.entries
    retrained = tuple(result.id for result in contents.retrained)
    return PartialFront(front, objectives, entries, measured, contents.population, retrained)


def hypervolume_history(contents: RunContents, found: PartialFront) -> list[tuple[int, float]]:
    """The hypervolume after some numbers of measured networks.

    Networks beyond the limits add nothing, as in the result. Networks that were not timed count
    with their predicted costs, which may promise more than the result keeps: a finished run's curve
    ends at its result.

    Args:
        contents: of the run.
        found: its front so far.

    Returns:
        Pairs of the number of networks and the share of the box up to the reference, 0 to 1.
    """
    entries = found.measured
    if not entries:
        return []
    limits = {name: OBJECTIVES[name].minimised(most) for name, most in contents.spec.limits.items()}
    kept = [all(e.minimised(name) <= most for name, most in limits.items()) for e in entries]
    corner = minimised(reference(contents, found), found.objectives)
    points = box_shares(points_of(entries, found.objectives), corner, origin(found))
    ones, last, best, volume = np.ones(points.shape[1]), 0, points[:0], 0.0
    most = 1.0 if found.front is None else found.front.hypervolume
    curve = []
    for number in _marks(len(entries)):
        joined = np.concatenate([best, points[last:number][kept[last:number]]])
        grown = np.unique(joined[non_dominated(joined)], axis=0) if len(joined) else joined
        if not np.array_equal(grown, best):  # else the volume is what it was
            best, volume = grown, min(most, hypervolume(grown, ones))
        curve.append((number, volume))
        last = number
    return curve


def origin(found: PartialFront) -> float:
    """The quality from which the box begins: the result's, or the least so far that is below 0."""
    if found.front is not None:
        return found.front.origin
    return min([0.0, *(entry.minimised(QUALITY) for entry in found.measured)])


def box_shares(
    points: NDArray[np.float64], corner: NDArray[np.float64], origin: float
) -> NDArray[np.float64]:
    """Points ``(N, M)`` from 0, where a box begins, to 1, its corner.

    Where the box has no extent, since nothing is known yet between a value and the worst of it,
    they are 1.

    Args:
        points: to be minimised, quality first.
        corner: ``(M,)``, as the points.
        origin: the quality from which the box begins; all else begins at 0.
    """
    begin = np.zeros(len(corner))
    begin[0] = origin
    extent = corner - begin
    flat = extent == 0
    return np.where(flat, 1.0, (points - begin) / np.where(flat, 1.0, extent))


def _marks(count: int) -> list[int]:
    """All numbers up to `count`, or `MOST_POINTS` of them."""
    spread = np.linspace(1, count, min(count, MOST_POINTS))
    return [int(number) for number in np.unique(np.round(spread))]


def reference(contents: RunContents, found: PartialFront) -> Sequence[float]:
    """The point that hypervolumes are measured from: of each objective a value as people read it.

    A finished run has its own. Until then it is what that will be, as far as that is known (see
    `nas.search.front.Front`), and otherwise the worst that was measured.
    """
    if found.front is not None:
        return found.front.reference
    worst = np.max(points_of(found.measured, found.objectives), axis=0).tolist()
    worst = minimised(worst, found.objectives).tolist()  # which undoes itself
    known = _known(contents)
    return [
        known.get(objective.name, value)
        for objective, value in zip(found.objectives, worst, strict=True)
    ]


def _known(contents: RunContents) -> dict[str, float]:
    if contents.spec.evaluator is not None:
        return {}
    space = contents.space
    top = largest(space)
    counts = exact(space, top, contents.costs)
    known = {name: float(values[0]) + OBJECTIVES[name].margin for name, values in counts.items()}
    identity = space.decode(top)[0].id
    for name, profile in contents.profiles.items():
        if (timed := profile.get(identity)) is not None:
            known[name] = timed.value
    known |= rates(known, contents.costs, space)
    quality, outcomes = contents.quality, space.model.num_classes
    guessing = TASKS[space.task].guessing_loss
    if outcomes is not None:
        guessing = math.log(outcomes)
    if quality.best is not None:
        known[QUALITY] = quality.best
    elif guessing is not None:
        known[QUALITY] = quality.of_guessing(guessing)
    return known
