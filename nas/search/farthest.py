"""Points that lie far from each other: a few that stand for many."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def farthest_first(
    points: NDArray[np.float64],
    centres: NDArray[np.int64],
    among: NDArray[np.int64],
    count: int,
) -> NDArray[np.int64]:
    """The point farthest from all there is, then the farthest from those and from it, and so on.

    Args:
        points: ``(N, D)``, compared by Euclidean distance.
        centres: indices of those that are there already; without any the first is ``among[0]``.
        among: indices of those that may be taken. A centre is not taken, even where another point
            lies at the same place.
        count: how many to take, fewer where there are not as many.

    Returns:
        Indices in the order in which they are taken; of equally far ones the first in `among`.

    Source: Gonzalez, Clustering to minimize the maximum intercluster distance (1985).
    """
    gap = np.full(len(among), np.inf)

    def move_in(centre: int) -> None:
        np.minimum(gap, np.linalg.norm(points[among] - points[centre], axis=1), out=gap)
        gap[among == centre] = -1.0

    for centre in centres:
        move_in(int(centre))
    taken: list[int] = []
    for _ in range(min(count, int((~np.isin(among, centres)).sum()))):
        taken.append(int(among[np.argmax(gap)]))
        move_in(taken[-1])
    return np.array(taken, dtype=np.int64)
