"""Pareto mathematics against obvious twins and by hand."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from nas.search.pareto import (
    constrained_ranks,
    crowding_distance,
    hypervolume,
    knee_index,
    non_dominated,
    non_dominated_ranks,
    spread_by_cost,
    spread_order,
)
from search_spaces.errors import UsageError

# Few distinct values, so that ties and copies are common.
grids = hnp.arrays(
    np.float64,
    st.tuples(st.integers(1, 12), st.integers(1, 4)),
    elements=st.integers(0, 4).map(float),
)


def dominates(a, b):
    return all(x <= y for x, y in zip(a, b, strict=True)) and any(
        x < y for x, y in zip(a, b, strict=True)
    )


def naive_ranks(points):
    ranks, left, rank = {}, set(range(len(points))), 0
    while left:
        front = {i for i in left if not any(dominates(points[j], points[i]) for j in left)}
        ranks.update(dict.fromkeys(front, rank))
        left -= front
        rank += 1
    return [ranks[i] for i in range(len(points))]


@given(grids)
def test_ranks_equal_the_naive_peeling(points):
    ranks = non_dominated_ranks(points)
    assert ranks.tolist() == naive_ranks(points.tolist())
    assert (non_dominated(points) == (ranks == 0)).all()


@pytest.mark.parametrize("size", [1, 2, 3, 4, 6])
@pytest.mark.parametrize("decimals", [1, 12], ids=["many ties", "no ties"])
def test_ranks_of_many_points_equal_peeling(size, decimals):
    points = np.random.default_rng(size).random((400, size)).round(decimals)
    below = (points[:, None] <= points[None]).all(-1) & (points[:, None] < points[None]).any(-1)
    expected, left = np.zeros(400, dtype=int), np.ones(400, dtype=bool)
    while left.any():
        front = left & ~below[left].any(axis=0)
        left &= ~front
        expected[left] += 1
    assert (non_dominated_ranks(points) == expected).all()


@given(grids, st.randoms(use_true_random=False))
def test_ranks_and_crowding_do_not_depend_on_the_order(points, random):
    points = np.unique(points, axis=0)
    order = list(range(len(points)))
    random.shuffle(order)
    assert (non_dominated_ranks(points)[order] == non_dominated_ranks(points[order])).all()
    assert np.allclose(crowding_distance(points)[order], crowding_distance(points[order]))


@given(grids)
def test_hypervolume_equals_counting_unit_cells(points):
    size = points.shape[1]
    cells = itertools.product(range(5), repeat=size)
    count = sum(any((p <= np.array(cell)).all() for p in points) for cell in cells)
    assert hypervolume(points, np.full(size, 5.0)) == pytest.approx(count)


def test_a_copy_of_a_non_dominated_point_is_non_dominated():
    assert non_dominated([[1, 2], [1, 2], [2, 1], [2, 2]]).tolist() == [True, True, True, False]


def test_single_objective_keeps_every_minimum():
    assert non_dominated([[3.0], [1.0], [1.0]]).tolist() == [False, True, True]
    assert hypervolume([[3.0], [1.0]], [4.0]) == 3.0


def test_empty_sets():
    empty = np.zeros((0, 2))
    assert non_dominated(empty).shape == (0,)
    assert crowding_distance(empty).shape == spread_order(empty).shape == (0,)
    assert hypervolume(empty, [1.0, 1.0]) == 0.0
    with pytest.raises(UsageError, match="no knee"):
        knee_index(empty)


def test_points_at_or_beyond_the_reference_add_nothing():
    assert hypervolume([[1, 1], [0, 3], [9, 0]], [2.0, 3.0]) == 2.0


def test_crowding_by_hand():
    points = np.array([[0, 10], [1, 6], [4, 4], [10, 0]])
    expected = [np.inf, 4 / 10 + 6 / 10, 9 / 10 + 6 / 10, np.inf]
    assert crowding_distance(points) == pytest.approx(expected)


def test_crowding_of_a_copy_is_zero():
    distance = crowding_distance([[0, 2], [1, 1], [1, 1], [2, 0]])
    assert distance[2] == 0
    assert distance[1] == pytest.approx(2.0)


def test_crowding_looks_at_the_own_rank_only():
    points = np.array([[0, 4], [1, 1], [4, 0], [2, 6], [3, 5], [6, 2]], dtype=float)
    together = crowding_distance(points, [0, 0, 0, 1, 1, 1])
    apart = np.concatenate([crowding_distance(points[:3]), crowding_distance(points[3:])])
    assert (together == apart).all()
    assert not (together == crowding_distance(points)).all()


def test_spread_by_hand():
    # The ends first; then the farthest from both, not the one in the thin part of the front.
    front = [[0, 10], [1, 9], [2, 8], [3, 7], [4, 6], [5, 5], [10, 0]]
    assert spread_order(front)[:4].tolist() == [0, 6, 5, 2]


def test_spread_reaches_a_dense_part_that_crowding_leaves_out():
    dense = [[x / 100, 1 - x / 100] for x in range(61)]
    front = np.array([*dense, [0.75, 0.25], [0.9, 0.1], [1.0, 0.0]])
    crowded = np.argsort(-crowding_distance(front), kind="stable")[:6]
    assert sum(front[crowded, 0] < 0.6) == 2  # its end and its edge
    assert sum(front[spread_order(front)[:6], 0] < 0.6) == 4
    assert np.diff(np.sort(front[spread_order(front)[:6], 0])).max() < 0.26


def test_a_spread_takes_turns_between_all_points_and_the_front_of_each_cost():
    # Quality, a time, and a count that most of the points are good for alone.
    slow = [[1, 10, 3], [2, 8, 3], [4, 6, 3], [7, 3, 3], [9, 1, 3]]
    few = [[8, 9, 0], [7, 9, 1], [6, 9, 2], [10, 8, 0], [9, 7, 1], [8, 7, 2]]
    points = np.array([*slow, *few], dtype=float)
    assert non_dominated(points).all()
    by_time = [0, 4, 2, 3, 1]  # its ends, then what is farthest from those before
    assert spread_order(points[:5, :2]).tolist() == by_time
    order = spread_by_cost(points).tolist()
    assert sorted(order) == list(range(11))
    found = [one for one in order if one < 5]
    assert found == by_time and set(found[:4]) <= set(order[:8])
    missed = set(by_time[:4]) - set(spread_order(points)[:6].tolist())
    assert missed, "the spread over all of them leaves gaps in the front of time"


@given(grids)
def test_a_spread_by_cost_names_each_point_once(points):
    order = spread_by_cost(points)
    assert sorted(order.tolist()) == list(range(len(points)))
    if np.shape(points)[1] == 2:
        assert order.tolist() == spread_order(points).tolist()


@given(grids)
def test_a_spread_names_each_point_once_and_copies_last(points):
    order = spread_order(points)
    assert sorted(order.tolist()) == list(range(len(points)))
    distinct = len(np.unique(points, axis=0))
    assert len(np.unique(points[order[:distinct]], axis=0)) == distinct


def test_an_objective_that_never_changes_does_no_harm():
    assert np.isfinite(crowding_distance([[0, 1], [1, 1], [2, 1]])[1])
    assert knee_index([[3.0, 1.0], [3.0, 1.0]]) == 0


def test_knee_is_the_bend_and_ignores_dominated_points():
    points = np.array([[0, 100], [1, 20], [50, 10], [100, 0], [1000, 1000]])
    assert knee_index(points) == 1
    assert knee_index(points * [1e-6, 1e6]) == 1


def test_knee_of_a_straight_front_is_its_middle():
    assert knee_index([[0, 4], [1, 3], [2, 2], [3, 1], [4, 0]]) == 2


def test_limits_come_before_objectives():
    points = [[5, 5], [1, 1], [6, 6], [0, 0], [2, 2]]
    assert constrained_ranks(points, [0, 0.5, 0, 0.1, 0.5]).tolist() == [0, 3, 1, 2, 3]
    assert constrained_ranks(points, np.zeros(5)).tolist() == naive_ranks(points)
    assert constrained_ranks(points, [3, 1, 1, 2, 9]).tolist() == [2, 0, 0, 1, 3]


@pytest.mark.parametrize("points", [[[1.0, np.nan]], [[np.inf, 1.0]], [1.0, 2.0], np.zeros((3, 0))])
def test_bad_points_are_refused(points):
    with pytest.raises(UsageError):
        non_dominated(points)


@pytest.mark.parametrize("violations", [[-1.0, 0.0], [np.nan, 0.0], [0.0]])
def test_bad_violations_are_refused(violations):
    with pytest.raises(UsageError, match="violations"):
        constrained_ranks([[1.0], [2.0]], violations)


@pytest.mark.parametrize("reference", [[1.0], [1.0, np.inf], 1.0])
def test_bad_reference_is_refused(reference):
    with pytest.raises(UsageError, match="reference"):
        hypervolume([[0.0, 0.0]], reference)
