"""The same request gives the same result, however often it is interrupted."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from nas.run.events import Event
from nas.run.folder import RunFolder
from tests.support.pipeline_cases import (
    FILES,
    SEARCH,
    done_twice,
    files_of,
    finished,
    finished_once,
    kill,
    logged,
    named,
    results,
    start,
    step_to,
    tiny,
    work,
)
from tests.support.timing_cases import Machine

TIMED = ("quality", "latency_ms")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A run that nobody interrupted."""
    return finished_once(tmp_path_factory.mktemp("whole") / "run")


def events(folder: RunFolder) -> Iterator[Event]:
    from nas.stages.pipeline import run_search

    return run_search(RunFolder.open(folder.path))


def interrupted(folder: RunFolder, count: int) -> bool:
    """Let a run come `count` events further, then close it; True when it ended before."""
    with closing(events(folder)) as stream:  # type: ignore[type-var]
        for number, _ in enumerate(stream, start=1):
            if number == count:
                return False
    return True


def test_same_seed_same_bytes(whole: RunFolder, tmp_path: Path) -> None:
    assert results(finished(tmp_path / "again")) == results(whole)


def test_another_seed_gives_another_front(whole: RunFolder, tmp_path: Path) -> None:
    other = finished(tmp_path / "run", seed=1)
    assert results(other)["pareto.json"] != results(whole)["pareto.json"]


def test_no_latency_where_nobody_asked(whole: RunFolder) -> None:
    names = {name for event in logged(whole) for name in event.get("metrics", {})}
    assert "latency" not in (whole.path / "pareto.json").read_text()
    assert "latency_ms" not in names
    assert not (whole.path / "latency").exists()


def test_every_file_of_a_finished_run_has_one_stage(whole: RunFolder) -> None:
    there = {str(f.relative_to(whole.path)) for f in whole.path.rglob("*") if f.is_file()}
    known = {file for _, file in files_of(whole)} | {"spec.json", "events.jsonl", ".lock"}
    assert {name for name in there if not name.endswith(".begun")} == known


def test_stages_come_in_order(whole: RunFolder) -> None:
    ended = [event["stage"] for event in logged(whole) if event["event"] == "StageFinished"]
    assert [*ended[:-2]] == list(SEARCH)
    assert ended[-2].startswith("retrain-") and ended[-1] == "report"
    assert len(ended) == len(FILES)


def test_timed_runs_agree_where_the_device_is_known_also_when_they_are_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Machine(monkeypatch)  # a busy one would leave doubts, and what is doubtful is timed anew
    first, second = (finished(tmp_path / name, objectives=TIMED) for name in "ab")
    assert results(first) == results(second)
    assert [e for e in logged(second) if "latency_ms" in e.get("metrics", {})] == []
    front = json.loads((first.path / "pareto.json").read_text())["front"]
    assert all({"quality", "latency_ms", "params", "flops"} <= e["measured"].keys() for e in front)
    folder = tiny(tmp_path / "run", objectives=TIMED)
    for count in range(1, 120, 19):
        if interrupted(folder, count):
            break
    else:
        work(folder)
    assert results(folder) == results(first)
    assert done_twice(folder) == []


@pytest.mark.slow
def test_other_timings_move_the_search_and_no_quality(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = finished(tmp_path / "a", objectives=TIMED)
    monkeypatch.setenv("NAS_CACHE_DIR", str(tmp_path / "other"))
    second = finished(tmp_path / "b", objectives=TIMED)
    same = ("supernet/last.pt", "space.toml")
    assert all((first.path / n).read_bytes() == (second.path / n).read_bytes() for n in same)
    known, again = observed(first), observed(second)
    assert len(known.keys() & again.keys()) >= 8  # the first sample, which no timing decides
    assert all(known[one] == again[one] for one in known.keys() & again.keys())
    assert len([e for e in logged(second) if e.get("stage") == "latency"]) > 8


def observed(folder: RunFolder) -> dict[str, str]:
    """The lines of the observed networks by id."""
    lines = (folder.path / "observations.jsonl").read_text().splitlines()
    return {json.loads(line)["id"]: line for line in lines}


def test_a_finished_run_does_nothing_again(whole: RunFolder) -> None:
    before = results(whole)
    again = work(RunFolder.open(whole.path))
    assert named(again, "StageStarted") == []
    assert len(named(again, "StageSkipped")) == len(FILES)
    assert results(whole) == before


def test_closed_at_every_event_in_turn(whole: RunFolder, tmp_path: Path) -> None:
    folder = tiny(tmp_path / "run")
    for count in range(1, 100):
        if interrupted(folder, count):
            break
    assert results(folder) == results(whole)
    assert done_twice(folder) == []
    assert len(named_in_log(folder, "StageStarted")) > len(FILES)


def named_in_log(folder: RunFolder, kind: str) -> list[str]:
    return [event["stage"] for event in logged(folder) if event["event"] == kind]


# -- kill -9 ----------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("stepped", [True, False])
@pytest.mark.parametrize("kind", ["StageStarted", "Progress", "StageFinished"])
@pytest.mark.parametrize("stage", list(FILES))
def test_killed_in_any_stage(
    whole: RunFolder, tmp_path: Path, stage: str, kind: str, stepped: bool
) -> None:
    folder = tiny(tmp_path / "run")
    kill(step_to(folder, f"{kind} {stage.partition('{')[0]}", 1, stepped=stepped))
    work(RunFolder.open(folder.path))
    assert results(folder) == results(whole)
    assert done_twice(folder) == []


@pytest.mark.slow
def test_killed_again_and_again(whole: RunFolder, tmp_path: Path) -> None:
    folder = tiny(tmp_path / "run")
    for count in range(1, 70, 6):
        process = start(folder)
        assert process.stdout is not None
        for _, _told in zip(range(count), process.stdout, strict=False):
            pass
        process.kill()
        process.communicate()
    work(RunFolder.open(folder.path))
    assert results(folder) == results(whole)
    assert done_twice(folder) == []


@pytest.mark.parametrize(
    "searcher",
    [
        *("nsga2", "tpe"),  # rank-evolve is closed at every event above
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("ranknas", "random")),
    ],
)
def test_every_searcher_ends_alike_when_cut_short(searcher: str, tmp_path: Path) -> None:
    straight = finished(tmp_path / "straight", searcher=searcher)
    cut = tiny(tmp_path / "cut", searcher=searcher)
    with closing(events(cut)) as stream:  # type: ignore[type-var]
        observed = 0
        while observed < 10:
            observed += type(next(stream)).__name__ == "ArchitectureMeasured"
    work(RunFolder.open(cut.path))
    assert results(cut) == results(straight)
    assert done_twice(cut) == []
    assert len((cut.path / "observations.jsonl").read_text("utf-8").splitlines()) == 12


def test_a_journal_of_another_search_starts_the_stage_anew(tmp_path: Path) -> None:
    run = finished_once(tmp_path / "run")
    expected = results(run)
    lines = (run.path / "observations.jsonl").read_text("utf-8").splitlines(keepends=True)
    (run.path / "stages" / "observe.json").unlink()
    (run.path / "observations.jsonl").write_text("".join(reversed(lines)), encoding="utf-8")
    found = work(RunFolder.open(run.path))
    assert any("nobody asked for" in getattr(event, "message", "") for event in found)
    assert results(run) == expected
