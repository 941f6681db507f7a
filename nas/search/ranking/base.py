"""What every ranker promises: order networks by loss, given few losses that were observed.

Shapes: N networks, F features.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.isotonic import isotonic_regression

from search_spaces.errors import DamagedRunError, UsageError

Floats = NDArray[np.float64]

MAX_BINS = 8
ROWS_PER_BIN = 5
MOST_FITTED = 2_000


@dataclass(frozen=True)
class Calibration:
    """A strictly rising map from scores to losses: straight pieces between knots.

    Attributes:
        scores: knots, rising.
        losses: the losses there, rising.
        slopes: slope before the first and behind the last knot, above 0.
    """

    scores: tuple[float, ...]
    losses: tuple[float, ...]
    slopes: tuple[float, float]

    @classmethod
    def fit(cls, scores: Floats, losses: Floats) -> Self:
        """Fit to the mean loss in up to eight equally filled bins of the score.

        Bins that fall are pooled (isotonic regression), so the map never ties two networks that
        the score tells apart, and a few noisy losses cannot bend it.
        """
        order = np.argsort(scores, kind="stable")
        bins = np.array_split(order, max(1, min(MAX_BINS, len(order) // ROWS_PER_BIN)))
        counts = np.array([float(len(rows)) for rows in bins])
        # Equal scores cannot lie on two knots: bins that a tie runs through become one.
        knots, place = np.unique([scores[rows].mean() for rows in bins], return_inverse=True)
        weight = np.bincount(place, counts)
        mean_loss = np.bincount(place, [losses[rows].sum() for rows in bins]) / weight
        pooled = isotonic_regression(mean_loss, sample_weight=weight)
        groups = np.unique(pooled.round(12), return_inverse=True)[1]
        share = weight / np.bincount(groups, weight)[groups]
        x = np.bincount(groups, knots * share)
        y = np.bincount(groups, mean_loss * share)
        rising = np.r_[True, (np.diff(x) > 0) & (np.diff(y) > 0)]
        x, y = x[rising], y[rising]
        slope = np.diff(y) / np.diff(x) if len(x) > 1 else np.array([_slope(scores, losses)])
        return cls(tuple(x.tolist()), tuple(y.tolist()), (float(slope[0]), float(slope[-1])))

    def __call__(self, scores: Floats) -> Floats:
        """Scores ``(N,)`` → losses ``(N,)``."""
        x, y = np.array(self.scores), np.array(self.losses)
        inside: Floats = np.interp(scores, x, y)
        below = np.minimum(scores - x[0], 0) * self.slopes[0]
        above = np.maximum(scores - x[-1], 0) * self.slopes[1]
        outside: Floats = below + above
        return inside + outside


def _slope(scores: Floats, losses: Floats) -> float:
    """Least-squares slope, kept above 0 so that a useless score still orders."""
    spread = float(scores.var())
    if spread == 0:
        return 1e-9
    slope = float(((scores - scores.mean()) * (losses - losses.mean())).mean()) / spread
    return max(slope, 1e-9)


class Ranker(ABC):
    """Orders networks by expected loss.

    Fit once, then ask. `scores` orders best; `predict` is a strictly rising map of the scores to
    the unit of the losses, and so orders the same. Everything is deterministic.

    Attributes:
        name: what the report card calls it.
        kind: what the JSON form calls its class.
    """

    kind: ClassVar[str]
    name: str

    def __init__(self) -> None:
        self._num_features = 0
        self._calibration: Calibration | None = None
        self._importances: dict[str, float] = {}
        self._learnt: tuple[Floats, list[str]] | None = None  # until importances are asked for

    def fit(
        self, features: ArrayLike, losses: ArrayLike, feature_names: Sequence[str] | None = None
    ) -> Self:
        """Learn from observed losses.

        Args:
            features: ``(N, F)``, finite, N at least 2.
            losses: ``(N,)``, finite, lower is better; any unit.
            feature_names: F names for `importances`; ``0``, ``1`` … if not given.

        Returns:
            The ranker itself.

        Raises:
            UsageError: for other shapes, NaN, infinity or fewer than two networks.
        """
        matrix, observed = checked_features(features), checked_losses(losses)
        if len(matrix) != len(observed) or len(observed) < 2:
            raise UsageError(
                "a ranker needs at least two networks and one loss for each; "
                f"given {len(matrix)} networks and {len(observed)} losses"
            )
        names = list(feature_names or map(str, range(matrix.shape[1])))
        if len(names) != matrix.shape[1]:
            raise UsageError(f"{matrix.shape[1]} features need as many names; given {len(names)}")
        self._num_features = matrix.shape[1]
        self._fit(matrix, observed)
        self._calibration = Calibration.fit(self._scores(matrix), observed)
        self._learnt = matrix.copy(), names
        return self

    def scores(self, features: ArrayLike) -> Floats:
        """Scores without unit, lower is better.

        Args:
            features: ``(N, F)``, finite.

        Returns:
            ``(N,)``.
        """
        return self._scores(self._known(features))

    def predict(self, features: ArrayLike) -> Floats:
        """Expected losses, in the order of `scores`.

        Args:
            features: ``(N, F)``, finite.

        Returns:
            ``(N,)`` in the unit of the losses that were observed.
        """
        return self._calibrated(self.scores(features))

    def deviations(self, features: ArrayLike) -> Floats | None:
        """How unsure the predictions are.

        Args:
            features: ``(N, F)``, finite.

        Returns:
            ``(N,)``, one standard deviation in the unit of the losses; None from a ranker that
            has no idea of it.
        """
        self._known(features)
        return None

    def _known(self, features: ArrayLike) -> Floats:
        """Features that this ranker was fitted for; UsageError if they are others."""
        matrix = checked_features(features)
        if self._calibration is None:
            raise UsageError("this ranker was not fitted: call fit first")
        if matrix.shape[1] != self._num_features:
            raise UsageError(
                f"this ranker knows {self._num_features} features; given {matrix.shape[1]}: "
                "encode in the coordinates of the root space"
            )
        return matrix

    def _calibrated(self, scores: Floats) -> Floats:
        """Scores in the unit of the losses."""
        assert self._calibration is not None
        return self._calibration(scores)

    def importances(self) -> dict[str, float]:
        """How much of the scores' spread each feature makes, largest first; they sum to 1.

        The mean absolute contribution over the observed networks (for trees: SHAP values). All 0
        when the scores do not vary.
        """
        ordered = sorted(self._shares().items(), key=lambda item: (-item[1], item[0]))
        return dict(ordered)

    def _shares(self) -> dict[str, float]:
        """Feature → importance; a search fits many rankers that nobody asks for it."""
        if self._learnt is not None:
            matrix, names = self._learnt
            weight = self._contributions(matrix)
            total = float(weight.sum())
            shares = weight / total if total > 0 else weight
            self._importances = dict(zip(names, shares.tolist(), strict=True))
            self._learnt = None
        return self._importances

    def to_json(self) -> dict[str, Any]:
        """Everything that was learnt, as plain JSON; `ranker_from_json` reads it."""
        if self._calibration is None:
            raise UsageError("this ranker was not fitted: call fit first")
        return {
            "kind": self.kind,
            "num_features": self._num_features,
            "calibration": {
                "scores": list(self._calibration.scores),
                "losses": list(self._calibration.losses),
                "slopes": list(self._calibration.slopes),
            },
            "importances": self._shares(),
            "state": self._state(),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Read what `to_json` wrote; scores and predictions are the same.

        Raises:
            DamagedRunError: when a part is missing or malformed.
        """
        try:
            ranker = cls._from_state(data["state"])
            ranker._num_features = int(data["num_features"])
            parts = data["calibration"]
            first, last = parts["slopes"]
            ranker._calibration = Calibration(
                tuple(parts["scores"]), tuple(parts["losses"]), (first, last)
            )
            ranker._importances = {str(k): float(v) for k, v in data["importances"].items()}
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise DamagedRunError(f"a saved {cls.kind} ranker is damaged: {error!r}") from error
        return ranker

    @abstractmethod
    def _fit(self, features: Floats, losses: Floats) -> None:
        """Learn from checked arrays ``(N, F)`` and ``(N,)``."""

    @abstractmethod
    def _scores(self, features: Floats) -> Floats:
        """Scores ``(N,)`` of checked features."""

    @abstractmethod
    def _contributions(self, features: Floats) -> Floats:
        """Mean absolute contribution of each feature to the scores, ``(F,)``."""

    @abstractmethod
    def _state(self) -> dict[str, Any]:
        """What `_from_state` needs, as plain JSON."""

    @classmethod
    @abstractmethod
    def _from_state(cls, state: Mapping[str, Any]) -> Self:
        """A ranker that scores as the one that gave the state."""


def fitted_rows(losses: Floats, most: int = MOST_FITTED) -> NDArray[np.intp]:
    """Numbers of the networks that rankers are fitted to, ascending: all, where they are not many.

    Fitting compares all with all. Of very many networks the best are taken, to one half, and others
    spread over the order in which they were observed.

    Args:
        losses: ``(N,)``.
        most: of the numbers.
    """
    if len(losses) <= most:
        return np.arange(len(losses))
    best = np.argsort(losses, kind="stable")[: most // 2]
    others = np.setdiff1d(np.arange(len(losses)), best)
    spread = np.linspace(0, len(others) - 1, most - len(best)).round().astype(np.intp)
    return np.sort(np.concatenate([best, others[spread]]))


def worse_pairs(losses: Floats) -> NDArray[np.bool_]:
    """All pairs that a ranker can learn from.

    Args:
        losses: ``(N,)``.

    Returns:
        ``(N, N)``, True at ``[i, j]`` where i has the larger loss; equal losses give no pair.
    """
    mask: NDArray[np.bool_] = losses[:, None] > losses[None, :]
    return mask


def with_logs(features: Floats) -> Floats:
    """Features ``(N, F)`` and behind them their logarithms, ``(N, 2F)``: sizes act by ratios."""
    return np.hstack([features, np.sign(features) * np.log1p(np.abs(features))])


def checked_features(features: ArrayLike) -> Floats:
    """Features as a finite float matrix ``(N, F)``; UsageError if they are none."""
    matrix = np.asarray(features, dtype=np.float64)
    if matrix.ndim != 2 or matrix.shape[1] == 0:
        raise UsageError(f"features must be (networks, features); given shape {matrix.shape}")
    if not np.isfinite(matrix).all():
        raise UsageError("features must be finite numbers; given NaN or infinity")
    return matrix


def checked_losses(losses: ArrayLike) -> Floats:
    """Losses as a finite float vector ``(N,)``; UsageError if they are none."""
    vector = np.asarray(losses, dtype=np.float64)
    if vector.ndim != 1:
        raise UsageError(f"losses must be one number per network; given shape {vector.shape}")
    if not np.isfinite(vector).all():
        row = int(np.flatnonzero(~np.isfinite(vector))[0])
        raise UsageError(f"losses must be finite numbers; loss {row} is {vector[row]}")
    return vector
