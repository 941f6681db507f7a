"""Which networks promise the largest gain of hypervolume."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import norm

from nas.search.pareto import hypervolume
from nas.search.searchers.base import Floats
from nas.search.searchers.gain import MARGIN, by_chance, expected_gains, greedy_gain

FRONT = np.array([[0.0, 1.0], [1.0, 0.0]])
SHARES = 200  # middles of equal shares of a normal distribution, in the place of an integral


def sure(expected: Floats, count: int) -> list[int]:
    return greedy_gain(expected, np.zeros(len(expected)), FRONT, count)


def naive(expected: Floats, deviations: Floats, front: Floats, count: int) -> list[int]:
    """Every gain anew for every pick, without a queue."""
    everything = np.concatenate([front, expected])
    low, extent = everything.min(axis=0), np.ptp(everything, axis=0)
    corner = low + MARGIN * extent
    steps = norm.ppf((np.arange(SHARES) + 0.5) / SHARES)
    picked: list[int] = []
    for _ in range(count):
        gains = np.zeros(len(expected))
        for row, (mean, deviation) in enumerate(zip(expected, deviations, strict=True)):
            outlook = [mean + np.eye(len(mean))[0] * deviation * step for step in steps]
            gains[row] = np.mean([hypervolume(np.vstack([front, p]), corner) for p in outlook])
        gains[picked] = 0.0
        picked.append(int(np.argmax(gains)))
        front = np.vstack([front, expected[picked[-1]]])
    return picked


def test_the_largest_gain_comes_first() -> None:
    assert sure(np.array([[0.9, 0.9], [0.2, 0.2], [0.5, 0.4]]), 1) == [1]


def test_what_was_picked_counts_for_the_next() -> None:
    assert sure(np.array([[0.3, 0.3], [0.31, 0.31], [0.05, 0.9]]), 3) == [0, 2]


@pytest.mark.parametrize("objectives", [2, 3])
@pytest.mark.parametrize("spread", [0.0, 0.02, 0.3])
def test_equals_trying_every_row_for_every_pick(objectives: int, spread: float) -> None:
    rng = np.random.default_rng(objectives)
    expected, front = rng.random((20, objectives)), 0.5 + rng.random((4, objectives))
    expected /= expected.sum(axis=1, keepdims=True)
    deviations = spread * rng.random(20)
    picked = greedy_gain(expected, deviations, front, 5)
    assert picked == naive(expected, deviations, front, 5)


def test_a_dominated_network_is_picked_for_its_chance_alone() -> None:
    front, expected = np.array([[0.5, 0.0], [0.0, 1.0]]), np.array([[0.6, 0.1]])
    assert greedy_gain(expected, np.array([0.0]), front, 1) == []
    assert greedy_gain(expected, np.array([0.2]), front, 1) == [0]


def test_the_sure_gain_comes_before_a_faint_chance_of_the_same() -> None:
    front = np.array([[0.5, 0.0], [0.0, 1.0]])
    expected = np.array([[0.3, 0.3], [0.5, 0.3]])
    assert greedy_gain(expected, np.array([0.0, 0.2]), front, 2) == [0, 1]


def test_nothing_to_pick_from_gives_nothing() -> None:
    assert sure(np.zeros((0, 2)), 3) == []
    assert greedy_gain(np.array([[2.0, 2.0]]), np.zeros(1), np.zeros((1, 2)), 3) == []
    assert greedy_gain(np.array([[0.1, 0.1]]), np.zeros(1), FRONT, 0) == []


def test_without_a_front_the_largest_box_comes_first() -> None:
    expected = np.array([[0.5, 0.5], [0.0, 1.0], [1.0, 0.0]])
    assert greedy_gain(expected, np.zeros(3), np.zeros((0, 2)), 1) == [0]


# -- the expectation itself ----------------------------------------------------------------------


def expected_gain(mean: Floats, deviation: float, front: Floats, corner: Floats) -> float:
    (found,) = expected_gains(mean[None], np.array([deviation]), front, corner)
    return float(found)


def sampled_gain(mean: Floats, deviation: float, front: Floats, corner: Floats) -> float:
    """Mean gain of a million draws of the quality; in two objectives a staircase is added up."""
    drawn = mean[0] + deviation * np.random.default_rng(5).normal(size=1_000_000)
    front = front[np.argsort(front[:, 0])]
    begins = np.r_[-np.inf, front[:, 0]]
    ends = np.minimum(np.r_[front[:, 0], corner[0]], corner[0])
    heights = np.minimum.accumulate(np.r_[corner[1], front[:, 1]]) - mean[1]
    total = 0.0
    for begin, end, height in zip(begins, ends, np.maximum(heights, 0), strict=True):
        total += height * np.maximum(end - np.maximum(drawn, begin), 0).mean()
    return float(total)


@pytest.mark.parametrize("behind", [-2.0, -0.5, 0.0, 0.5, 1.5, 2.0, 2.5, 3.0])
def test_the_expected_gain_is_that_of_a_million_samples(behind: float) -> None:
    front = np.array([[0.1, 0.9], [0.3, 0.5], [0.45, 0.42], [0.8, 0.1], [1.3, 0.05]])
    corner, deviation = np.array([1.1, 1.1]), 0.04
    for cost, to_beat in ((0.95, 0.1), (0.6, 0.3), (0.45, 0.45)):
        mean = np.array([to_beat + behind * deviation, cost])
        found = expected_gain(mean, deviation, front, corner)
        wanted = sampled_gain(mean, deviation, front, corner)
        assert found > 0 and found == pytest.approx(wanted, rel=0.03)


@pytest.mark.parametrize("objectives", [2, 3, 4])
def test_the_expected_gain_is_an_integral_of_hypervolumes(objectives: int) -> None:
    rng = np.random.default_rng(objectives)
    front, corner = rng.random((12, objectives)), np.full(objectives, 0.9)
    steps, width = np.linspace(-6, 6, 4001, retstep=True)
    for mean in rng.random((5, objectives)):
        points = mean + 0.1 * steps[:, None] * np.eye(objectives)[0]
        before = hypervolume(front, corner)
        gains = [hypervolume(np.vstack([front, point]), corner) - before for point in points]
        wanted = float(np.sum(np.array(gains) * norm.pdf(steps)) * width)
        assert expected_gain(mean, 0.1, front, corner) == pytest.approx(wanted, abs=1e-6)


def test_without_doubt_the_expected_gain_is_the_gain() -> None:
    corner = np.array([1.1, 1.1])
    assert expected_gain(np.array([0.5, 0.5]), 0.0, FRONT, corner) == pytest.approx(0.25)
    assert expected_gain(np.array([0.5, 1.0]), 0.0, FRONT, corner) == 0
    assert expected_gain(np.array([0.5, 1.2]), 0.5, FRONT, corner) == 0


@pytest.mark.parametrize("objectives", [2, 3])
def test_gains_of_many_are_those_of_each_to_the_bit(objectives: int) -> None:
    rng = np.random.default_rng(objectives)
    count = 300 if objectives == 2 else 20  # in two parts, one after the other
    means, front, corner = rng.random((count, objectives)), rng.random((7, objectives)), np.ones(3)
    corner, deviations = corner[:objectives] * 0.9, rng.random(count) * (rng.random(count) < 0.8)
    found = expected_gains(means, deviations, front, corner)
    for mean, deviation, gain in zip(means, deviations, found, strict=True):
        assert expected_gain(mean, deviation, front, corner) == gain


# -- by chance ------------------------------------------------------------------------------------


def test_the_likeliest_to_add_anything_comes_first() -> None:
    front = np.array([[1.0, 2.0], [0.5, 4.0]])
    # To beat are 1, 1, 0.5, nothing and 0.5: short by -1, 2, 1 and -inf deviations, and never.
    expected = np.array([[0.9, 3.0], [1.2, 2.5], [0.55, 5.0], [3.0, 1.0], [0.6, 4.0]])
    deviations = np.array([0.1, 0.1, 0.05, 0.1, 0.0])
    assert by_chance(expected, deviations, front) == [3, 0, 2, 1, 4]


def test_the_order_is_that_of_the_probability_to_improve() -> None:
    rng = np.random.default_rng(4)
    expected, front = rng.random((30, 3)), rng.random((6, 3))
    deviations = 0.01 + 0.2 * rng.random(30)
    to_beat = [
        min((f[0] for f in front if (f[1:] <= row[1:]).all()), default=np.inf) for row in expected
    ]
    chance = norm.cdf((np.array(to_beat) - expected[:, 0]) / deviations)
    found = chance[by_chance(expected, deviations, front)]
    assert (np.diff(found) <= 0).all() and sorted(found) == sorted(chance)


def test_of_equal_chances_the_best_expected_comes_first() -> None:
    expected = np.array([[0.5, 0.5], [0.3, 0.5], [0.4, 0.5]])
    assert by_chance(expected, np.full(3, 0.1), np.zeros((0, 2))) == [1, 2, 0]
    assert by_chance(np.array([[0.5, 0.5]]), np.zeros(1), np.array([[0.5, 0.5]])) == [0]
    assert by_chance(np.zeros((0, 2)), np.zeros(0), FRONT) == []
