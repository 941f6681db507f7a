"""Parts of pages that show runs: what is drawn of them, and where."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from nas.report.front_section import SQUARES
from nas.results.comparison import ComparedRun, compare_runs
from nas.results.contents import Origin, RunContents
from nas.results.reader import read_contents
from service.dashboard.compare_views import ABOVE_NONE, _Axis, coordinates, fronts_drawing
from service.dashboard.run_views import drawn
from tests.support.report_cases import charts, trace, words_of
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


def with_front(run: RunContents, number: int, quality: float = 1.0) -> RunContents:
    """The run with so many networks on its front, none of which is better than that quality."""
    assert run.front is not None
    entry = run.front.entries[0]
    values = [{"quality": quality + n, "latency_ms": 1.0 + number - n} for n in range(number)]
    entries = tuple(
        replace(entry, id=f"{n:012x}", measured={**entry.measured, **one})
        for n, one in enumerate(values)
    )
    return replace(run, front=replace(run.front, entries=entries), retrained=())


def test_of_many_networks_each_front_has_its_share_of_lines(tmp_path: Path) -> None:
    run = read_contents(finished_run(tmp_path / "run"))
    for sizes, told in (((170, 1), "150 of the 171 networks are drawn"), ((149, 1), None)):
        made = compare_runs([ComparedRun("run", with_front(run, size), None) for size in sizes])
        page = coordinates(made, made.networks())
        assert ("networks are drawn" in words_of(page)) is (told is not None)
        assert (told or "") in words_of(page)
        lines = charts(page)["coordinates"]["data"]
        assert [one["name"] for one in lines] == ["1. run", "2. run"]
        ends = [f"{n:012x}," for n in (0, sizes[0] - 1)]
        assert all(any(text.startswith(end) for text in lines[0]["text"]) for end in ends)


def test_squares_of_checkpoints_stand_below_all_fronts(tmp_path: Path) -> None:
    run = read_contents(finished_run(tmp_path / "run"))
    assert run.front is not None
    plain = [ComparedRun("run", with_front(run, 3, quality), None) for quality in (40.0, 20.0)]
    entry = replace(run.front.entries[0], measured={"quality": 1e-9, "latency_ms": 1.0})
    origin = Origin("tiny", entry, (0,), {})
    begun = [replace(one, contents=replace(one.contents, origin=origin)) for one in plain]
    for runs in (begun, begun[::-1]):
        page = fronts_drawing(compare_runs(runs))
        squares = [trace(page, "compare-latency_ms", f"{n}. its checkpoint") for n in (1, 2)]
        lowest = min(y for one in charts(page)["compare-latency_ms"]["data"] for y in one["y"])
        assert squares[0]["y"] == squares[1]["y"] == [lowest] and SQUARES.strip() in page
    assert SQUARES.strip() not in fronts_drawing(compare_runs(plain))
