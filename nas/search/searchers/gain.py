"""Which networks to observe next: those that are expected to add most to the front.

A prediction is a mean and a deviation, so what a network would add to the dominated hypervolume is
an expectation: a network that is expected a little behind the front still has the chance to be
before it, and how much that is worth is weighed against networks that are surer and add less.

Only the first objective, the quality, is uncertain here, and normally distributed. A network with
costs c and quality y adds the integral of A(t) over t from y to the reference, where A(t) is the
volume of costs from c to the reference that no network of the front with a quality of at most t
dominates. A(t) changes at the front's qualities alone, so the expectation is a finite sum in
closed form, exact for any number of objectives.

Source: Emmerich et al., Hypervolume-based expected improvement, 2011, for one uncertain objective;
the greedy batch is that of Daulton et al., Parallel Bayesian optimization of multiple noisy
objectives, 2021, with the mean of a picked network in the place of its distribution.

Where the best networks differ by less than a ranker can tell, none is expected to add anything
that counts: then those come first that are the likeliest to.

Shapes: N networks, M objectives, K points of the front.
"""

from __future__ import annotations

import heapq

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from nas.search.pareto import hypervolume, non_dominated

Floats = NDArray[np.float64]

# Networks beyond the ends of the front still add to a hypervolume with this reference.
MARGIN = 1.1
# Less than rounding leaves is no gain.
LEAST_GAIN = 1e-12
# So many deviations below its mean no normal variable gets, in floating point.
LOWEST = -40.0
ROWS_AT_ONCE = 256  # whose numbers stay in a processor's cache


def expected_gains(means: Floats, deviations: Floats, front: Floats, corner: Floats) -> Floats:
    """Expected gains of hypervolume of networks beside a front, each alone, exact.

    Args:
        means: ``(N, M)``, the quality's mean and the costs, which are known.
        deviations: ``(N,)``, standard deviations of the quality, at least 0.
        front: ``(K, M)``, of which none dominates another.
        corner: ``(M,)``, the reference of the hypervolume.

    Returns:
        The gains ``(N,)``, at least 0, in the units of the objectives.
    """
    ends = corner[1:]
    known = front[(front[:, 1:] < ends).all(axis=1) & (front[:, 0] < corner[0])]
    known = known[np.argsort(known[:, 0], kind="stable")]
    steps = np.r_[-np.inf, known[:, 0], corner[0]]
    gains = np.zeros(len(means))
    within = np.flatnonzero((means[:, 1:] < ends).all(axis=1))
    for start in range(0, len(within), ROWS_AT_ONCE):
        rows = within[start : start + ROWS_AT_ONCE]
        # What the front leaves of the costs from a network's to the reference.
        left_NK = _left_over(known[:, 1:], means[rows, 1:], ends)
        below_NK = _mean_below(steps - means[rows, :1], deviations[rows, None])
        gains[rows] = np.maximum(0.0, np.vecdot(left_NK, np.diff(below_NK)))
    return gains


def _left_over(known: Floats, costs: Floats, ends: Floats) -> Floats:
    """Volumes from costs to `ends` that the first 0 … K known points leave, ``(N, K + 1)``."""
    if costs.shape[1] == 1:
        nearest_K = np.minimum.accumulate(np.r_[ends, known[:, 0]])
        left: Floats = np.maximum(nearest_K, costs) - costs
        return left
    return np.array([_volumes_left(np.maximum(known, one), one, ends) for one in costs])


def _volumes_left(known: Floats, costs: Floats, ends: Floats) -> Floats:
    """The same for one network, ``(K + 1,)``, whose costs no known point is below."""
    volumes, whole = [], float(np.prod(ends - costs))
    for count in range(len(known) + 1):
        volumes.append(whole - hypervolume(known[:count], ends) if count else whole)
        if volumes[-1] <= 0:
            break
    return np.pad(volumes, (0, len(known) + 1 - len(volumes)))


def _mean_below(distances: Floats, deviations: Floats) -> Floats:
    """Expected amount by which a normal variable around 0 stays below each distance, ``(N, K)``.

    The deviations are ``(N, 1)``.
    """
    certain = np.maximum(distances, 0.0)
    z = np.divide(distances, deviations, out=certain.copy(), where=deviations > 0)
    density = np.exp(-0.5 * z**2) / np.sqrt(2 * np.pi)
    # Minus infinity times its probability is 0, which floating point does not know.
    below: Floats = deviations * (np.maximum(z, LOWEST) * ndtr(z) + density)
    return np.where(deviations > 0, below, certain)


def greedy_gain(expected: Floats, deviations: Floats, front: Floats, count: int) -> list[int]:
    """Pick rows by expected gain; each one picked counts as observed, at its mean, for the next.

    Objectives are scaled by the extent of the front and everything expected. A network's gain
    can only shrink while others are picked, so it is computed anew only for the one that leads.

    Args:
        expected: ``(N, M)``, means.
        deviations: ``(N,)``, standard deviations of the first objective, at least 0.
        front: ``(K, M)`` observed.
        count: most rows to pick.

    Returns:
        Row numbers, best first; fewer than `count` when no other row may gain anything.
    """
    if len(expected) == 0:
        return []
    everything = np.concatenate([front, expected])
    low, extent = everything.min(axis=0), np.ptp(everything, axis=0)
    extent = np.where(extent > 0, extent, 1.0)
    means, front = (expected - low) / extent, (front - low) / extent
    corner, spread = np.full(means.shape[1], MARGIN), deviations / extent[0]
    front = front[non_dominated(front)]

    def gains(rows: slice) -> list[float]:
        found = expected_gains(means[rows], spread[rows], front, corner)
        return np.where(found > LEAST_GAIN, found, 0.0).tolist()  # type: ignore[no-any-return]

    queue = [(-gain, row, 0) for row, gain in enumerate(gains(slice(None)))]
    heapq.heapify(queue)
    picked: list[int] = []
    while queue and len(picked) < count and queue[0][0] < 0:
        _, row, known = heapq.heappop(queue)
        if known < len(picked):
            (gain,) = gains(slice(row, row + 1))
            heapq.heappush(queue, (-gain, row, len(picked)))
            continue
        picked.append(row)
        front = np.vstack([front, means[row]])
        front = front[non_dominated(front)]
    return picked


def by_chance(expected: Floats, deviations: Floats, front: Floats) -> list[int]:
    """Row indices by decreasing probability of improvement.

    A row adds something when its quality is better than that of every network of the front that
    costs no more. How probable this is depends on how many deviations it is expected to fall short
    (Kushner, 1964); of equally probable ones the best expected comes first.

    Args:
        expected: ``(N, M)``, means.
        deviations: ``(N,)``, standard deviations of the first objective, at least 0.
        front: ``(K, M)`` observed.

    Returns:
        The N row numbers.
    """
    as_cheap_NK = (front[None, :, 1:] <= expected[:, None, 1:]).all(axis=2)
    to_beat_N = np.where(as_cheap_NK, front[None, :, 0], np.inf).min(axis=1, initial=np.inf)
    short_N = expected[:, 0] - to_beat_N
    with np.errstate(divide="ignore"):
        steps_N = np.divide(short_N, deviations, out=np.zeros_like(short_N), where=short_N != 0)
    order: list[int] = np.lexsort((expected[:, 0], steps_N)).tolist()
    return order
