"""The regressions a latency predictor chooses from: features in, milliseconds out.

All are deterministic, fit for few observations, and minimise *relative* errors: those of the
latency divided by what was observed. None fits the logarithm, since time is a sum.

N: networks; F: features; T: training networks; L: noise levels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol, Self

import numpy as np
from numpy.typing import NDArray

from latency.kernels import Array, Kernel, Posterior, chunks, gram_eigen
from latency.lightgbm_library import lightgbm_loads, load_lightgbm

# Predictions stay within this factor of the range that was observed.
_REACH = 4.0
_NOISES = np.logspace(-8, 2, 21)
_ROBUST_ROUNDS = 4
_USUAL_ERRORS = 2.0
_SHARED = 1e-6
# A network near those observed is not surer than this share of the typical error.
_LEAST_SPREAD = 0.5


class Regressor(Protocol):
    """What `LatencyPredictor` needs of a candidate."""

    def fit(self, features_NF: Array, ms_N: Array, weights_N: Array | None = None) -> Self:
        """Fit to finite features and positive latencies; at least two rows.

        Weights are positive; a row of weight 0.5 counts as one with twice the noise.
        """

    def predict(self, features_NF: Array) -> Array:
        """Latencies in ms, ``(N,)``, positive and finite."""

    def spread(self, features_NF: Array, ms_N: Array) -> Array:
        """How unsure the predictions `ms_N` are, ``(N,)``, in ms up to a factor for all rows.

        Not negative; it grows with the distance from the rows of `fit`.
        """


_LINEAR = (Kernel(),)
_INTERACTIONS = tuple(Kernel(products=share) for share in (0.005, 0.05, 0.5))
_SMOOTH = tuple(
    Kernel(near=share, length=length) for length in (0.5, 1.0, 2.0) for share in (0.01, 0.1, 1.0)
)


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
        weights: ``(T,)``, of the training rows.
        eigen: of the weighted Gram matrix divided by `unit`.
        unit: mean of that matrix's diagonal.
        noise: variance of the noise relative to `unit`.
        scale: of all variances, so that the leave-one-out errors are as large as expected.
    """

    error: float
    coefficients: Array
    left_out: Array
    weights: Array
    eigen: tuple[Array, Array]
    unit: float
    noise: float
    scale: float


class KernelRegression:
    """Kernel ridge regression, which is the mean of a Gaussian process.

    The noise level, and which of `kernels` is used, are those with the smallest leave-one-out
    error, which has a closed form. Noise is proportional to the latency, as that of timings is.
    Rounds of reweighting then keep measurements from bending the fit that a busy or throttled
    machine took.

    Args:
        kernels: candidates.
        costs: fit what a sum of costs leaves, see `_Costs`.

    Source: Rasmussen and Williams, Gaussian Processes for Machine Learning (2006), eq. 2.25, 2.26
    and 5.10 to 5.12; we take the squared leave-one-out error where they take its likelihood.
    """

    def __init__(self, kernels: tuple[Kernel, ...], costs: bool = False) -> None:
        self._kernels = kernels
        self._num_costs = None if costs else 0

    def fit(self, features_NF: Array, ms_N: Array, weights_N: Array | None = None) -> Self:
        """See `Regressor.fit`."""
        self._scale = _Scale.of(features_NF)
        self._rows_TF = self._scale(features_NF)
        self._range = ms_N.min() / _REACH, ms_N.max() * _REACH
        weights_T = 1 / ms_N if weights_N is None else weights_N / ms_N
        self._sum = _Costs(features_NF[:, : self._num_costs], ms_N, weights_T)
        values_T = ms_N - self._sum(features_NF[:, : self._num_costs])
        grams = [kernel(self._rows_TF, self._rows_TF) for kernel in self._kernels]
        solutions = [_solve(gram_TT, values_T, weights_T) for gram_TT in grams]
        best = min(range(len(solutions)), key=lambda number: solutions[number].error)
        solution = solutions[best]
        for _ in range(_ROBUST_ROUNDS):
            trust_T = _trust(solution.left_out * weights_T)
            solution = _solve(grams[best], values_T, weights_T * trust_T)
        self._kernel, self._solution = self._kernels[best], solution
        self._posterior = Posterior(
            self._kernel,
            self._rows_TF,
            solution.weights,
            solution.eigen,
            solution.unit,
            solution.noise,
        )
        return self

    def predict(self, features_NF: Array) -> Array:
        """See `Regressor.predict`."""
        values = [
            self._kernel(chunk_NF, self._rows_TF) @ self._solution.coefficients
            for chunk_NF in chunks(self._scale(features_NF))
        ]
        values_N = self._sum(features_NF[:, : self._num_costs]) + np.concatenate(values)
        return np.clip(values_N, *self._range)

    def spread(self, features_NF: Array, ms_N: Array) -> Array:
        """See `Regressor.spread`: the process's own variance, and the noise of a measurement."""
        found = self._solution
        unknown_N = found.scale * self._posterior.variance(self._scale(features_NF))
        noise = found.scale * found.noise + _LEAST_SPREAD**2 * found.error
        return np.asarray(np.sqrt(unknown_N + noise * ms_N**2), dtype=np.float64)


def _solve(gram_TT: Array, values_T: Array, weights_T: Array) -> _Solution:
    scaled_TT = weights_T[:, None] * gram_TT * weights_T
    unit = float(np.trace(scaled_TT)) / len(values_T)
    eigenvalues_T, vectors_TT = np.linalg.eigh(scaled_TT / unit)
    projected_T = vectors_TT.T @ (weights_T * values_T)
    inverse_LT = 1 / (np.maximum(eigenvalues_T, 0) + _NOISES[:, None])
    solved_LT = (inverse_LT * projected_T) @ vectors_TT.T
    precision_LT = inverse_LT @ np.square(vectors_TT).T
    left_out_LT = solved_LT / precision_LT
    errors_L = np.mean(np.square(left_out_LT), axis=1)
    best = int(np.argmin(errors_L))
    return _Solution(
        error=float(errors_L[best]),
        coefficients=weights_T * solved_LT[best] / unit,
        left_out=left_out_LT[best] / weights_T,
        weights=weights_T,
        eigen=(eigenvalues_T, vectors_TT),
        unit=unit,
        noise=float(_NOISES[best]),
        scale=float(np.mean(np.square(left_out_LT[best]) * precision_LT[best])),
    )


def _trust(errors_T: Array) -> Array:
    """Factors for the weights after which a wild measurement hardly counts (Cauchy).

    The bound is low because slow spells of a device can take a tenth of the measurements along.
    """
    bound = _USUAL_ERRORS * float(np.median(np.abs(errors_T)))
    if bound <= 0:
        return np.ones_like(errors_T)
    return np.asarray(1 / np.sqrt(1 + np.square(errors_T / bound)), dtype=np.float64)


class _Costs:
    """A sum of costs, none of them negative: a constant, and one for each unit of a feature.

    That no cost is negative keeps features that are much alike from cancelling each other, so that
    there may be as many of them as rows.

    Args:
        features_NF: features of N rows; of none only the constant is left.
        ms_N, weights_N: their times, and by what errors are multiplied before they are squared.
    """

    def __init__(self, features_NF: Array, ms_N: Array, weights_N: Array) -> None:
        from scipy.optimize import nnls  # late: it takes long to load

        self._unit = np.maximum(np.abs(features_NF).max(axis=0), 1e-300)
        parts_NP = self._parts(features_NF)
        # Features that say the same share their cost.
        sharing_PP = _SHARED * weights_N.mean() * np.eye(parts_NP.shape[1])
        trust_N = np.ones(len(ms_N))
        for _ in range(1 + _ROBUST_ROUNDS):
            rows = np.vstack([parts_NP * (weights_N * trust_N)[:, None], sharing_PP])
            values = np.concatenate([ms_N * weights_N * trust_N, np.zeros(len(sharing_PP))])
            self._costs, _ = nnls(rows, values, maxiter=100 * len(sharing_PP))
            trust_N = _trust((self(features_NF) - ms_N) * weights_N)

    def __call__(self, features_NF: Array) -> Array:
        return np.asarray(self._parts(features_NF) @ self._costs, dtype=np.float64)

    def _parts(self, features_NF: Array) -> Array:
        return np.column_stack([np.ones(len(features_NF)), features_NF / self._unit])


class BoostedTrees:
    """Gradient-boosted regression trees (LightGBM), small ones for small samples."""

    def fit(self, features_NF: Array, ms_N: Array, weights_N: Array | None = None) -> Self:
        """See `Regressor.fit`."""
        lightgbm = load_lightgbm()
        self._scale = _Scale.of(features_NF)
        self._range = ms_N.min() / _REACH, ms_N.max() * _REACH
        self._unit = float(np.median(ms_N))
        values_N = ms_N / self._unit
        weights_N = 1.0 / values_N if weights_N is None else weights_N / values_N
        data = lightgbm.Dataset(
            features_NF,
            values_N,
            weight=weights_N**2,
            params={"verbosity": -1, "min_data_in_bin": 1},
        )
        self._booster = lightgbm.train(_TREE_SETTINGS, data, num_boost_round=_TREES)
        rows_TF = self._scale(features_NF)
        eigen = gram_eigen(_SURROUNDINGS, rows_TF)
        ones_T = np.ones(len(ms_N))
        self._posterior = Posterior(_SURROUNDINGS, rows_TF, ones_T, eigen, 1.0, _TREE_NOISE)
        return self

    def predict(self, features_NF: Array) -> Array:
        """See `Regressor.predict`."""
        values_N = np.asarray(self._booster.predict(features_NF, num_threads=1), dtype=np.float64)
        return np.clip(values_N * self._unit, *self._range)

    def spread(self, features_NF: Array, ms_N: Array) -> Array:
        """See `Regressor.spread`: by what a Gaussian process would not know of these rows.

        Trees say the same everywhere beyond their last split, so they cannot tell themselves.
        """
        return ms_N * np.sqrt(self._posterior.variance(self._scale(features_NF)) + _TREE_NOISE)


_SURROUNDINGS = Kernel(near=1.0, length=1.0)
_TREE_NOISE = 0.1
_TREES = 200
# LightGBM counts the rows of a leaf by their weights. At a least weight of 0 a side without any row
# passes by what rounding leaves there, and LightGBM gives up; with 1e-9 it cannot.
_TREE_SETTINGS: dict[str, object] = {
    "objective": "regression",
    "learning_rate": 0.06,
    "num_leaves": 8,
    "min_data_in_leaf": 3,
    "min_sum_hessian_in_leaf": 1e-9,
    "feature_fraction": 0.6,
    "seed": 0,
    "deterministic": True,
    "force_row_wise": True,
    "num_threads": 1,
    "verbosity": -1,
}

TREES = "trees"
# From the simple to the less so; those `ON_TERMS` get the terms of a sum where these are known.
CANDIDATES: Mapping[str, Callable[[], Regressor]] = {
    "sum_of_costs": lambda: KernelRegression(_INTERACTIONS, costs=True),
    "linear": lambda: KernelRegression(_LINEAR),
    "gaussian_process": lambda: KernelRegression(_SMOOTH),
    TREES: BoostedTrees,
}
ON_TERMS = ("sum_of_costs", "gaussian_process")


def fitted_here() -> Mapping[str, Callable[[], Regressor]]:
    """`CANDIDATES` without the trees where LightGBM does not load."""
    return {name: make for name, make in CANDIDATES.items() if name != TREES or lightgbm_loads()}
