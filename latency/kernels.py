"""Kernels for regressions on few networks, and how far a network lies from those observed.

N: networks; F: features; T: training networks.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

_ROWS_AT_ONCE = 2048


@dataclass(frozen=True)
class Kernel:
    """A straight trend, with products of features and a smooth deviation where asked for.

    The level is free: a constant is part of every kernel, which an offset alone would fix.

    Attributes:
        products: prior variance of every square and product of two features, relative to that of
            a feature.
        near: prior variance of a deviation that is alike for networks near each other.
        length: root mean square of the feature differences over which it is forgotten.
    """

    products: float = 0.0
    near: float = 0.0
    length: float = 1.0

    def __call__(self, a_NF: Array, b_TF: Array) -> Array:
        """Prior covariance of two sets of standardised rows, ``(N, T)``."""
        linear: Array = a_NF @ (b_TF.T / a_NF.shape[1])
        total = linear
        if self.products:
            total = total + self.products * np.square(linear)
        if self.near:
            norms_N, norms_T = (np.mean(np.square(x), axis=1) for x in (a_NF, b_TF))
            distance = norms_N[:, None] + norms_T - 2 * linear
            near: Array = np.exp(np.maximum(distance, 0) / (-2 * self.length**2))
            total = total + self.near * near
        return total + 1

    def diagonal(self, rows_NF: Array) -> Array:
        """Prior variance of each row, ``(N,)``."""
        norms_N: Array = np.mean(np.square(rows_NF), axis=1)
        return norms_N + self.products * np.square(norms_N) + self.near + 1


class Posterior:
    """What a Gaussian process still does not know at a row after the training rows.

    Args:
        kernel: of the process.
        rows_TF: standardised training rows.
        weights_T: by which training values were multiplied.
        eigen: eigenvalues and eigenvectors of the weighted Gram matrix, divided by `unit`.
        unit: of the variances.
        noise: variance of the noise in that unit.

    Source: Rasmussen and Williams, Gaussian Processes for Machine Learning (2006), eq. 2.26.
    """

    def __init__(
        self,
        kernel: Kernel,
        rows_TF: Array,
        weights_T: Array,
        eigen: tuple[Array, Array],
        unit: float,
        noise: float,
    ) -> None:
        values_T, vectors_TT = eigen
        scale_T = np.sqrt(1 / (np.maximum(values_T, 0) + noise))
        self._kernel, self._rows_TF, self._unit = kernel, rows_TF, unit
        self._factor_TT = weights_T[:, None] / unit * vectors_TT * scale_T

    def variance(self, rows_NF: Array) -> Array:
        """Variance of standardised rows without noise, ``(N,)``, at least 0."""
        parts = [self._variance(chunk_NF) for chunk_NF in chunks(rows_NF)]
        return np.concatenate(parts)

    def _variance(self, rows_NF: Array) -> Array:
        known_N = np.sum(np.square(self._kernel(rows_NF, self._rows_TF) @ self._factor_TT), axis=1)
        left_N: Array = self._kernel.diagonal(rows_NF) / self._unit - known_N
        return np.maximum(left_N, 0)


def chunks(rows_NF: Array) -> list[Array]:
    """The rows in parts small enough for a matrix with all training rows; at least one part."""
    return np.array_split(rows_NF, max(1, -(-len(rows_NF) // _ROWS_AT_ONCE)))


def gram_eigen(kernel: Kernel, rows_TF: Array) -> tuple[Array, Array]:
    """Eigenvalues and eigenvectors of the Gram matrix of the rows."""
    found = np.linalg.eigh(kernel(rows_TF, rows_TF))
    return found.eigenvalues, found.eigenvectors
