"""Which networks to observe next: those that are expected to add most to the front.

A prediction is a mean and a deviation, so what a network would add to the dominated hypervolume is
an expectation. It is a mean over quantiles of the prediction: a network that is expected a little
behind the front still has the chance to be before it, and how much that is worth is weighed
against networks that are surer and add less.

Source: Emmerich et al., Hypervolume-based expected improvement, 2011; the greedy batch is that of
Daulton et al., Parallel Bayesian optimization of multiple noisy objectives, 2021, with the mean of
a picked network in the place of its distribution. Only the first objective, the quality, is
uncertain here.

Where the best networks differ by less than a ranker can tell, none is expected to add anything:
then those come first that are the likeliest to.

Shapes: N networks, M objectives, K points of the front, Q quantiles.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm

from nas.pareto import hypervolume, non_dominated

Floats = NDArray[np.float64]

# Networks beyond the ends of the front still add to a hypervolume with this reference.
MARGIN = 1.1
# The middles of so many equal shares of a normal distribution stand for it.
NUM_QUANTILES = 8
# Less than rounding leaves is no gain.
LEAST_GAIN = 1e-12


@dataclass(frozen=True, eq=False)
class _Outlook:
    """What may come of N networks, best first, ``(N, Q, M)``, in units of the front's extent."""

    points: Floats
    corner: Floats

    def gain(self, row: int, front: Floats) -> float:
        """Expected gain of hypervolume, 0 and more, of one network beside a front ``(K, M)``."""
        before, gains = hypervolume(front, self.corner), [0.0]
        for point in self.points[row]:
            more = hypervolume(np.vstack([front, point]), self.corner) - before
            if more <= LEAST_GAIN:  # what is worse adds nothing either
                break
            gains.append(more)
        return sum(gains) / NUM_QUANTILES


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
    outlook = _Outlook(_quantiles(means, deviations / extent[0]), np.full(means.shape[1], MARGIN))
    front = front[non_dominated(front)]
    queue = [(-outlook.gain(row, front), row, 0) for row in range(len(means))]
    heapq.heapify(queue)
    picked: list[int] = []
    while queue and len(picked) < count and queue[0][0] < 0:
        _, row, known = heapq.heappop(queue)
        if known < len(picked):
            heapq.heappush(queue, (-outlook.gain(row, front), row, len(picked)))
            continue
        picked.append(row)
        front = np.vstack([front, means[row]])
        front = front[non_dominated(front)]
    return picked


def by_chance(expected: Floats, deviations: Floats, front: Floats) -> list[int]:
    """All rows, those first that most probably add anything to the front, be it ever so little.

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


def _quantiles(means: Floats, deviations: Floats) -> Floats:
    """``(N, Q, M)``, best first."""
    steps = norm.ppf((np.arange(NUM_QUANTILES) + 0.5) / NUM_QUANTILES)
    points: Floats = np.repeat(means[:, None, :], NUM_QUANTILES, axis=1)
    points[:, :, 0] += deviations[:, None] * steps
    return points
