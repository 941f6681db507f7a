"""Rankers that learn from pairs: which of two networks has the smaller loss.

The probability that i is worse than j is the logistic function of the difference of their scores.
All pairs with different losses take part. Between N networks they form a matrix (N, N), so that
sums over pairs are matrix sums and no pair is ever written out as a row of features.

Source: Burges et al., Learning to rank using gradient descent (RankNet), 2005; Hu et al., RankNAS:
Efficient neural architecture search by pairwise ranking, 2021, section 3. RankNAS's features are
averages over layers; ours keep every layer.

Shapes: N networks, F features, D columns of a design matrix.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from latency.lightgbm_library import lightgbm_loads, load_lightgbm
from nas.search.ranking.base import Floats, Ranker, with_logs, worse_pairs
from search_spaces.errors import DamagedRunError

NEWTON_STEPS = 30
MAX_COMPONENTS = 256


class PairwiseLinear(Ranker):
    """Logistic regression on the differences of standardised features and their logarithms.

    Sizes act by ratios: with the logarithms beside the plain features, rankings were better at
    every number of observations tried.

    Args:
        l2: strength of the ridge penalty on the weights, against the mean over pairs.
        interactions: also use all squares and products of two features. They are never written
            out: the fit works in the leading directions of the quadratic kernel, scoring with one
            (F, F) matrix.
    """

    kind: ClassVar[str] = "pairwise-linear"

    def __init__(self, l2: float = 0.01, interactions: bool = False) -> None:
        super().__init__()
        self.l2, self.interactions = l2, interactions
        self.name = f"pairwise {'quadratic' if interactions else 'linear'} l2={l2:g}"
        self._mean = self._scale = self._linear = np.zeros(0)
        self._quadratic: Floats | None = None

    def _fit(self, features: Floats, losses: Floats) -> None:
        columns = with_logs(features)
        self._mean, spread = columns.mean(axis=0), columns.std(axis=0)
        self._scale = np.where(spread > 1e-12 * (1 + np.abs(self._mean)), spread, np.inf)
        x_ND = (columns - self._mean) / self._scale
        worse = worse_pairs(losses)
        if not self.interactions:
            self._linear = _pairwise_weights(x_ND, worse, self.l2)
            return
        gram = x_ND @ x_ND.T
        share = 1.0 / x_ND.shape[1]
        values, vectors = np.linalg.eigh(gram + share * gram**2)
        kept = np.flatnonzero(values > 1e-9 * max(values[-1], 1e-300))[-MAX_COMPONENTS:]
        root = np.sqrt(values[kept])
        weights = _pairwise_weights(vectors[:, kept] * root, worse, self.l2)
        dual_N = vectors[:, kept] @ (weights / root)
        self._linear = x_ND.T @ dual_N
        self._quadratic = share * (x_ND.T * dual_N) @ x_ND

    def _scores(self, features: Floats) -> Floats:
        x_ND = (with_logs(features) - self._mean) / self._scale
        scores: Floats = x_ND @ self._linear
        if self._quadratic is not None:
            scores += np.einsum("nd,nd->n", x_ND @ self._quadratic, x_ND)
        return scores

    def _contributions(self, features: Floats) -> Floats:
        x_ND = (with_logs(features) - self._mean) / self._scale
        slope = self._linear
        if self._quadratic is not None:
            slope = slope + x_ND @ self._quadratic  # a product is shared evenly by its factors
        part = x_ND * slope
        part = part[:, : features.shape[1]] + part[:, features.shape[1] :]
        spread: Floats = np.abs(part - part.mean(axis=0)).mean(axis=0)
        return spread

    def _state(self) -> dict[str, Any]:
        return {
            "l2": self.l2,
            "interactions": self.interactions,
            "mean": self._mean.tolist(),
            # A constant feature has no scale; JSON has no infinity.
            "scale": [value if np.isfinite(value) else None for value in self._scale.tolist()],
            "linear": self._linear.tolist(),
            "quadratic": None if self._quadratic is None else self._quadratic.tolist(),
        }

    @classmethod
    def _from_state(cls, state: Mapping[str, Any]) -> Self:
        ranker = cls(state["l2"], state["interactions"])
        ranker._mean = np.array(state["mean"], dtype=np.float64)
        ranker._scale = np.array([np.inf if v is None else v for v in state["scale"]])
        ranker._linear = np.array(state["linear"], dtype=np.float64)
        if state["quadratic"] is not None:
            ranker._quadratic = np.array(state["quadratic"], dtype=np.float64)
        return ranker


class PairwiseTrees(Ranker):
    """Boosted trees (LightGBM) on RankNet's gradients.

    Source: as the module; LightGBM's own LambdaRank weights the top of a list, which a Pareto
    search has no use for, so gradients and curvatures of the plain pairwise loss are given.

    Args:
        rounds: number of trees.
        leaves: most leaves of a tree.
        learning_rate: step of each tree.
    """

    kind: ClassVar[str] = "pairwise-trees"

    def __init__(self, rounds: int = 200, leaves: int = 4, learning_rate: float = 0.06) -> None:
        super().__init__()
        self.rounds, self.leaves, self.learning_rate = rounds, leaves, learning_rate
        self.name = "pairwise trees"
        self._booster: Any = None

    @staticmethod
    def available() -> bool:
        """Whether LightGBM loads."""
        return lightgbm_loads()

    def _fit(self, features: Floats, losses: Floats) -> None:
        if not np.ptp(features, axis=0).any():
            self._booster = None  # LightGBM refuses data without anything to split
            return
        lightgbm = load_lightgbm()
        worse = worse_pairs(losses)
        count = max(1, int(worse.sum()))

        def objective(scores: Floats, data: Any) -> tuple[Floats, Floats]:
            pull, curve = _pair_terms(np.asarray(scores, dtype=np.float64), worse)
            # In units of one network, so that leaf sizes and penalties mean the usual.
            unit = len(scores) / count
            gradient = (pull.sum(axis=0) - pull.sum(axis=1)) * unit
            return gradient, (curve.sum(axis=0) + curve.sum(axis=1)) * unit + 1e-6

        settings = {
            "objective": objective,
            "num_leaves": self.leaves,
            "learning_rate": self.learning_rate,
            "min_data_in_leaf": max(1, min(10, len(losses) // 10)),
            "min_sum_hessian_in_leaf": 1e-3,
            "lambda_l2": 1.0,
            "seed": 0,
            "deterministic": True,
            "force_row_wise": True,
            "num_threads": 1,
            "verbosity": -1,
        }
        # Few rows must not lose features to LightGBM's filters, made for millions of rows.
        options = {"verbosity": -1, "min_data_in_bin": 1, "feature_pre_filter": False}
        data = lightgbm.Dataset(features, label=losses, params=options)
        self._booster = lightgbm.train(settings, data, num_boost_round=self.rounds)

    def _scores(self, features: Floats) -> Floats:
        if self._booster is None:
            return np.zeros(len(features))
        scores = self._booster.predict(features, raw_score=True, num_threads=1)
        return np.asarray(scores, dtype=np.float64)

    def _contributions(self, features: Floats) -> Floats:
        if self._booster is None:
            return np.zeros(features.shape[1])
        parts = np.asarray(self._booster.predict(features, pred_contrib=True, num_threads=1))
        spread: Floats = np.abs(parts[:, :-1]).mean(axis=0)
        return spread

    def _state(self) -> dict[str, Any]:
        return {
            "rounds": self.rounds,
            "leaves": self.leaves,
            "learning_rate": self.learning_rate,
            "model": None if self._booster is None else self._booster.model_to_string(),
        }

    @classmethod
    def _from_state(cls, state: Mapping[str, Any]) -> Self:
        ranker = cls(state["rounds"], state["leaves"], state["learning_rate"])
        if state["model"] is None:
            return ranker
        lightgbm = load_lightgbm()
        try:
            ranker._booster = lightgbm.Booster(model_str=state["model"])
        except lightgbm.basic.LightGBMError as error:
            raise DamagedRunError(f"the trees of a saved ranker are damaged: {error}") from error
        return ranker


def _pair_terms(scores: Floats, worse: NDArray[np.bool_]) -> tuple[Floats, Floats]:
    """First and second derivative of every pair's loss by the score difference.

    Args:
        scores: ``(N,)``.
        worse: ``(N, N)`` as `worse_pairs` gives it.

    Returns:
        ``(N, N)`` each: how strongly pair (i, j) wants i's score up, and the curvature.
    """
    wrong = expit(scores[None, :] - scores[:, None])
    pull = wrong * worse
    return pull, pull * (1 - wrong)


def _pairwise_weights(design: Floats, worse: NDArray[np.bool_], l2: float) -> Floats:
    """Weights ``(D,)`` of the penalised pairwise logistic regression, by damped Newton steps."""
    count = max(1, int(worse.sum()))
    ridge = l2 * np.eye(design.shape[1])

    def value(weights: Floats) -> float:
        scores = design @ weights
        losses = np.logaddexp(0, scores[None, :] - scores[:, None])
        return float(losses[worse].sum() / count + 0.5 * l2 * weights @ weights)

    weights = np.zeros(design.shape[1])
    current = value(weights)
    for _ in range(NEWTON_STEPS):
        pull, curve = _pair_terms(design @ weights, worse)
        gradient = design.T @ (pull.sum(axis=0) - pull.sum(axis=1)) / count + l2 * weights
        both = curve + curve.T
        hessian = design.T @ (design * both.sum(axis=1)[:, None] - both @ design) / count
        step = np.linalg.solve(hessian + ridge, gradient)
        size = 1.0
        while size > 1e-6 and value(weights - size * step) > current:
            size /= 2
        weights = weights - size * step
        previous, current = current, value(weights)
        if previous - current < 1e-10 * (1 + abs(previous)):
            break
    return weights
