"""The interval of Kendall's tau: what it holds, and where there is none."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from experiments.tau_coverage import CLOUDS, drawn, true_tau
from nas.search.ranking.agreement import tau_interval


def naive(scores, losses):
    """Leaving each network out, one by one, by scipy."""
    count = len(scores)
    rest = [np.delete(np.arange(count), row) for row in range(count)]
    taus = [stats.kendalltau(scores[rows], losses[rows]).statistic for rows in rest]
    z = np.arctanh([stats.kendalltau(scores, losses).statistic, *taus])
    deviation = np.sqrt((count - 1) / count * np.sum((z[1:] - z[1:].mean()) ** 2))
    reach = stats.t.ppf(0.975, count - 1) * deviation
    return np.tanh([z[0] - reach, z[0] + reach])


@pytest.mark.parametrize("ties", [0, 4])
def test_equals_leaving_out_one_by_one(ties):
    rng = np.random.default_rng(ties)
    scores = rng.normal(size=20)
    losses = scores + rng.normal(size=20)
    if ties:
        scores, losses = np.round(scores * ties), np.round(losses * ties)
    assert tau_interval(scores, losses) == pytest.approx(naive(scores, losses))


@pytest.mark.parametrize("cloud", CLOUDS)
def test_it_holds_the_true_tau_as_often_as_it_says(cloud):
    """300 draws of 40 networks: 95 % of them within the error of such a count."""
    truth, rng = true_tau(cloud, 0.7), np.random.default_rng(1)
    held = 0
    for _ in range(300):
        low, high = tau_interval(*drawn(cloud, 0.7, 40, rng))
        held += low <= truth <= high
    assert held / 300 == pytest.approx(0.955, abs=0.03)


def test_several_rounds_are_as_good_as_their_mean():
    rng = np.random.default_rng(3)
    scores = rng.normal(size=40)
    rounds = scores + rng.normal(size=(4, 40))
    low, high = tau_interval(scores, rounds)
    assert low < np.mean([stats.kendalltau(scores, r).statistic for r in rounds]) < high
    assert high - low < np.diff(tau_interval(scores, rounds[0]))[0]
    assert tau_interval(scores, rounds[:1]) == tau_interval(scores, rounds[0])


def test_perfect_order_is_not_certainty():
    low, high = tau_interval(np.arange(8.0), np.arange(8.0))
    assert low < 0.9 and high == pytest.approx(1)
    low, high = tau_interval(np.arange(8.0), -np.arange(8.0))
    assert low == pytest.approx(-1) and high > -0.9


def test_where_tau_is_not_defined_there_is_no_interval():
    rising = np.arange(9.0)
    assert tau_interval(rising, np.zeros(9)) is None
    assert tau_interval(np.zeros(9), rising) is None
    assert tau_interval(rising, np.eye(9)[0]) is None  # without the first all are equal
    assert tau_interval(rising[:4], rising[:4]) is None
