"""Ways of choosing placements, on tables whose answers are known."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from experiments.placement_selectors import (
    SELECTORS,
    PlacementTable,
    additive,
    additive_fit,
    additive_fits,
    all_placements,
    at_random,
    beam,
    first,
    greedy,
    last,
    local_error,
    mean_regrets,
    ranked,
    replace_one,
    restore_one,
    uniform,
)
from search_spaces.loading import load_space

SCORES = np.array([[0.0, 3.0], [0.0, 1.0], [0.0, 2.0], [0.0, 5.0]])


def table_with(scores: np.ndarray, extra: float = 0.0) -> PlacementTable:
    """Qualities are sums of scores; converting layers 1 and 2 together costs `extra`."""
    layers, kinds = scores.shape
    placements = np.array(list(all_placements(layers, kinds)))
    qualities = np.array([sum(scores[n, kind] for n, kind in enumerate(p)) for p in placements])
    both = (placements[:, 1] != 0) & (placements[:, 2] != 0)
    return PlacementTable(placements, qualities + extra * both, scores)


def test_every_placement_is_there_once() -> None:
    found = list(all_placements(3, 3))
    assert sorted(found) == sorted(itertools.product(range(3), repeat=3))
    counts = [sum(kind != 0 for kind in one) for one in found]
    assert counts == sorted(counts)


def test_regret_by_hand() -> None:
    table = table_with(SCORES)
    assert table.regret((0, 1, 0, 0)) == 0.0 and table.regret((0, 0, 0, 1)) == 1.0
    assert table.regret((0, 0, 1, 0)) == pytest.approx(1 / 4)


@pytest.mark.parametrize("choose", [replace_one, restore_one, local_error, greedy, beam, additive])
def test_sums_are_chosen_rightly_by_scores(choose) -> None:  # type: ignore[no-untyped-def]
    table = table_with(SCORES)
    assert set(mean_regrets(table, choose(table)).values()) == {0.0}
    assert choose(table)[2] == [(0, 1, 1, 0)]


def test_single_scores_miss_what_happens_together() -> None:
    table = table_with(SCORES, extra=4.0)
    assert replace_one(table)[2] == [(0, 1, 1, 0)]
    assert greedy(table)[2] == [(1, 1, 0, 0)] and table.regret((1, 1, 0, 0)) == 0.0
    assert additive_fit(table) < additive_fit(table_with(SCORES)) == pytest.approx(1.0)
    assert set(additive_fits(table)) == {2}


def test_what_choosing_had_to_evaluate_is_counted() -> None:
    table = table_with(SCORES)
    for choose, wanted in ((first, 0), (local_error, 0), (replace_one, 4), (greedy, 10)):
        table.asked.clear()
        choose(table)
        assert len(table.asked) == wanted


def test_places_in_order() -> None:
    table = table_with(SCORES)
    assert first(table)[2] == [(1, 1, 0, 0)] and last(table)[1] == [(0, 0, 0, 1)]
    assert {sum(one) for one in uniform(table)[2]} == {2}
    assert {(1, 0, 1, 0), (0, 1, 0, 1)} <= set(uniform(table)[2])
    assert len(at_random(table)[2]) == 6


def test_three_kinds() -> None:
    scores = np.array([[0.0, 3.0, 1.0], [0.0, 1.0, 2.0], [0.0, 2.0, 9.0]])
    table = table_with(scores)
    assert list(table.counts) == [1, 2, 3]
    assert replace_one(table)[3] == [(2, 1, 1)] == beam(table)[3]
    for choose in SELECTORS.values():
        assert all(0.0 <= value <= 1.0 for value in mean_regrets(table, choose(table)).values())


def test_the_search_sees_a_share_of_the_table() -> None:
    """A space of six layers whose only choices are two kinds of attention."""
    space = load_space("recall")
    layers = max(int(n) for s in space.slots if s.gene == "num_layers" for n in s.choices)
    fixed = {s.name: [s.choices[-1]] for s in space.slots if not s.gene.endswith("attention")}
    kinds = {s.name: list(s.choices[:2]) for s in space.slots if s.gene.endswith("attention")}
    space = space.restrict({**fixed, **kinds})
    rng = np.random.default_rng(0)
    scores = np.column_stack([np.zeros(layers), rng.random(layers) + 0.1])
    table = table_with(scores)
    found = ranked(table, space, seed=0)
    assert set(found) == set(table.counts)
    assert len(table.asked) == max(8, round(0.15 * 2**layers)) and (0,) * layers not in table.asked
    assert all(value <= 1.0 for value in mean_regrets(table, found).values())
