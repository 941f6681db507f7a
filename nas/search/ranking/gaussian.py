"""A ranker that also knows how unsure it is: Gaussian-process regression of the losses.

Shapes: N networks, F features, T networks it was fitted to.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike
from scipy.linalg import solve_triangular
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import ConstantKernel, DotProduct, Matern, WhiteKernel
from threadpoolctl import ThreadpoolController

from nas.search.ranking.base import Floats, Ranker, with_logs

ROWS_AT_ONCE = 4096
JITTER = 1e-8
NEGLIGIBLE = 1e-6  # of the median loss: a rounding error, as of the checkpoint beside itself

# To look for the libraries anew takes ten times as long as a prediction.
_THREADS = ThreadpoolController()


class GaussianProcess(Ranker):
    """A straight trend plus smooth deviations of the logarithm of the loss.

    Of the loss itself where one is nought or next to it: its logarithm would lie so far from all
    others that these looked alike. Both see standardised features and their logarithms. How strong
    each is, how far the deviations reach and how loud the noise is are the values of largest
    marginal likelihood.

    Attributes:
        noise: variance of an observation, in units of that of the logarithms.

    Source: Rasmussen and Williams, Gaussian Processes for Machine Learning, 2006, eq. 2.25, 2.26
    and 5.8; the learner is scikit-learn's.
    """

    kind: ClassVar[str] = "gaussian-process"

    def __init__(self) -> None:
        super().__init__()
        self.name = "Gaussian process"
        self._theta: Floats | None = None

    def _fit(self, features: Floats, losses: Floats) -> None:
        columns = with_logs(features)
        self._features, self._losses = features, losses
        self._mean, spread = columns.mean(axis=0), columns.std(axis=0)
        self._scale = np.where(spread > 1e-12 * (1 + np.abs(self._mean)), spread, np.inf)
        target = np.log(losses) if losses.min() > NEGLIGIBLE * np.median(losses) else losses
        width = float(target.std())
        varies = width > 1e-12 * (1 + abs(float(target.mean())))
        target = (target - target.mean()) / width if varies else np.zeros(len(target))
        self._rows = self._columns(features)
        trend = ConstantKernel(1.0, (1e-4, 1e3)) * DotProduct(0.0, "fixed")
        smooth = ConstantKernel(1.0, (1e-4, 1e3)) * Matern(1.0, (0.05, 50.0), nu=2.5)
        kernel = trend + smooth + WhiteKernel(0.05, (1e-6, 1.0))
        if self._theta is not None:
            kernel = kernel.clone_with_theta(self._theta)
        process = GaussianProcessRegressor(
            kernel, alpha=JITTER, optimizer="fmin_l_bfgs_b" if self._theta is None else None
        )
        with warnings.catch_warnings(), _THREADS.limit(limits=1):
            # A strength at the end of its range is an answer like any other.
            warnings.simplefilter("ignore", ConvergenceWarning)
            process.fit(self._rows, target)
        self._theta = np.asarray(process.kernel_.theta, dtype=np.float64)
        self._signal, self.noise = process.kernel_.k1, process.kernel_.k2.noise_level + JITTER
        self._alpha, self._factor = np.ravel(process.alpha_), process.L_

    def _columns(self, features: Floats) -> Floats:
        columns: Floats = (with_logs(features) - self._mean) / self._scale
        columns /= np.sqrt(columns.shape[1])
        return columns

    def _scores(self, features: Floats) -> Floats:
        return self._posterior(features, with_deviation=False)[0]

    def deviations(self, features: ArrayLike) -> Floats:
        """See `Ranker.deviations`: the posterior's, without the noise of an observation."""
        scores, spread = self._posterior(self._known(features), with_deviation=True)
        half: Floats = (self._calibrated(scores + spread) - self._calibrated(scores - spread)) / 2
        return half

    def _posterior(self, features: Floats, with_deviation: bool) -> tuple[Floats, Floats]:
        """Mean and standard deviation of the score, ``(N,)`` each; 0 where not asked for."""
        scores, spread = np.zeros(len(features)), np.zeros(len(features))
        with _THREADS.limit(limits=1):
            for start in range(0, len(features), ROWS_AT_ONCE):
                rows = slice(start, start + ROWS_AT_ONCE)
                columns = self._columns(features[rows])
                near_NT = self._signal(columns, self._rows)
                scores[rows] = near_NT @ self._alpha
                if with_deviation:
                    explained_TN = solve_triangular(self._factor, near_NT.T, lower=True)
                    left = self._signal.diag(columns) - np.square(explained_TN).sum(axis=0)
                    spread[rows] = np.sqrt(np.maximum(left, 0.0))
        return scores, spread

    def _contributions(self, features: Floats) -> Floats:
        """Mean absolute change of the score when one feature of all networks becomes average."""
        scores = self._scores(features)
        parts = np.zeros(features.shape[1])
        for column in range(features.shape[1]):
            without = features.copy()
            without[:, column] = features[:, column].mean()
            parts[column] = np.abs(scores - self._scores(without)).mean()
        return parts

    def _state(self) -> dict[str, Any]:
        assert self._theta is not None
        return {
            "features": self._features.tolist(),
            "losses": self._losses.tolist(),
            "theta": self._theta.tolist(),
        }

    @classmethod
    def _from_state(cls, state: Mapping[str, Any]) -> Self:
        ranker = cls()
        ranker._theta = np.array(state["theta"], dtype=np.float64)
        features = np.array(state["features"], dtype=np.float64)
        ranker._fit(features, np.array(state["losses"], dtype=np.float64))
        return ranker
