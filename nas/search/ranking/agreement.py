"""An interval for Kendall's tau that holds the true one as often as it says.

Shapes: N networks, R independent rounds of losses of the same networks.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

Floats = NDArray[np.float64]

LEVEL = 0.95
LEAST_COUNT = 5


def tau_interval(scores: ArrayLike, losses: ArrayLike) -> tuple[float, float] | None:
    """A 95 % interval of tau-b, networks being what is drawn at random.

    The deviation comes from leaving out one network after the other, on Fisher's scale
    ``artanh τ``, where it hardly depends on τ; its quantiles are Student's. Nothing is drawn.
    Where all pairs agree nothing varies; then the variance is Fieller's, ``0.437 / (N - 4)``, at
    half a pair short of agreement.

    ``python -m experiments.tau_coverage`` draws data of which tau is known (normal, skewed with
    growing noise, uniform; τ of 0.12 to 0.84). Of 1,000 draws the interval holds it in 0.939 to
    0.996 with 16 to 64 networks and in 0.935 to 0.998 with 8: it is too wide where tau is large,
    and hardly ever too narrow. Resampled networks, which were used before, gave 0.926 to 0.994 and
    0.866 to 0.976.

    Args:
        scores: ``(N,)``.
        losses: ``(N,)``, or ``(R, N)`` for the mean tau over independent rounds.

    Returns:
        Lower and upper end, or None with fewer than five networks or where tau is not defined
        (everything ties).

    Source: Arvesen, Jackknifing U-statistics, 1969; Fieller, Hartley and Pearson, Tests for rank
    correlation coefficients, 1957, for the scale and the variance at its end.
    """
    order, rounds = np.asarray(scores, dtype=np.float64), np.atleast_2d(losses)
    count = len(order)
    if count < LEAST_COUNT or np.ptp(order) == 0 or (np.ptp(rounds, axis=1) == 0).any():
        return None
    tau = float(np.mean([stats.kendalltau(order, round_N).statistic for round_N in rounds]))
    without_N = np.mean([_taus_without_each(order, round_N) for round_N in rounds], axis=0)
    if not np.isfinite(without_N).all():  # one network alone breaks a tie of all others
        return None
    most = 1 - 2 / (count * (count - 1))
    middle, *parts = np.arctanh(np.clip([tau, *without_N], -most, most))
    deviation = np.std(parts) * np.sqrt(count - 1) or np.sqrt(0.437 / (count - 4))
    reach = stats.t.ppf((1 + LEVEL) / 2, count - 1) * deviation
    low, high = np.tanh([middle - reach, middle + reach]).tolist()
    return min(low, tau), max(high, tau)


def _taus_without_each(scores: Floats, losses: Floats) -> Floats:
    """Tau-b of all networks but one, for each one, ``(N,)``; NaN where it is not defined."""
    by_score = np.sign(scores[:, None] - scores[None, :])
    by_loss = np.sign(losses[:, None] - losses[None, :])

    def without_each(pairs: Floats) -> Floats:
        left: Floats = pairs.sum() - 2 * pairs.sum(axis=1)
        return left

    with np.errstate(invalid="ignore", divide="ignore"):
        taus: Floats = without_each(by_score * by_loss) / np.sqrt(
            without_each(by_score**2) * without_each(by_loss**2)
        )
    return taus
