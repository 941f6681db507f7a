"""The predictor of a measured cost, fitted to networks of a space."""

from __future__ import annotations

from collections.abc import Sequence

from numpy.typing import ArrayLike

from latency.predictor import LatencyPredictor
from search_spaces.encoding import cost_terms, encode_features
from search_spaces.space import Genotypes, SearchSpace


def fit_predictor(
    space: SearchSpace,
    rows: Genotypes,
    values: Sequence[float],
    seed: int,
    weights: ArrayLike | None = None,
) -> LatencyPredictor:
    """Fit to what was measured, beside the depth alone.

    Args:
        space: of the rows; the root space.
        rows: ``(N, S)`` measured networks, at least 8.
        values: ``(N,)`` ms or MB, positive.
        seed: of the folds.
        weights: ``(N,)`` trust in each, in (0, 1].

    Raises:
        UsageError, DataError: as in `LatencyPredictor.fit`.
    """
    return LatencyPredictor.fit(
        encode_features(space, rows),
        values,
        terms=cost_terms(space),
        baselines={"depth": space.depths(rows, space.stacks[-1])},
        weights=weights,
        seed=seed,
    )
