"""How well the order that a search saw is that of its networks once they are trained."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from scipy import stats

from nas.objectives import Quality
from nas.search.front import Front, points_of
from nas.search.pareto import non_dominated
from nas.search.ranking.agreement import tau_interval

FEWEST_TRAINED = 3  # of whose order anything can be said


@dataclass(frozen=True, slots=True)
class RetrainedOrder:
    """Networks of a front as the search saw them, and trained afterwards.

    Attributes:
        ids: of the networks.
        before: quality in the search, less is better.
        after: the same of the trained networks, on the same validation examples.
        kendall_tau: of the two orders.
        interval: 95 % interval of it; None for fewer than five networks, or where all tie.
        front: ids of those that no other trained one dominates.
    """

    ids: tuple[str, ...]
    before: tuple[float, ...]
    after: tuple[float, ...]
    kendall_tau: float
    interval: tuple[float, float] | None
    front: tuple[str, ...]

    @property
    def sentence(self) -> str:
        """The agreement in words."""
        within = "too few for an interval"
        if self.interval is not None:
            within = f"95 % interval {self.interval[0]:.2f} to {self.interval[1]:.2f}"
        return (
            f"The order of {len(self.ids)} networks of the front in the search and once trained: "
            f"Kendall's τ {self.kendall_tau:.2f} ({within}). Trained, {len(self.front)} of them "
            f"are on their front: {', '.join(self.front)}."
        )


def retrained_order(
    front: Front,
    quality: Quality,
    scores: Mapping[str, Mapping[str, float]],
    asked: Mapping[str, int],
) -> RetrainedOrder | None:
    """Compare the orders of networks that were trained for as long as most of them.

    Args:
        front: of the search.
        quality: what quality is.
        scores: id of a trained network → its scores on the validation split, by name.
        asked: id → epochs that were asked for a network in place of the run's.

    Returns:
        None for fewer than three such networks, or where all tie.
    """
    there = [one for one in front.entries if quality.name in scores.get(one.id, {})]
    lengths = Counter(asked.get(one.id, 0) for one in there)
    there = [one for one in there if asked.get(one.id, 0) == lengths.most_common(1)[0][0]]
    before = [one.measured[front.objectives[0].name] for one in there]
    after = [quality.of(scores[one.id]) for one in there]
    if len(there) < FEWEST_TRAINED or np.ptp(before) == 0 or np.ptp(after) == 0:
        return None
    points = points_of(there, front.objectives)
    points[:, 0] = after
    kept = non_dominated(points)
    return RetrainedOrder(
        tuple(one.id for one in there),
        tuple(before),
        tuple(after),
        float(stats.kendalltau(before, after).statistic),
        tau_interval(before, after),
        tuple(one.id for one, good in zip(there, kept, strict=True) if good),
    )
