"""Does the 95 % interval of Kendall's tau hold the true one in 95 % of all draws?

``python -m experiments.tau_coverage``

Scores and losses of networks are drawn of which tau is known, from few to many at a time; counted
is how often the interval of `nas.search.ranking.agreement` holds it, and how often the quantiles of
resampled networks do, which were used before. Prints a table; some minutes.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.table import Table
from scipy.stats import kendalltau

from experiments.harness import Options, Study, positive, table_of
from nas.search.ranking.agreement import tau_interval

Floats = NDArray[np.float64]
Noise = Callable[[Floats, np.random.Generator], Floats]

COUNTS = (8, 16, 24, 40, 64)
SHARES = (0.3, 0.7, 0.9, 0.97)
RESAMPLES = 200
# The mark: how often our interval holds at least, with at least so many networks.
LEAST_HELD, FROM = 0.935, 16
MANY = 20_000


def _normal(x: Floats, rng: np.random.Generator) -> Floats:
    return rng.normal(size=len(x))


def _skewed(x: Floats, rng: np.random.Generator) -> Floats:
    return (0.2 + x) * rng.normal(size=len(x))


def _uniform(x: Floats, rng: np.random.Generator) -> Floats:
    return rng.uniform(-0.5, 0.5, size=len(x))


# How the true losses are spread, and the noise of the scores.
CLOUDS: Mapping[str, tuple[str, Noise]] = {
    "normal": ("normal", _normal),
    "skewed, noise grows": ("exponential", _skewed),
    "uniform": ("uniform", _uniform),
}


def drawn(cloud: str, share: float, count: int, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """Scores and losses ``(N,)``; tau rises with the share of the losses in the scores."""
    spread, noise = CLOUDS[cloud]
    losses: Floats = getattr(rng, spread)(size=count)
    return losses + np.sqrt(1 - share**2) / share * noise(losses, rng), losses


def true_tau(cloud: str, share: float) -> float:
    """Tau of very many networks."""
    return float(kendalltau(*drawn(cloud, share, MANY, np.random.default_rng(7))).statistic)


def resampled(scores: Floats, losses: Floats, rng: np.random.Generator) -> tuple[float, float]:
    """The interval that was used before: quantiles of tau over networks drawn anew."""
    by_score, by_loss = (np.sign(x[:, None] - x[None, :]) for x in (scores, losses))
    times_RN = rng.multinomial(len(scores), np.full(len(scores), 1 / len(scores)), RESAMPLES)

    def over_pairs(pairs: Floats) -> Floats:
        summed: Floats = ((times_RN @ pairs) * times_RN).sum(axis=1)
        return summed

    spread = over_pairs(by_score**2) * over_pairs(by_loss**2)
    taus = over_pairs(by_score * by_loss)[spread > 0] / np.sqrt(spread[spread > 0])
    low, high = np.quantile(taus, (0.025, 0.975)).tolist()
    return low, high


def measure(options: Options) -> list[dict[str, object]]:
    """One row for each cloud, share and count."""
    rows: list[dict[str, object]] = []
    rng, draws = np.random.default_rng(options.seed), options.draws
    for cloud in CLOUDS:
        for share in SHARES:
            truth = true_tau(cloud, share)
            for count in COUNTS:
                held = np.zeros(2)
                for _ in range(draws):
                    pair = drawn(cloud, share, count, rng)
                    ends = (tau_interval(*pair), resampled(*pair, rng))
                    held += [end is not None and end[0] <= truth <= end[1] for end in ends]
                ours, before = (held / draws).tolist()
                known = {"cloud": cloud, "tau": truth, "networks": count}
                rows.append({**known, "ours": ours, "before": before})
    return rows


def show(rows: list[dict[str, object]]) -> Iterator[Table]:
    """The rows."""
    cells = [
        (
            row["cloud"],
            f"{row['tau']:.2f}",
            row["networks"],
            f"{row['ours']:.3f}",
            f"{row['before']:.3f}",
        )
        for row in rows
    ]
    heads = ("cloud", "true τ", "networks", "ours", "resampled")
    yield table_of("share of draws whose interval holds the true tau", heads, cells)


def met(rows: list[dict[str, Any]]) -> bool:
    """Whether our interval holds often enough, whatever the data."""
    return all(row["ours"] >= LEAST_HELD for row in rows if row["networks"] >= FROM)


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of the study."""
    parser.add_argument("--draws", type=positive, default=1000, help="default: %(default)s")
    parser.add_argument("--seed", type=int, default=0, help="default: %(default)s")


STUDY = Study(
    "tau_coverage", "Does the interval of tau hold what it says?", add_options, measure, show, met
)

if __name__ == "__main__":
    sys.exit(STUDY.main())
