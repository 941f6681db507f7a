"""How a run's front has grown: hypervolume over the networks whose quality was measured."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from nas.live_front import LiveFront
from nas.objectives import BEST_BLEU, LATENCY, QUALITY
from nas.objectives.size import network_costs
from nas.report.contents import RunContents
from nas.search.front import points_of
from nas.search.pareto import hypervolume, non_dominated
from search_spaces.operators import largest

MOST_POINTS = 120


def hypervolume_curve(contents: RunContents, found: LiveFront) -> list[tuple[int, float]]:
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
    limits = contents.spec.limits
    kept = [all(e.value(name) <= most for name, most in limits.items()) for e in entries]
    points = points_of(entries, found.objectives) / np.array(reference(contents, found))
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


def _marks(count: int) -> list[int]:
    """All numbers up to `count`, or `MOST_POINTS` of them."""
    spread = np.linspace(1, count, min(count, MOST_POINTS))
    return [int(number) for number in np.unique(np.round(spread))]


def reference(contents: RunContents, found: LiveFront) -> Sequence[float]:
    """The point that hypervolumes are measured from, one value for each objective.

    A finished run has its own. Until then it is what that will be, as far as that is known (see
    `nas.search.front.Front`), and otherwise the worst that was measured.
    """
    if found.front is not None:
        return found.front.reference
    worst = np.max(points_of(found.measured, found.objectives), axis=0).tolist()
    known = _known(contents)
    return [
        known.get(objective.name, value)
        for objective, value in zip(found.objectives, worst, strict=True)
    ]


def _known(contents: RunContents) -> dict[str, float]:
    space = contents.space
    top = largest(space)
    params, flops = network_costs(space, top)[0].tolist()
    known = {"params": params, "flops": flops}
    timed = contents.profile and contents.profile.get(space.decode(top)[0].id)
    if timed:
        known[LATENCY] = timed.value
    if contents.by_bleu:
        known[QUALITY] = BEST_BLEU
    elif space.model.num_classes is not None:
        known[QUALITY] = math.log(space.model.num_classes)
    return known
