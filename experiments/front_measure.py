"""Hypervolume as the field measures it: by the extent of a reference front.

Shapes: N points, two objectives.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from nas.search.pareto import hypervolume, non_dominated

Floats = NDArray[np.float64]

# Objectives are scaled so that the reference front reaches from 0 to 1; this is the far corner.
MARGIN = 1.1


@dataclass(frozen=True, eq=False)
class Measure:
    """Hypervolume as a share of the reference front's."""

    low: Floats
    extent: Floats
    whole: float

    @classmethod
    def of(cls, points: Floats) -> Self:
        """The measure whose reference is the front of these points ``(N, 2)``."""
        front = points[non_dominated(points)]
        measure = cls(front.min(axis=0), np.ptp(front, axis=0), 1.0)
        return cls(measure.low, measure.extent, measure.share(front))

    def share(self, points: Floats) -> float:
        """Of points ``(N, 2)``."""
        scaled = (points - self.low) / self.extent
        return hypervolume(scaled, np.full(2, MARGIN)) / self.whole

    def first_reach(self, points: Floats, level: float) -> float:
        """How many of the points, in order, it takes to this share; infinity if all do not."""
        if self.share(points) < level:
            return np.inf
        low, high = 1, len(points)
        while low < high:
            middle = (low + high) // 2
            low, high = (
                (low, middle) if self.share(points[:middle]) >= level else (middle + 1, high)
            )
        return low
