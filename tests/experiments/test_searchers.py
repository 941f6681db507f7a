"""Searchers that studies compare, on a space of a few hundred networks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from experiments.harness import done_in
from experiments.searchers import SEARCHERS, SearchTask, cell, keep_rows, median, words
from nas.search.evolution import Scores
from nas.search.searchers.base import Problem
from search_spaces.genes import Gene, GeneSpace
from search_spaces.genotypes import Genotypes
from search_spaces.variation import distinct

SPACE = GeneSpace(
    "small",
    (
        Gene("width", (16, 32, 64)),
        Gene("depth", (1, 2, 3)),
        Gene("ffn", (1, 2, 4), per_layer="depth"),
    ),
)
BUDGET = 40  # of 117 networks


def _sums(rows: Genotypes) -> np.ndarray:
    return 1.0 + rows.sum(axis=1)


def _task() -> SearchTask:
    def costs(rows: Genotypes) -> Scores:
        return Scores(_sums(rows)[:, None], np.zeros(len(rows)))

    return SearchTask(Problem(SPACE, costs, np.array([20.0, 20.0])), lambda rows: 10 / _sums(rows))


@pytest.mark.parametrize("name", [name for name in SEARCHERS if name != "gp"])
def test_a_searcher_spends_its_budget_on_distinct_networks(name):
    for search in SEARCHERS[name].values():
        task = _task()
        rows = search(task, BUDGET, 3)
        assert len(rows) == len(distinct(rows)) == BUDGET
        if name != "random":
            ends = {row.tobytes() for row in task.ends}
            assert ends <= {row.tobytes() for row in rows[:32]}
        np.testing.assert_array_equal(search(_task(), BUDGET, 3), rows)


def test_jobs_are_done_here_or_in_other_processes():
    for workers in (1, 2):
        assert dict(done_in("local", abs, [-1, 2, -3], workers)) == {-1: 1, 2: 2, -3: 3}


@pytest.mark.parametrize(
    ("reach", "middle", "text"),
    [
        ([3.0, 1.0, 2.0], 2.0, "2 (1–3)"),
        ([4.0, 1.0, 2.0, 9.0], 3.0, "3 (1–9)"),
        ([4.0, 1.0, np.inf, np.inf], np.inf, "× (1–×)"),
        ([np.inf, np.inf], np.inf, "× (×–×)"),
    ],
)
def test_the_median_of_two_in_the_middle_is_their_mean(reach, middle, text):
    assert median(reach) == middle
    assert cell(reach) == text


def test_a_search_is_kept_in_full_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    rows = np.arange(6, dtype=np.int16).reshape(2, 3)
    keep_rows(tmp_path / "a.npy", rows)
    np.testing.assert_array_equal(np.load(tmp_path / "a.npy"), rows)

    def torn(stream: Any, rows: Genotypes) -> None:
        stream.write(b"half")
        raise OSError("the disk is full")

    monkeypatch.setattr(np, "save", torn)
    with pytest.raises(OSError, match="full"):
        keep_rows(tmp_path / "b.npy", rows)
    assert [file.name for file in tmp_path.iterdir()] == ["a.npy"]


@pytest.mark.ray
@pytest.mark.slow
def test_jobs_are_done_by_ray():
    assert dict(done_in("ray", words, [1.0, np.inf], 2)) == {1.0: "1", np.inf: "×"}
