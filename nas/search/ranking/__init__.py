"""Rankers that order networks by expected quality, and how far to trust them.

`ranker_from_json` reads any of them back.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nas.search.ranking.base import Ranker, fitted_rows
from nas.search.ranking.ensemble import MEMBERS, Ensemble
from nas.search.ranking.gaussian import GaussianProcess
from nas.search.ranking.pairwise import PairwiseLinear, PairwiseTrees
from nas.search.ranking.report_card import Fidelity, ReportCard, choose_ranker
from search_spaces.errors import DamagedRunError

__all__ = [
    "Ensemble",
    "Fidelity",
    "GaussianProcess",
    "PairwiseLinear",
    "PairwiseTrees",
    "Ranker",
    "ReportCard",
    "choose_ranker",
    "fitted_rows",
    "ranker_from_json",
]

RANKERS: dict[str, type[Ranker]] = {**MEMBERS, Ensemble.kind: Ensemble}


def ranker_from_json(data: Mapping[str, Any]) -> Ranker:
    """The ranker that `Ranker.to_json` wrote.

    Raises:
        DamagedRunError: when the kind is unknown or a part is missing or malformed.
    """
    kind = data.get("kind") if isinstance(data, Mapping) else None
    if kind not in RANKERS:
        raise DamagedRunError(
            f"a saved ranker is damaged: its kind is {kind!r}, known are {', '.join(RANKERS)}"
        )
    return RANKERS[kind].from_json(data)
