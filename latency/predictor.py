"""Predicts the latency of networks nobody has timed, from those somebody has."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from threadpoolctl import ThreadpoolController

from latency.kernels import Array
from latency.regressors import CANDIDATES, ON_TERMS, Regressor, fitted_here
from search_spaces.errors import DataError, UsageError
from search_spaces.json_text import UNREADABLE, read_as
from search_spaces.measurement import Measurement

SCHEMA = 3
REFITTED = 2  # chosen among other candidates; its measurements are all there
MIN_OBSERVATIONS = 8
NUM_FOLDS = 5
MOST_ODD, LEAST_ODD = 4.0, 0.1
# A fit that goes through all of few measurements would promise any precision. So no prediction is
# surer than this share of the usual error; no spread counts as less than that share of the usual
# one; and spreads that are usually below so small a share of the errors say nothing.
LEAST_STD, LEAST_SPREAD, NOTHING = 0.5, 0.25, 0.1
KEPT = 0.9  # share of the errors that decide which candidate is taken: the worst are outliers'
MARGIN = 0.1  # a candidate that is less simple has to be better by this share
NORMAL_MAD = 1.4826  # standard deviation of a normal variable over its median absolute deviation
_DECIMALS = 6

Terms = Sequence[Sequence[int]]

# Sums over several threads may differ in the last bits; with one thread a run can be repeated.
_THREADS = ThreadpoolController()


@dataclass(frozen=True, slots=True)
class Score:
    """How well something predicts networks it was not fitted to.

    Attributes:
        mape: mean absolute error relative to the measured latency; 0.05 is 5 %.
        kendall_tau: τ-b between predicted and measured; 0 where either is constant.
    """

    mape: float
    kendall_tau: float


@dataclass(frozen=True, slots=True)
class PredictorReport:
    """How a predictor was chosen and what it may be trusted with.

    Attributes:
        chosen: name of the first candidate whose usual cross-validated error is within `MARGIN`
            of the smallest; the usual is the mean of all but the largest tenth.
        num_observations: networks it was fitted to.
        num_folds: parts the cross-validation left out in turn.
        relative_std: root mean square of the chosen one's cross-validated relative errors.
        std_factor: what the chosen one's own spread is multiplied by, so that the cross-validated
            errors, divided by their standard deviations, have a root mean square of 1; 0 where the
            spread says nothing, and `relative_std` holds for all networks. In both an error counts
            at most as the largest that is not unexpected.
        candidates: name → cross-validated score, in the order tried.
        baselines: the same for ``linear`` on all features and for each single number given.
    """

    chosen: str
    num_observations: int
    num_folds: int
    relative_std: float
    std_factor: float
    candidates: Mapping[str, Score]
    baselines: Mapping[str, Score]

    @property
    def mape(self) -> float:
        """Cross-validated relative error of the chosen candidate."""
        return self.candidates[self.chosen].mape

    @property
    def kendall_tau(self) -> float:
        """Cross-validated τ-b of the chosen candidate."""
        return self.candidates[self.chosen].kendall_tau

    def to_json(self) -> dict[str, Any]:
        """The JSON form."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Read the JSON form."""
        return read_as(cls, data)


class LatencyPredictor:
    """A fitted predictor; made by `fit` or `from_json`.

    Attributes:
        report: how it was chosen.
        held_out_ms: ``(N,)`` what the cross-validation predicted of the networks it was fitted to;
            None for one that was read from a file.
    """

    def __init__(
        self,
        features_NF: Array,
        ms_N: Array,
        weights_N: Array,
        terms: Terms | None,
        report: PredictorReport,
        held_out_ms: Array | None = None,
    ) -> None:
        self.report = report
        self.held_out_ms = held_out_ms
        self._features_NF = features_NF
        self._ms_N = ms_N
        self._weights_N = weights_N
        self._terms = terms
        self._written: Mapping[str, Any] | None = None  # by an earlier version
        seen_NF = _seen(report.chosen, features_NF, terms)
        with _THREADS.limit(limits=1, user_api="blas"):
            self._regressor = CANDIDATES[report.chosen]().fit(seen_NF, ms_N, weights_N)

    @classmethod
    def fit(
        cls,
        features: ArrayLike,
        ms: ArrayLike,
        groups: ArrayLike | None = None,
        *,
        terms: Terms | None = None,
        baselines: Mapping[str, ArrayLike] | None = None,
        weights: ArrayLike | None = None,
        seed: int = 0,
    ) -> Self:
        """Choose among `CANDIDATES` by cross-validation and fit the winner to everything.

        The same arguments give the same predictor wherever LightGBM loads, without which trees are
        no candidate. A candidate wins by its absolute relative errors, since a millisecond means
        more to a fast network, without the largest tenth, which outliers decide. Unless it is
        better by a tenth, a simpler one is taken.

        Args:
            features: ``(N, F)`` numbers that describe a network, `search_spaces.encoding`'s.
            ms: ``(N,)`` measured milliseconds, positive; N at least 8.
            groups: ``(N,)`` labels; networks of one label are left out together.
            terms: columns whose products the time is a sum of, as `cost_terms` names them; each
                column by itself if not given.
            baselines: name → ``(N,)``; single numbers such as the depth, to be compared with.
            weights: ``(N,)`` in (0, 1], how far each measurement is trusted: one of weight 0.5
                counts as one with twice the noise. Measurements that fit badly lose weight by
                themselves in the kernel regressions.
            seed: of the folds.

        Raises:
            UsageError: for fewer than 8 networks, or fewer than 2 groups.
            DataError: for arrays of other shapes, or a value that is not finite or positive.
        """
        ms_N = np.asarray(ms, dtype=np.float64)
        features_NF = np.ascontiguousarray(features, dtype=np.float64)
        _check(features_NF, ms_N)
        weights_N = _checked_weights(weights, len(ms_N))
        terms = _checked_terms(terms, features_NF.shape[1])
        folds_N = _folds(len(ms_N), groups, seed)
        held_out: dict[str, _HeldOut] = {}
        for name, make in fitted_here().items():
            seen_NF = _seen(name, features_NF, terms)
            held_out[name] = _cross_validate(make, seen_NF, ms_N, weights_N, folds_N)
        candidates = {name: score(found.ms, ms_N) for name, found in held_out.items()}
        alone = {"linear": candidates["linear"]}
        for name, column in (baselines or {}).items():
            column_N1 = np.asarray(column, dtype=np.float64).reshape(-1, 1)
            _check(column_N1, ms_N)
            found = _cross_validate(CANDIDATES["linear"], column_N1, ms_N, weights_N, folds_N)
            alone[name] = score(found.ms, ms_N)
        usual = {name: _usual_error(found.ms, ms_N) for name, found in held_out.items()}
        most = (1 + MARGIN) * min(usual.values())
        chosen = next(name for name, error in usual.items() if error <= most)
        best = held_out[chosen]
        off_N = _bounded(best.ms, ms_N)
        report = PredictorReport(
            chosen=chosen,
            num_observations=len(ms_N),
            num_folds=int(folds_N.max()) + 1,
            relative_std=_rms(off_N / ms_N),
            std_factor=_calibration(off_N / ms_N, best.spread / ms_N),
            candidates=candidates,
            baselines=alone,
        )
        return cls(features_NF, ms_N, weights_N, terms, report, best.ms)

    def unexpected(self) -> NDArray[np.bool_]:
        """Which of the networks it was fitted to take otherwise than expected, ``(N,)``.

        Their cross-validated relative error differs from the usual one by more than `MOST_ODD`
        times what is usual, and by more than `LEAST_ODD`.
        """
        assert self.held_out_ms is not None
        off_N, most = _off(self.held_out_ms, self._ms_N)
        return np.asarray(off_N > most)

    def predict(self, features: ArrayLike) -> tuple[Array, Array]:
        """Predicted latencies.

        Args:
            features: ``(N, F)``, the same columns as in `fit`; N may be 0.

        Returns:
            Mean and standard deviation in ms, ``(N,)`` each, both to the nanosecond, so that they
            do not depend on which networks are asked for together. The deviation is that of
            a single measurement from the mean. It grows with the distance from the networks that
            were measured, and is calibrated by the cross-validation.

        Raises:
            DataError: for another number of columns, or a value that is not finite.
        """
        features_NF = self._checked(features)
        mean_N = self._mean(features_NF)
        if not len(features_NF):
            return mean_N, np.zeros(0)
        with _THREADS.limit(limits=1, user_api="blas"):
            seen_NF = _seen(self.report.chosen, features_NF, self._terms)
            spread_N = self._regressor.spread(seen_NF, mean_N)
        factor, least = self.report.std_factor, LEAST_STD if self.report.std_factor else 1.0
        least_N = least * self.report.relative_std * mean_N
        std_N = np.round(np.maximum(factor * spread_N, least_N), _DECIMALS)
        return mean_N, np.asarray(std_N, dtype=np.float64)

    def mean(self, features: ArrayLike) -> Array:
        """The first half of `predict`, for less than half the time."""
        return self._mean(self._checked(features))

    def _mean(self, features_NF: Array) -> Array:
        if not len(features_NF):
            return np.zeros(0)
        with _THREADS.limit(limits=1, user_api="blas"):
            mean_N = self._regressor.predict(_seen(self.report.chosen, features_NF, self._terms))
        return np.maximum(np.round(mean_N, _DECIMALS), 10.0**-_DECIMALS)

    def _checked(self, features: ArrayLike) -> Array:
        features_NF = np.ascontiguousarray(features, dtype=np.float64)
        width = self._features_NF.shape[1]
        if features_NF.ndim != 2 or features_NF.shape[1] != width:
            raise DataError(
                f"the latency predictor knows {width} features; given an array of shape "
                f"{features_NF.shape}: encode with the space it was fitted in"
            )
        _check_finite("features", features_NF)
        return features_NF

    def to_json(self) -> dict[str, Any]:
        """The training data and the choice; small, readable, and safe to load.

        Of one that an earlier version wrote it is what that wrote, so that digests stay.
        """
        if self._written is not None:
            return dict(self._written)
        return {
            "schema": SCHEMA,
            "report": self.report.to_json(),
            "features": self._features_NF.tolist(),
            "ms": self._ms_N.tolist(),
            "weights": self._weights_N.tolist(),
            "terms": self._terms,
        }

    @classmethod
    def from_json(cls, data: object) -> Self:
        """Fit the same predictor again from what `to_json` wrote.

        What earlier versions wrote is chosen anew, from the same measurements.

        Raises:
            DataError: for another schema or damaged content.
        """
        schema = data.get("schema") if isinstance(data, Mapping) else None
        if not isinstance(data, Mapping) or schema not in (SCHEMA, REFITTED):
            raise DataError(f"not a latency predictor of schema {SCHEMA}; fit it anew")
        try:
            report = PredictorReport.from_json(data["report"])
            features_NF = np.array(data["features"], dtype=np.float64)
            ms_N = np.array(data["ms"], dtype=np.float64)
            weights_N = _checked_weights(data["weights"], len(ms_N))
            _check(features_NF, ms_N)
            if schema == REFITTED:
                fitted = cls.fit(features_NF, ms_N, weights=weights_N)
                fitted.report = replace(fitted.report, baselines=report.baselines)
                fitted._written = data
                return fitted
            terms = _checked_terms(data["terms"], features_NF.shape[1])
            known = report.chosen in CANDIDATES and report.chosen in report.candidates
        except UNREADABLE as error:
            raise DataError(f"a damaged latency predictor ({error}); fit it anew") from error
        if not known:
            raise DataError(f"unknown latency predictor {report.chosen!r}; fit it anew")
        return cls(features_NF, ms_N, weights_N, terms, report)


def believed(measured: Sequence[Measurement]) -> NDArray[np.bool_]:
    """What a predictor should be fitted to, ``(N,)``: not to what is doubtful.

    Where fewer than 8 are left then it is all of them, for want of better ones.
    """
    sure_N = np.array([not one.doubtful for one in measured], dtype=bool)
    return sure_N if sure_N.sum() >= MIN_OBSERVATIONS else np.ones_like(sure_N)


def _seen(name: str, features_NF: Array, terms: Terms | None) -> Array:
    """What a candidate gets of the features, ``(N, F)`` or as many columns as there are terms."""
    if terms is None or name not in ON_TERMS:
        return features_NF
    columns = [features_NF[:, list(factors)].prod(axis=1) for factors in terms]
    return np.column_stack(columns)


def _usual_error(predicted_N: Array, ms_N: Array) -> float:
    """Mean absolute relative error of all but the largest."""
    errors_N = np.sort(np.abs(predicted_N / ms_N - 1))
    return float(np.mean(errors_N[: math.ceil(KEPT * len(errors_N))]))


def _off(predicted_N: Array, ms_N: Array) -> tuple[Array, float]:
    """How far the logarithms are off beyond what all are, ``(N,)``, and what is unexpected of it.

    What is usual is told by medians, since a deviation that an outlier has a part in would hide it.
    """
    errors_N = np.log(ms_N / np.maximum(predicted_N, 10.0**-_DECIMALS))
    off_N = np.abs(errors_N - np.median(errors_N))
    usual = NORMAL_MAD * float(np.median(off_N))
    return off_N, max(MOST_ODD * usual, LEAST_ODD)


def _bounded(predicted_N: Array, ms_N: Array) -> Array:
    """Errors in ms, ``(N,)``, of which none is larger than the largest that is expected."""
    most = _off(predicted_N, ms_N)[1]
    return predicted_N - np.clip(ms_N, predicted_N * np.exp(-most), predicted_N * np.exp(most))


def _check(features_NF: Array, ms_N: Array) -> None:
    if ms_N.ndim != 1 or features_NF.ndim != 2 or len(features_NF) != len(ms_N):
        raise DataError(
            "a latency predictor needs features (N, F) and latencies (N,); "
            f"given {features_NF.shape} and {ms_N.shape}"
        )
    if len(ms_N) < MIN_OBSERVATIONS:
        raise UsageError(
            f"a latency predictor needs at least {MIN_OBSERVATIONS} measured networks; "
            f"given {len(ms_N)}: measure more"
        )
    if features_NF.shape[1] == 0:
        raise DataError("a latency predictor needs at least one feature")
    _check_finite("features", features_NF)
    _check_finite("latencies", ms_N)
    if not (ms_N > 0).all():
        raise DataError(f"latencies must be positive; row {int(np.argmin(ms_N))} is {ms_N.min()}")


def _check_finite(what: str, values: Array) -> None:
    bad = ~np.isfinite(values)
    if bad.any():
        raise DataError(f"{what} must be finite numbers; row {int(np.argwhere(bad)[0, 0])} is not")


def _folds(count: int, groups: ArrayLike | None, seed: int) -> NDArray[np.int64]:
    """The fold of every row, ``(N,)``; equal groups share one."""
    labels = np.arange(count) if groups is None else np.asarray(groups)
    if labels.shape != (count,):
        raise DataError(f"groups must have one label per network: {labels.shape}, {count} networks")
    distinct, group_N = np.unique(labels, return_inverse=True)
    if len(distinct) < 2:
        raise UsageError("cross-validation needs at least 2 groups; given 1")
    fold_of_group = np.arange(len(distinct)) % min(NUM_FOLDS, len(distinct))
    np.random.default_rng(seed).shuffle(fold_of_group)
    return np.asarray(fold_of_group[group_N], dtype=np.int64)


@dataclass(frozen=True)
class _HeldOut:
    """Predictions and spreads of every network, ``(N,)``, by a fit without its fold."""

    ms: Array
    spread: Array


def _cross_validate(
    make: Callable[[], Regressor],
    features_NF: Array,
    ms_N: Array,
    weights_N: Array,
    folds_N: NDArray[np.int64],
) -> _HeldOut:
    found = _HeldOut(np.empty_like(ms_N), np.empty_like(ms_N))
    with _THREADS.limit(limits=1, user_api="blas"):
        for fold in range(int(folds_N.max()) + 1):
            out = folds_N == fold
            fitted = make().fit(features_NF[~out], ms_N[~out], weights_N[~out])
            found.ms[out] = fitted.predict(features_NF[out])
            found.spread[out] = fitted.spread(features_NF[out], found.ms[out])
    return found


def _checked_terms(terms: Terms | None, num_columns: int) -> Terms | None:
    if terms is None:
        return None
    if not terms or not all(
        factors and all(type(i) is int and 0 <= i < num_columns for i in factors)
        for factors in terms
    ):
        raise DataError(
            f"terms are lists of columns, numbers below {num_columns}, at least one each; "
            f"given {str(terms)[:60]}"
        )
    return [list(factors) for factors in terms]


def _checked_weights(weights: ArrayLike | None, count: int) -> Array:
    weights_N = np.ones(count) if weights is None else np.asarray(weights, dtype=np.float64)
    if weights_N.shape != (count,) or not ((weights_N > 0) & (weights_N <= 1)).all():
        raise DataError(
            f"a latency predictor needs one weight above 0 and at most 1 for each of {count} "
            f"networks; given an array of shape {weights_N.shape}"
        )
    return weights_N


def _rms(values_N: Array) -> float:
    return math.sqrt(np.mean(np.square(values_N)))


def _calibration(off_N: Array, spread_N: Array) -> float:
    """See `PredictorReport.std_factor`: of relative errors and spreads."""
    usual = _rms(spread_N)
    if usual <= NOTHING * _rms(off_N):
        return 0.0
    return _rms(off_N / np.maximum(spread_N, LEAST_SPREAD * usual))


def score(predicted_N: Array, ms_N: Array) -> Score:
    """Compare predictions with measurements.

    Args:
        predicted_N: ``(N,)`` predicted ms.
        ms_N: ``(N,)`` measured ms, positive.
    """
    from scipy.stats import kendalltau  # late: it takes longer to load than to fit

    # Predictions of equal networks may differ in the last bits, which is no order.
    rounded_N = np.round(predicted_N / ms_N.max(), 12)
    constant = np.ptp(rounded_N) == 0 or np.ptp(ms_N) == 0
    tau = 0.0 if constant else float(kendalltau(rounded_N, ms_N).statistic)
    return Score(float(np.mean(np.abs(predicted_N / ms_N - 1))), tau)
