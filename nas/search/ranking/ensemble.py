"""Several rankers that vote, each with the weight that it has earned.

Each is first fitted without the networks that were observed last, and its vote counts by how well
it predicts those: they are near the front, where a search has to tell networks apart. Where members
disagree, nobody should be sure.

Shapes: N networks, F features.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike

from nas.search.ranking.base import Floats, Ranker
from nas.search.ranking.gaussian import GaussianProcess
from nas.search.ranking.pairwise import PairwiseLinear, PairwiseTrees

MEMBERS: Mapping[str, type[Ranker]] = {
    kind.kind: kind for kind in (GaussianProcess, PairwiseLinear, PairwiseTrees)
}


# Networks, the last of those it is fitted to, that members are judged by; at most a quarter.
JUDGED = 24
# Weights fall with this power of the median error: one that errs twice as much hardly counts.
SHARPNESS = 4.0
LEAST_ERROR = 1e-12  # relative to the largest quality: that of members that cannot be told apart


class Ensemble(Ranker):
    """The weighted prediction of a Gaussian process, a pairwise linear ranker and pairwise trees.

    Trees order a whole space best, the smooth two its best tenth, and on networks of others the
    process alone errs half as much as the mean (see experiments/LOG.md). Without LightGBM the trees
    stay away.

    Rows are expected in the order in which they were observed.
    """

    kind: ClassVar[str] = "ensemble"

    def __init__(self) -> None:
        super().__init__()
        self.name = "ensemble"
        self._members: Sequence[Ranker] = ()
        self._weights = np.ones(0)

    def _fit(self, features: Floats, losses: Floats) -> None:
        kinds = [k for k in MEMBERS.values() if k is not PairwiseTrees or PairwiseTrees.available()]
        self._weights = _earned(kinds, features, losses)
        self._members = [kind().fit(features, losses) for kind in kinds]

    def _scores(self, features: Floats) -> Floats:
        mean: Floats = self._weights @ self._votes(features)
        return mean

    def _votes(self, features: Floats) -> Floats:
        """Every member's predictions, ``(members, N)``."""
        return np.stack([member.predict(features) for member in self._members])

    def deviations(self, features: ArrayLike) -> Floats:
        """See `Ranker.deviations`: what the members are unsure of and what they disagree in."""
        matrix = self._known(features)
        spreads = [member.deviations(matrix) for member in self._members]
        own = [np.square(spread) for spread in spreads if spread is not None]
        votes = self._votes(matrix)
        apart = self._weights @ np.square(votes - self._weights @ votes)
        variance: Floats = np.mean(own, axis=0) + apart
        return np.sqrt(variance)

    def _contributions(self, features: Floats) -> Floats:
        shares = [_in_order(member) for member in self._members]
        mean: Floats = self._weights @ np.array(shares)
        return mean

    def _state(self) -> dict[str, Any]:
        members = [member.to_json() for member in self._members]
        return {"members": members, "weights": self._weights.tolist()}

    @classmethod
    def _from_state(cls, state: Mapping[str, Any]) -> Self:
        ranker = cls()
        ranker._members = [MEMBERS[data["kind"]].from_json(data) for data in state["members"]]
        equal = [1 / len(ranker._members)] * len(ranker._members)  # as in 0.2
        ranker._weights = np.array(state.get("weights", equal), dtype=np.float64)
        return ranker


def _earned(kinds: Sequence[type[Ranker]], features: Floats, losses: Floats) -> Floats:
    """What each member's vote counts, by its median error on the last rows; together 1."""
    held = min(JUDGED, len(losses) // 4)
    if not held:
        return np.full(len(kinds), 1 / len(kinds))
    seen = features[:-held], losses[:-held]
    errors = np.array(
        [
            np.median(np.abs(kind().fit(*seen).predict(features[-held:]) - losses[-held:]))
            for kind in kinds
        ]
    )
    least = LEAST_ERROR * max(float(np.abs(losses).max()), LEAST_ERROR)
    votes = (errors.min() + least) / (errors + least)
    weights: Floats = votes**SHARPNESS
    weights /= weights.sum()
    return weights


def _in_order(member: Ranker) -> list[float]:
    """A member's importances by column."""
    shares = member.importances()
    return [shares[str(column)] for column in range(len(shares))]
