"""Networks that cannot be evaluated: told, left out, and no reason to end a search."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
from typer.testing import CliRunner

from nas.console.app import app
from nas.executors.base import Failure
from nas.report import write_report
from nas.results.failures import FAILED, read_failed
from nas.run.events import EvaluationFailed, Event
from nas.run.folder import RunFolder
from nas.stages.base import Run
from nas.stages.outcomes import too_few_observations, too_many_failures
from search_spaces.architecture import Architecture
from search_spaces.errors import DivergedError, EvaluationError, NasError
from tests.support.pipeline_cases import (
    done_twice,
    finished,
    finished_once,
    logged,
    results,
    tiny,
    work,
)
from tests.support.ray_cases import Poison, misbehave

OBSERVED, VERIFIED = "observations.jsonl", "verification.jsonl"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A run in which nothing fails."""
    return finished_once(tmp_path_factory.mktemp("whole") / "run")


@pytest.fixture
def poison(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Network → how it misbehaves; to be filled by the test."""
    poison: dict[str, str] = {}
    spoil(monkeypatch, poison)
    return poison


def spoil(monkeypatch: pytest.MonkeyPatch, poison: Poison) -> None:
    well = Run.quality

    def quality(run: Run, network: Architecture) -> dict[str, float]:
        how = poison.get(network.id) or poison.get("all")
        return misbehave(how) if how else well(run, network)

    monkeypatch.setattr(Run, "quality", quality)


def ids(folder: RunFolder, name: str) -> list[str]:
    return [line["id"] for line in folder.read_journal(name)]


def failures(events: list[Event]) -> dict[str, tuple[str, str, int]]:
    return {
        event.architecture_id: (event.stage, event.kind, event.tries)
        for event in events
        if isinstance(event, EvaluationFailed)
    }


def on_front(folder: RunFolder) -> set[str]:
    return {entry["id"] for entry in folder.read_json("pareto.json")["front"]}


# -- in a search ----------------------------------------------------------------------------------


def test_the_search_goes_on_without_those_that_fail(
    whole: RunFolder, tmp_path: Path, poison: dict[str, str]
) -> None:
    first = sorted(whole.read_journal(OBSERVED)[:8], key=lambda line: float(line["quality"]))
    best, other = first[0]["id"], first[1]["id"]
    poison |= {best: "memory", other: "nan"}
    run = tiny(tmp_path / "run")
    events = work(run)
    assert failures(events) == {
        best: ("observe", "memory", 2),
        other: ("observe", "not finite", 1),
    }
    lines = {line["id"]: line for line in run.read_journal(OBSERVED)}
    assert list(lines)[:8] == ids(whole, OBSERVED)[:8] and len(lines) == 12
    assert lines[best][FAILED]["reason"] == "MemoryError: no room"
    assert run.read_json("ranker/report_card.json")["observations"] == 10
    assert not {best, other} & (on_front(run) | set(ids(run, VERIFIED)))


def test_it_ends_alike_when_cut_short(
    tmp_path: Path, whole: RunFolder, poison: dict[str, str]
) -> None:
    from nas.stages.pipeline import run_search

    poison |= dict.fromkeys(ids(whole, OBSERVED)[1:3], "raise")
    straight, cut = finished(tmp_path / "straight"), tiny(tmp_path / "cut")
    with closing(run_search(cut)) as stream:  # type: ignore[type-var]
        while not isinstance(next(stream), EvaluationFailed):
            pass
    again = work(RunFolder.open(cut.path))
    assert results(cut) == results(straight) and done_twice(cut) == []
    assert len(failures(again)) == 1  # the other one was not tried again


@pytest.mark.slow
@pytest.mark.parametrize("searcher", ["ranknas", "nsga2", "tpe", "random"])
def test_every_searcher_goes_on(searcher: str, tmp_path: Path, poison: dict[str, str]) -> None:
    known = finished(tmp_path / "known", searcher=searcher)
    bad = ids(known, OBSERVED)[2]
    poison[bad] = "raise"
    run = finished(tmp_path / "run", searcher=searcher)
    assert ids(run, OBSERVED)[:3] == ids(known, OBSERVED)[:3]
    assert len(ids(run, OBSERVED)) == 12 and bad not in on_front(run)


def test_another_candidate_takes_the_place_of_one_that_fails(
    whole: RunFolder, tmp_path: Path, poison: dict[str, str]
) -> None:
    fresh = [e["architecture_id"] for e in logged(whole) if e["event"] == "ArchitectureMeasured"]
    bad = next(one for one in fresh if one not in ids(whole, OBSERVED))
    poison[bad] = "raise"
    run = tiny(tmp_path / "run")
    assert failures(work(run)) == {bad: ("verify", "error", 2)}
    (line,) = [line for line in run.read_journal(VERIFIED) if line["id"] == bad]
    assert "measured" not in line and line[FAILED]["tries"] == 2
    good = [line for line in run.read_journal(VERIFIED) if FAILED not in line]
    assert len(good) >= min(6, len(ids(whole, VERIFIED)) - 1)
    assert bad not in on_front(run)


@pytest.mark.parametrize(
    ("how", "kind", "message"),
    [
        ("nan", DivergedError, "8 of 8 networks is not a number; the supernet has diverged"),
        ("raise", EvaluationError, r"first one \(error\): RuntimeError: a bad kernel; mend that"),
    ],
)
def test_a_search_in_which_everything_fails_ends_and_can_be_resumed(
    how: str,
    kind: type[NasError],
    message: str,
    whole: RunFolder,
    tmp_path: Path,
    poison: dict[str, str],
) -> None:
    poison["all"] = how
    run = tiny(tmp_path / "run")
    with pytest.raises(kind, match=message):
        work(run)
    assert not (run.path / OBSERVED).exists()
    del poison["all"]
    work(RunFolder.open(run.path))
    assert results(run) == results(whole)


# -- what is told of it ---------------------------------------------------------------------------


def test_show_and_report_tell_what_failed(
    whole: RunFolder, tmp_path: Path, poison: dict[str, str]
) -> None:
    bad = ids(whole, OBSERVED)[3]
    poison[bad] = "raise"
    run = finished(tmp_path / "run")
    (one,) = read_failed(run)
    assert one.network.id == bad and one.failure.reason == "RuntimeError: a bad kernel"
    said = CliRunner().invoke(app, ["show", str(run.path)]).stdout
    assert "Could not be evaluated" in said and "RuntimeError: a bad kernel" in said
    page = write_report(run).read_text("utf-8")
    assert "1 network could not be evaluated" in page and bad in page


def test_nothing_is_told_where_nothing_failed(whole: RunFolder) -> None:
    assert read_failed(whole) == ()
    assert "Could not be" not in CliRunner().invoke(app, ["show", str(whole.path)]).stdout
    assert "could not be evaluated" not in write_report(whole).read_text("utf-8")


@pytest.mark.parametrize(
    "line", ["", "{", "[]", '{"failed": 1}', '{"failed": {}, "architecture": {}}']
)
def test_lines_that_cannot_be_read_are_no_failures(tmp_path: Path, line: str) -> None:
    run = tiny(tmp_path / "run")
    (run.path / OBSERVED).write_text(f"{line}\n")
    assert read_failed(run) == ()


# -- when to give up ------------------------------------------------------------------------------

BAD = {FAILED: Failure("error", "it broke", 2).to_json()}
NAN = {FAILED: Failure("not finite", "its quality is nan", 1).to_json()}
GOOD = {"quality": 1.0}


@pytest.mark.parametrize(
    ("lines", "error"),
    [
        ([], None),
        ([BAD] * 7, None),
        ([BAD] * 8, EvaluationError),
        ([NAN] * 8, DivergedError),
        ([NAN] * 7 + [BAD], EvaluationError),
        ([GOOD] + [BAD] * 7, EvaluationError),
        ([GOOD] * 2 + [BAD] * 6, None),
        ([GOOD] * 8 + [BAD] * 8, None),
        ([GOOD] * 8 + [BAD] * 9, EvaluationError),
        ([GOOD] * 100, None),
    ],
)
def test_when_it_makes_no_sense_to_go_on(
    lines: list[dict[str, object]], error: type[NasError] | None
) -> None:
    assert type(too_many_failures(lines, alone=False)) is (error or type(None))


def test_a_ranker_needs_some(tmp_path: Path) -> None:
    assert isinstance(too_few_observations([GOOD] * 7 + [BAD], 8), EvaluationError)
    assert too_few_observations([GOOD] * 8 + [BAD], 8) is None
    assert (
        too_few_observations([GOOD] * 7, 8) is None
    )  # a small budget is told of by the ranker itself
