"""Pareto mathematics on plain arrays, everything to be minimised.

Shapes: N points, M objectives. Equal points do not dominate each other, so copies of a
non-dominated point are all non-dominated. NaN and infinity are refused: a network without a
finite score must be sorted out before it is compared.
"""

from __future__ import annotations

from itertools import zip_longest

import moocore
import numpy as np
from numpy.typing import ArrayLike, NDArray

from nas.search.farthest import farthest_first
from search_spaces.errors import UsageError

Points = NDArray[np.float64]


def non_dominated(points: ArrayLike) -> NDArray[np.bool_]:
    """Which points no other point dominates.

    Args:
        points: ``(N, M)``, to be minimised.

    Returns:
        ``(N,)`` mask.

    Raises:
        UsageError: for another shape, no objective, NaN or infinity.
    """
    mask: NDArray[np.bool_] = non_dominated_ranks(points) == 0
    return mask


def non_dominated_ranks(points: ArrayLike) -> NDArray[np.int64]:
    """How many layers of better points lie before each point.

    Rank 0 is the non-dominated set, rank 1 what is non-dominated once rank 0 is taken away, and
    so on.

    Args:
        points: ``(N, M)``, to be minimised.

    Returns:
        ``(N,)`` ranks from 0.

    Raises:
        UsageError: see `non_dominated`.
    """
    checked = _checked(points)
    if len(checked) == 0:
        return np.zeros(0, dtype=np.int64)
    ranks: NDArray[np.int64] = np.asarray(moocore.pareto_rank(checked), dtype=np.int64)
    return ranks


def constrained_ranks(points: ArrayLike, violations: ArrayLike) -> NDArray[np.int64]:
    """Ranks under constraint domination: feasible first, then the smaller violation.

    Args:
        points: ``(N, M)``, to be minimised.
        violations: ``(N,)``, at least 0; 0 means that all limits are met.

    Returns:
        ``(N,)`` ranks from 0. Feasible points have their non-dominated rank among the feasible;
        the infeasible follow, one rank for each amount of violation.

    Raises:
        UsageError: for a negative or NaN violation, or another number of violations than points.

    Source: Deb et al., NSGA-II, 2002, section VI.
    """
    checked = _checked(points)
    amount = np.asarray(violations, dtype=np.float64)
    if amount.shape != (len(checked),) or not (amount >= 0).all():
        raise UsageError(
            f"{len(checked)} points need {len(checked)} violations of at least 0; "
            f"given an array of shape {amount.shape}"
        )
    ranks = np.zeros(len(checked), dtype=np.int64)
    feasible = amount == 0
    ranks[feasible] = non_dominated_ranks(checked[feasible])
    first = int(ranks[feasible].max()) + 1 if feasible.any() else 0
    ranks[~feasible] = first + np.unique(amount[~feasible], return_inverse=True)[1]
    return ranks


def crowding_distance(points: ArrayLike, ranks: ArrayLike | None = None) -> Points:
    """How much room each point has among the points of its own rank.

    The sum over the objectives of the gap between the two neighbours, in units of the rank's
    extent. The ends of each objective get infinity. Unlike Deb's, a copy of an earlier point gets
    0, so that copies leave first, and the order of different points never matters.

    Args:
        points: ``(N, M)``, to be minimised.
        ranks: ``(N,)`` group of each point; one group if not given.

    Returns:
        ``(N,)`` distances, at least 0.

    Raises:
        UsageError: see `non_dominated`.

    Source: Deb et al., NSGA-II, 2002, section III-B.
    """
    checked = _checked(points)
    group = np.zeros(len(checked), dtype=np.int64) if ranks is None else np.asarray(ranks)
    keyed = np.column_stack([group, checked])
    unique, first = np.unique(keyed, axis=0, return_index=True)
    distance = np.zeros(len(checked))
    if len(unique):
        distance[first] = _room(unique[:, 1:], unique[:, 0])
    return distance


def spread_order(points: ArrayLike) -> NDArray[np.int64]:
    """An order in which any number of first points is spread over all of them.

    The lowest of each objective, then always the point farthest from all before it, in units of the
    objectives' extents; copies come last. Crowding distances, which are of all points at once,
    would name those of a thin part of a front first, and none of a dense one.

    Args:
        points: ``(N, M)``, to be minimised.

    Returns:
        ``(N,)`` indices; of equally good ones the earlier comes first.

    Raises:
        UsageError: see `non_dominated`.

    Source: see `farthest_first`.
    """
    checked = _checked(points)
    if not len(checked):
        return np.zeros(0, dtype=np.int64)
    low, high = checked.min(axis=0), checked.max(axis=0)
    unit = (checked - low) / np.where(high > low, high - low, 1.0)
    lowest = np.array(list(dict.fromkeys(unit.argmin(axis=0).tolist())), dtype=np.int64)
    every = np.arange(len(unit), dtype=np.int64)
    return np.concatenate([lowest, farthest_first(unit, lowest, every, len(unit))])


def spread_by_cost(points: ArrayLike) -> NDArray[np.int64]:
    """As `spread_order`, spread also over what is not dominated by quality and each cost alone.

    Whoever asks for so much of one cost chooses from the front of quality and that cost, a small
    part of what several costs leave, in which there would be wide gaps. So the order takes turns
    between all points and those that quality and the first, the second … cost leave.

    Args:
        points: ``(N, M)``, to be minimised, quality first; none dominates another.

    Returns:
        ``(N,)`` indices; with one cost those of `spread_order`.

    Raises:
        UsageError: see `non_dominated`.
    """
    checked = _checked(points)
    orders = [spread_order(checked)]
    if checked.shape[1] > 2:
        for cost in range(1, checked.shape[1]):
            pair = checked[:, [0, cost]]
            left = np.flatnonzero(non_dominated(pair))
            orders.append(left[spread_order(pair[left])])
    turns = zip_longest(*(order.tolist() for order in orders))
    named = (one for turn in turns for one in turn if one is not None)
    return np.array(list(dict.fromkeys(named)), dtype=np.int64)


def hypervolume(points: ArrayLike, reference: ArrayLike) -> float:
    """Volume that the points dominate, up to a reference point.

    Args:
        points: ``(N, M)``, to be minimised; points beyond the reference add nothing.
        reference: ``(M,)``, a point that is worse than all that count.

    Returns:
        The volume, at least 0.

    Raises:
        UsageError: see `non_dominated`, or when the reference has another number of objectives.
    """
    checked = _checked(points)
    corner = np.asarray(reference, dtype=np.float64)
    if corner.shape != (checked.shape[1],) or not np.isfinite(corner).all():
        raise UsageError(
            f"points with {checked.shape[1]} objectives need a finite reference of as many "
            f"numbers; given {corner.tolist()}"
        )
    inside = checked[(checked < corner).all(axis=1)]
    return float(moocore.hypervolume(inside, corner)) if len(inside) else 0.0


def hypervolume_share(points: Points, reference: Points) -> float:
    """The same as a share of the box from 0 to the reference; what is 0 there is not divided by."""
    units = np.where(reference == 0, 1.0, reference)
    return hypervolume(points / units, reference / units) if len(points) else 0.0


def knee_index(points: ArrayLike) -> int:
    """Index of the knee point.

    Objectives are scaled so that the front reaches from 0 (its best) to 1 (its worst); the knee
    is the point with the smallest sum, which is the one farthest below the plane through the
    unit points. Equal sums are decided by the smaller worst objective, then by position. Pass
    logarithms of costs that spread over orders of magnitude.

    Args:
        points: ``(N, M)``, to be minimised; dominated points are ignored.

    Returns:
        Its row in `points`.

    Raises:
        UsageError: see `non_dominated`, or for an empty array.

    Source: Das, On characterizing the knee of the Pareto curve, 1999, with the plane through the
    ends of the scaled axes in place of the convex hull of individual minima.
    """
    checked = _checked(points)
    if len(checked) == 0:
        raise UsageError("an empty front has no knee: give at least one point")
    rows = np.flatnonzero(non_dominated(checked))
    front = checked[rows]
    low, extent = front.min(axis=0), np.ptp(front, axis=0)
    scaled = (front - low) / np.where(extent > 0, extent, 1.0)
    # Rounding keeps sums that are equal on paper equal, whatever the units.
    order = np.lexsort((scaled.max(axis=1).round(12), scaled.sum(axis=1).round(12)))
    return int(rows[order[0]])


def _room(points: Points, group: NDArray[np.float64]) -> Points:
    """Crowding distance of distinct points; `group` as in `crowding_distance`."""
    distance = np.zeros(len(points))
    for column in range(points.shape[1]):
        others = [points[:, c] for c in range(points.shape[1]) if c != column]
        order = np.lexsort((*others, points[:, column], group))
        value, part = points[order, column], group[order]
        starts = np.flatnonzero(np.r_[True, part[1:] != part[:-1]])
        ends = np.r_[starts[1:], len(part)] - 1
        extent = np.repeat(value[ends] - value[starts], ends - starts + 1)
        gap = np.zeros(len(points))
        gap[1:-1] = value[2:] - value[:-2]
        gap /= np.where(extent > 0, extent, 1.0)
        gap[starts] = gap[ends] = np.inf
        distance[order] += gap
    return distance


def _checked(points: ArrayLike) -> Points:
    array = np.asarray(points, dtype=np.float64)
    if array.ndim != 2 or array.shape[1] == 0:
        raise UsageError(
            f"points must be an array of (points, objectives); given the shape {array.shape}"
        )
    if not np.isfinite(array).all():
        row = int(np.flatnonzero(~np.isfinite(array).all(axis=1))[0])
        raise UsageError(
            f"objectives must be finite numbers; point {row} has {array[row].tolist()}: "
            "leave out networks without a score"
        )
    return array
