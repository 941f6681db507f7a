"""Several rankers that vote; where they disagree, nobody should be sure.

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


class Ensemble(Ranker):
    """The mean prediction of a Gaussian process, a pairwise linear ranker and pairwise trees.

    Trees order a whole space best, the smooth two its best tenth: the mean does both nearly as
    well as the better one (see experiments/LOG.md). Without LightGBM the trees stay away.
    """

    kind: ClassVar[str] = "ensemble"

    def __init__(self) -> None:
        super().__init__()
        self.name = "ensemble"
        self._members: Sequence[Ranker] = ()

    def _fit(self, features: Floats, losses: Floats) -> None:
        kinds = [k for k in MEMBERS.values() if k is not PairwiseTrees or PairwiseTrees.available()]
        self._members = [kind().fit(features, losses) for kind in kinds]

    def _scores(self, features: Floats) -> Floats:
        mean: Floats = self._votes(features).mean(axis=0)
        return mean

    def _votes(self, features: Floats) -> Floats:
        """Every member's predictions, ``(members, N)``."""
        return np.stack([member.predict(features) for member in self._members])

    def deviations(self, features: ArrayLike) -> Floats:
        """See `Ranker.deviations`: what the members are unsure of and what they disagree in."""
        matrix = self._known(features)
        spreads = [member.deviations(matrix) for member in self._members]
        own = [np.square(spread) for spread in spreads if spread is not None]
        variance: Floats = np.mean(own, axis=0) + self._votes(matrix).var(axis=0)
        return np.sqrt(variance)

    def _contributions(self, features: Floats) -> Floats:
        shares = [_in_order(member) for member in self._members]
        mean: Floats = np.mean(shares, axis=0)
        return mean

    def _state(self) -> dict[str, Any]:
        return {"members": [member.to_json() for member in self._members]}

    @classmethod
    def _from_state(cls, state: Mapping[str, Any]) -> Self:
        ranker = cls()
        ranker._members = [MEMBERS[data["kind"]].from_json(data) for data in state["members"]]
        return ranker


def _in_order(member: Ranker) -> list[float]:
    """A member's importances by column."""
    shares = member.importances()
    return [shares[str(column)] for column in range(len(shares))]
