"""The measure of the efficiency study, and what it makes of runs."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest

from experiments import search_efficiency
from experiments.search_efficiency import (
    STUDY,
    best_runs,
    curves,
    draw,
    factors,
    longest,
    measure,
    met,
    needed,
    show,
)
from experiments.searchers import Measure, keep_rows
from nas.search.evolution import Scores
from tests.support.study_cases import printed

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


def content(**reach: list[int | None]) -> dict[str, Any]:
    """Made-up numbers of searches of 100 evaluations, by searcher those to the highest share."""
    levels = ("0.9", "0.95", "0.98", "0.99")
    named = {name.replace("_", "-"): values for name, values in reach.items()}
    return {
        "space": "mine",
        "needed": {name: dict.fromkeys(levels, values) for name, values in named.items()},
        "curves": {name: {"evaluations": [8, 100]} for name in named},
    }


@pytest.mark.parametrize(
    ("opponent", "text", "good"),
    [
        ([40, 60, None], "15.0, target 4", True),
        ([40, None, None], "over 25.0, target 4", True),
        ([8, 12, None], "3.0, target 4: missed", False),
    ],
)
def test_an_opponent_needs_so_many_times_as_many_evaluations(opponent, text, good):
    found = content(rank_evolve=[3, 4, 5], evolution=opponent, tpe=[4, 4, 4])
    assert str(factors(found)["evolution"]) == text
    assert met(found) is good
    assert text in printed(show(found)) and "4 (3–5)" in printed(show(found))


def test_a_budget_that_ends_too_early_shows_nothing():
    found = content(rank_evolve=[80, 90], evolution=[None, None])
    assert str(factors(found)["evolution"]) == "over 1.2, target 4: not shown"
    assert "85 (80–90)" in printed(show(found))
    assert not met(found)


@pytest.mark.parametrize("ours", [{}, {"rank_evolve": [None, None]}])
def test_without_our_searcher_there_is_nothing_to_compare_with(ours):
    found = content(nsga2=[40, 60], **ours)
    assert "–, target 4: not shown" in printed(show(found))
    assert not met(found) and not STUDY.met(found)


def test_what_others_left_in_the_work_folder_is_no_part_of_the_reference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Networks are a quality and a cost; that of another study is better than all of this one."""
    sample, ours = (np.array(rows, dtype=np.int16) for rows in ([[5, 5], [1, 6]], [[2, 4], [1, 6]]))
    others = np.array([[1, 4]], dtype=np.int16)

    class Asked:
        known: ClassVar = {row.tobytes(): 0.0 for row in (*sample, *ours, *others)}
        problem = SimpleNamespace(
            points=lambda rows, quality: Scores(rows.astype(float), np.zeros(len(rows)))
        )

        def __call__(self, rows: Any) -> Any:
            return rows[:, 0]

    def keep(*_: Any) -> None:
        np.save(tmp_path / "digits" / search_efficiency.REFERENCE_FILE, sample)
        keep_rows(tmp_path / "digits" / "rank-evolve-320-0.npy", ours)
        for size in search_efficiency.ONE_SHOT_SIZES:
            keep_rows(tmp_path / "digits" / f"ranknas-{size}-0.npy", sample)

    for name, value in {
        "train_supernet": lambda *_: None,
        "evaluate_all": keep,
        "evolve_reference": lambda *_: None,
        "oracle": lambda _: Asked(),
        "sample_of": lambda *_: sample,
        "draw": lambda *_: None,
    }.items():
        monkeypatch.setattr(search_efficiency, name, value)
    words = ["--searcher", "rank-evolve", "--seeds", "1", "--work", str(tmp_path)]
    found = measure(STUDY.parser.parse_args(words))
    assert found["evaluated"] == 3 and found["alone"] == 1
    assert found["needed"]["rank-evolve"]["0.99"] == [2]


def test_of_several_settings_the_best_counts():
    measure = Measure.of(FRONT)
    runs = {"nsga2": {"16": [np.vstack([BAD, FRONT])], "50": [np.vstack([FRONT, BAD])]}}
    setting, points = best_runs(measure, runs)["nsga2"]
    assert setting == "50" and measure.first_reach(points[0], 0.99) == 2
    assert needed(measure, runs)["nsga2"][0.99] == [2]
