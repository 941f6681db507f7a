"""The measure of the efficiency study, and what it makes of runs."""

from __future__ import annotations

import numpy as np
import pytest

from experiments.search_efficiency import best_runs, curves, draw, factor, longest, needed
from experiments.searchers import Measure

FRONT = np.array([[0.0, 10.0], [1.0, 0.0]])
BAD = np.array([[2.0, 20.0]])


def test_the_reference_front_has_everything():
    measure = Measure.of(np.vstack([FRONT, BAD]))
    assert measure.share(FRONT) == pytest.approx(1.0)
    assert measure.share(BAD) == 0.0
    # Each end alone covers 1.1 × 0.1 of the 0.21 that both do.
    assert measure.share(FRONT[:1]) == pytest.approx(0.11 / 0.21)


def test_the_first_reach_is_the_shortest_run_that_will_do():
    measure = Measure.of(FRONT)
    run = np.vstack([BAD, FRONT[:1], BAD, FRONT[1:], BAD])
    assert measure.first_reach(run, 0.5) == 2
    assert measure.first_reach(run, 0.99) == 4
    assert measure.first_reach(run[:3], 0.99) == np.inf


def test_a_planned_search_needs_its_whole_size():
    measure = Measure.of(FRONT)
    long, short = np.vstack([FRONT, BAD, BAD]), np.vstack([BAD, BAD])
    runs = {"rank-evolve": {"": [long]}, "ranknas": {"2": [short], "4": [long]}}
    table = needed(measure, runs)
    assert table["rank-evolve"][0.99] == [2]
    assert table["ranknas"][0.99] == [4]


def test_the_figure_is_the_same_twice(tmp_path):
    lines = curves(Measure.of(FRONT), {"random": {"": [np.vstack([BAD] * 9 + [FRONT])] * 2}})
    draw("mine", lines, tmp_path / "a.svg")
    draw("mine", lines, tmp_path / "b.svg")
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


def test_a_level_that_is_not_reached_is_over_what_was_spent():
    runs = {
        "rank-evolve": {"": [np.vstack([BAD] * 8)] * 3},
        "ranknas": {"2": [FRONT], "4": [np.vstack([FRONT, FRONT])]},
    }
    whole = longest(curves(Measure.of(FRONT), runs))
    assert whole == {"rank-evolve": 8.0, "ranknas": 4.0}
    assert factor([8.0, 12.0, np.inf], 100.0, 4.0) == "3.0"
    assert factor([8.0, np.inf, np.inf], 100.0, 4.0) == "over 25.0"
    assert factor([8.0], 100.0, np.inf) == "–"


def test_of_several_settings_the_best_counts():
    measure = Measure.of(FRONT)
    runs = {"nsga2": {"16": [np.vstack([BAD, FRONT])], "50": [np.vstack([FRONT, BAD])]}}
    setting, points = best_runs(measure, runs)["nsga2"]
    assert setting == "50" and measure.first_reach(points[0], 0.99) == 2
    assert needed(measure, runs)["nsga2"][0.99] == [2]
