"""Parts of pages that show runs: what is drawn of them, and where."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from nas.results.reader import read_contents
from service.dashboard.compare_views import ABOVE_NONE, _Axis
from service.dashboard.run_views import drawn
from tests.support.run_fixture import finished_run

RATE = "tokens_per_s"


def test_numbers_are_numbers_also_where_a_network_has_none() -> None:
    axis = _Axis("heads", [16, None, 4, 8.0])
    third = ABOVE_NONE + (1 - ABOVE_NONE) / 3
    assert axis.scaled() == pytest.approx([1.0, 0.0, ABOVE_NONE, third])
    assert axis.ends() == [(0.0, "–"), (ABOVE_NONE, "4"), (1.0, "16")]
    assert _Axis("heads", [4, 16, 8]).scaled() == pytest.approx([0.0, 1.0, 1 / 3])
    assert _Axis("heads", [4, None]).scaled() == [1.0, 0.0]
    assert _Axis("layers", [0, 1, 8]).ends() == [(0.0, "0"), (1.0, "8")]
    assert _Axis("kind", ["b", "a", None, "c"]).ends() == [
        *((0.0, "–"), (ABOVE_NONE, "a"), (1.0, "c"))
    ]


def test_of_what_is_maximised_the_best_are_drawn(tmp_path: Path) -> None:
    run = read_contents(finished_run(tmp_path / "run"))
    assert run.front is not None
    entry = run.front.entries[0]
    entries = tuple(
        replace(entry, id=f"{n:012x}", measured={"quality": 0.1 * n, RATE: 100.0 + n})
        for n in range(1, 11)
    )
    whole = replace(run, front=replace(run.front, entries=entries))
    shown = drawn(whole, 3, RATE).front
    assert shown is not None and shown.entries == entries  # none dominates another
