"""The regressions a latency predictor chooses from: features in, milliseconds out.

All are deterministic, fit for few observations, and minimise *relative* errors: either of the
logarithm of the latency, or of the latency divided by what was observed.

N: networks; F: features; T: training networks; L: noise levels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol, Self

import lightgbm
import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Target = Literal["ms", "log"]
Kernel = Callable[[Array, Array], Array]

# Predictions stay within this factor of the range that was observed.
_REACH = 4.0
_NOISES = np.logspace(-8, 2, 21)
_ROBUST_ROUNDS = 4
_ROWS_AT_ONCE = 2048


class Regressor(Protocol):
    """What `LatencyPredictor` needs of a candidate."""

    def fit(self, features_NF: Array, ms_N: Array) -> Self:
        """Fit to finite features and positive latencies; at least two rows."""

    def predict(self, features_NF: Array) -> Array:
        """Latencies in ms, ``(N,)``, positive and finite."""


def _linear(a_NF: Array, b_TF: Array) -> Array:
    product: Array = a_NF @ (b_TF.T / a_NF.shape[1])
    return product


def _interactions(share: float) -> Kernel:
    """Every feature, square and product of two, without writing them out.

    `share` is the prior variance of a product relative to that of a feature.
    """

    def kernel(a_NF: Array, b_TF: Array) -> Array:
        linear = _linear(a_NF, b_TF)
        products: Array = np.square(linear)
        return linear + share * products

    return kernel


def _smooth(length: float, share: float) -> Kernel:
    """A straight trend plus a smooth deviation that is forgotten beyond `length`."""

    def kernel(a_NF: Array, b_TF: Array) -> Array:
        product = _linear(a_NF, b_TF)
        norms_N, norms_T = (np.mean(np.square(x), axis=1) for x in (a_NF, b_TF))
        distance = norms_N[:, None] + norms_T - 2 * product
        near: Array = np.exp(np.maximum(distance, 0) / (-2 * length**2))
        return product + share * near

    return kernel


_INTERACTIONS = tuple(_interactions(share) for share in (0.005, 0.05, 0.5))
_SMOOTH = tuple(_smooth(length, share) for length in (0.5, 1.0, 2.0) for share in (0.01, 0.1, 1.0))


@dataclass(frozen=True)
class _Scale:
    """Centre and width of the columns that vary; the others carry no information."""

    kept: NDArray[np.intp]
    centre: Array
    width: Array

    @classmethod
    def of(cls, features_NF: Array) -> Self:
        width = features_NF.std(axis=0)
        size = np.abs(features_NF).max(axis=0)
        kept = np.flatnonzero(width > 1e-9 * np.maximum(size, 1e-300))
        return cls(kept, features_NF[:, kept].mean(axis=0), width[kept])

    def __call__(self, features_NF: Array) -> Array:
        scaled = (features_NF[:, self.kept] - self.centre) / self.width
        # With no column left, one of zeros keeps the algebra going: a constant is predicted.
        return scaled if self.kept.size else np.zeros((len(features_NF), 1))


@dataclass(frozen=True)
class _Solution:
    """A kernel regression at its best noise level.

    Attributes:
        error: mean squared weighted leave-one-out error.
        coefficients: ``(T,)``, what multiplies the kernel with each training row.
        left_out: ``(T,)``, unweighted leave-one-out errors.
    """

    error: float
    coefficients: Array
    left_out: Array


class KernelRegression:
    """Kernel ridge regression, which is the mean of a Gaussian process.

    The noise level, and which of `kernels` is used, are those with the smallest leave-one-out
    error, which has a closed form. Rounds of reweighting then keep measurements from bending the
    fit that a busy or throttled machine took.

    Args:
        kernels: candidates.
        target: ``log``: fit the logarithm; ``ms``: fit the latency, with noise proportional to
            it, as timing noise is.

    Source: Rasmussen and Williams, Gaussian Processes for Machine Learning (2006), eq. 2.25 and
    5.10 to 5.12; we take the squared leave-one-out error where they take its likelihood.
    """

    def __init__(self, kernels: tuple[Kernel, ...], target: Target) -> None:
        self._kernels = kernels
        self._target = target

    def fit(self, features_NF: Array, ms_N: Array) -> Self:
        """See `Regressor.fit`."""
        self._scale = _Scale.of(features_NF)
        self._rows_TF = self._scale(features_NF)
        self._range = ms_N.min() / _REACH, ms_N.max() * _REACH
        log = self._target == "log"
        values_N, weights_N = (np.log(ms_N), np.ones(len(ms_N))) if log else (ms_N, 1 / ms_N)
        self._offset = float(np.average(values_N, weights=weights_N**2))
        values_N = values_N - self._offset
        grams = [_with_level(kernel, self._rows_TF, self._rows_TF) for kernel in self._kernels]
        solutions = [_solve(gram_TT, values_N, weights_N) for gram_TT in grams]
        best = min(range(len(solutions)), key=lambda number: solutions[number].error)
        solution = solutions[best]
        for _ in range(_ROBUST_ROUNDS):
            trust_N = _trust(solution.left_out * weights_N)
            solution = _solve(grams[best], values_N, weights_N * trust_N)
        self._kernel, self._coefficients = self._kernels[best], solution.coefficients
        return self

    def predict(self, features_NF: Array) -> Array:
        """See `Regressor.predict`."""
        rows_NF = self._scale(features_NF)
        values = [
            _with_level(self._kernel, chunk_NF, self._rows_TF) @ self._coefficients
            for chunk_NF in np.array_split(rows_NF, max(1, -(-len(rows_NF) // _ROWS_AT_ONCE)))
        ]
        values_N = np.concatenate(values) + self._offset
        low, high = self._range
        if self._target == "log":
            values_N = np.exp(np.clip(values_N, np.log(low), np.log(high)))
        return np.clip(values_N, low, high)


def _with_level(kernel: Kernel, a_NF: Array, b_TF: Array) -> Array:
    # The constant leaves the level free, which the offset alone would fix.
    return kernel(a_NF, b_TF) + 1


def _solve(gram_TT: Array, values_T: Array, weights_T: Array) -> _Solution:
    scaled_TT = weights_T[:, None] * gram_TT * weights_T
    unit = float(np.trace(scaled_TT)) / len(values_T)
    eigenvalues_T, vectors_TT = np.linalg.eigh(scaled_TT / unit)
    projected_T = vectors_TT.T @ (weights_T * values_T)
    inverse_LT = 1 / (np.maximum(eigenvalues_T, 0) + _NOISES[:, None])
    solved_LT = (inverse_LT * projected_T) @ vectors_TT.T
    left_out_LT = solved_LT / (inverse_LT @ np.square(vectors_TT).T)
    errors_L = np.mean(np.square(left_out_LT), axis=1)
    best = int(np.argmin(errors_L))
    coefficients = weights_T * solved_LT[best] / unit
    return _Solution(float(errors_L[best]), coefficients, left_out_LT[best] / weights_T)


def _trust(errors_T: Array) -> Array:
    """Factors for the weights after which the larger half of the errors counts by size (Huber).

    The bound is low because slow spells of a device can take a tenth of the measurements along.
    """
    bound = float(np.median(np.abs(errors_T)))
    if bound <= 0:
        return np.ones_like(errors_T)
    return np.sqrt(bound / np.maximum(np.abs(errors_T), bound))


class BoostedTrees:
    """Gradient-boosted regression trees (LightGBM), small ones for small samples.

    Args:
        target: as in `KernelRegression`.
    """

    def __init__(self, target: Target) -> None:
        self._target = target

    def fit(self, features_NF: Array, ms_N: Array) -> Self:
        """See `Regressor.fit`."""
        log = self._target == "log"
        self._range = ms_N.min() / _REACH, ms_N.max() * _REACH
        self._unit = float(np.median(ms_N))
        values_N = ms_N / self._unit
        data = lightgbm.Dataset(
            features_NF,
            np.log(values_N) if log else values_N,
            weight=None if log else values_N**-2,
            params={"verbosity": -1, "min_data_in_bin": 1},
        )
        self._booster = lightgbm.train(_TREE_SETTINGS, data, num_boost_round=_TREES)
        return self

    def predict(self, features_NF: Array) -> Array:
        """See `Regressor.predict`."""
        values_N = np.asarray(self._booster.predict(features_NF, num_threads=1), dtype=np.float64)
        values_N = np.exp(values_N) if self._target == "log" else values_N
        return np.clip(values_N * self._unit, *self._range)


_TREES = 200
_TREE_SETTINGS: dict[str, object] = {
    "objective": "regression",
    "learning_rate": 0.06,
    "num_leaves": 8,
    "min_data_in_leaf": 3,
    "min_sum_hessian_in_leaf": 0.0,
    "feature_fraction": 0.6,
    "seed": 0,
    "deterministic": True,
    "force_row_wise": True,
    "num_threads": 1,
    "verbosity": -1,
}

CANDIDATES: Mapping[str, Callable[[], Regressor]] = {
    "linear": lambda: KernelRegression((_linear,), "ms"),
    "interactions": lambda: KernelRegression(_INTERACTIONS, "ms"),
    "interactions_log": lambda: KernelRegression(_INTERACTIONS, "log"),
    "gaussian_process": lambda: KernelRegression(_SMOOTH, "ms"),
    "gaussian_process_log": lambda: KernelRegression(_SMOOTH, "log"),
    "trees": lambda: BoostedTrees("ms"),
    "trees_log": lambda: BoostedTrees("log"),
}
