"""Damaged files of a run: found, named, made anew, and the result is the same."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from nas.console.app import app
from nas.run.events import Note
from nas.run.folder import RunFolder
from search_spaces.errors import DamagedRunError
from tests.support.pipeline_cases import (
    FILES,
    done_twice,
    files_of,
    finished_once,
    named,
    results,
    tiny,
    work,
)


def flip(file: Path) -> None:
    data = bytearray(file.read_bytes() or b" ")
    data[len(data) // 2] ^= 0x01
    file.write_bytes(data)


def truncate(file: Path) -> None:
    data = file.read_bytes() or b"{}\n" * 3
    file.write_bytes(data[: len(data) // 3])


def empty(file: Path) -> None:
    file.write_bytes(b"" if file.stat().st_size else b"{}\n")


def garbage(file: Path) -> None:
    file.write_bytes(b"\xff\xfe" + file.read_bytes()[::-1])


DAMAGE: list[Callable[[Path], None]] = [flip, truncate, empty, garbage, Path.unlink]
NAMES = [
    *((stage, file) for stage, files in FILES.items() for file in files),
    *((stage, f"stages/{stage}.json") for stage in FILES),
]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return finished_once(tmp_path_factory.mktemp("whole") / "run")


@pytest.fixture
def run(whole: RunFolder, tmp_path: Path) -> RunFolder:
    """A finished run to damage."""
    shutil.copytree(whole.path, tmp_path / "run")
    return RunFolder.open(tmp_path / "run")


@pytest.fixture(scope="module")
def winner(whole: RunFolder) -> str:
    (result,) = whole.path.glob("retrained/*/result.json")
    return result.parent.name


def nas(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, arguments)
    return done.exit_code, done.stderr


def check(run: RunFolder, whole: RunFolder, stage: str, name: str) -> None:
    """Resume does only the damaged stage again and says why; the result is the same."""
    events = work(run)
    assert named(events, "StageStarted") == [stage]
    notes = " ".join(e.message for e in events if isinstance(e, Note) and e.stage == stage)
    assert name in notes or name.startswith("stages/"), notes
    assert results(run) == results(whole)
    assert named(work(run), "StageStarted") == []


def test_the_list_of_files_is_whole(whole: RunFolder, winner: str) -> None:
    listed = {(s.format(id=winner), f.format(id=winner)) for s, f in NAMES}
    assert listed == set(files_of(whole))


@pytest.mark.parametrize(("stage", "file"), NAMES)
def test_a_flipped_bit_is_found(
    run: RunFolder, whole: RunFolder, winner: str, stage: str, file: str
) -> None:
    name = file.format(id=winner)
    flip(run.path / name)
    check(run, whole, stage.format(id=winner), name)


@pytest.mark.slow
@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize(("stage", "file"), NAMES)
def test_any_damage_is_found(
    run: RunFolder,
    whole: RunFolder,
    winner: str,
    stage: str,
    file: str,
    damage: Callable[..., None],
) -> None:
    name = file.format(id=winner)
    damage(run.path / name)
    check(run, whole, stage.format(id=winner), name)


def test_everything_lost_but_the_request(run: RunFolder, whole: RunFolder) -> None:
    for path in run.path.iterdir():
        if path.name != "spec.json":
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    work(run)
    assert results(run) == results(whole)


@pytest.mark.parametrize("damage", DAMAGE[:4])
def test_a_damaged_request_is_refused(run: RunFolder, damage: Callable[[Path], None]) -> None:
    damage(run.path / "spec.json")
    with pytest.raises(DamagedRunError, match=r"spec\.json is damaged"):
        RunFolder.open(run.path)
    for command in ("resume", "show", "report", "retrain"):
        code, said = nas(command, str(run.path))
        assert code == 1 and "spec.json is damaged" in said and said.count("\n") <= 2


def test_a_changed_number_of_the_request_is_noticed(run: RunFolder) -> None:
    file = run.path / "spec.json"
    file.write_text(file.read_text().replace('"seed": 0', '"seed": 1'))
    with pytest.raises(DamagedRunError, match="sha256"):
        RunFolder.open(run.path)


@pytest.mark.parametrize("line", ["{", '{"id": "x"', "\xff", ""])
def test_the_log_of_events_may_be_damaged(run: RunFolder, whole: RunFolder, line: str) -> None:
    (run.path / "events.jsonl").write_text(line)
    (run.path / "pareto.json").unlink()
    work(run)
    assert results(run) == results(whole)
    last = (run.path / "events.jsonl").read_text().splitlines()
    assert all("event" in json.loads(one) for one in last)  # what was cut off is gone
    assert len(last) > 2


# -- runs that were cut short -------------------------------------------------------------------


def unfinished(path: Path, stop: str, count: int) -> RunFolder:
    """A run that was closed at the `count`-th event of a kind in a stage."""
    from nas.stages.pipeline import run_search

    folder = tiny(path)
    stream = run_search(folder)
    for event in stream:
        count -= f"{type(event).__name__} {event.stage}".startswith(stop)
        if count == 0:
            break
    stream.close()  # type: ignore[attr-defined]
    return folder


@pytest.mark.parametrize(
    ("stop", "file", "damage"),
    [
        ("Progress supernet", "supernet/last.pt", truncate),
        ("Progress supernet", "supernet/best.pt", Path.unlink),
        ("ArchitectureMeasured observe", "observations.jsonl", Path.unlink),
        ("ArchitectureMeasured observe", "observations.jsonl", truncate),
        ("Progress evolve", "population.jsonl", truncate),
    ],
)
def test_damage_in_an_unfinished_stage(
    whole: RunFolder, tmp_path: Path, stop: str, file: str, damage: Callable[[Path], None]
) -> None:
    run = unfinished(tmp_path / "run", stop, 2 if "supernet" not in stop else 1)
    damage(run.path / file)
    work(run)
    assert results(run) == results(whole)


@pytest.mark.parametrize(("name", "damage"), [("last.pt", truncate), ("best.pt", Path.unlink)])
def test_damage_in_an_unfinished_retraining(
    whole: RunFolder, winner: str, tmp_path: Path, name: str, damage: Callable[[Path], None]
) -> None:
    run = unfinished(tmp_path / "run", "Progress retrain", 1)
    damage(run.path / "retrained" / winner / "checkpoints" / name)
    work(run)
    assert results(run) == results(whole)
    assert not (run.path / "retrained" / winner / "checkpoints").exists()


def test_half_written_files_are_no_trouble(whole: RunFolder, winner: str, tmp_path: Path) -> None:
    run = unfinished(tmp_path / "run", "Progress retrain", 1)
    for folder in (
        run.path,
        run.path / "supernet",
        run.path / "retrained" / winner / "checkpoints",
    ):
        (folder / ".last.pt.12345.tmp").write_bytes(b"half")
    work(run)
    assert results(run) == results(whole)


def test_a_line_cut_in_two_is_measured_again(whole: RunFolder, tmp_path: Path) -> None:
    run = unfinished(tmp_path / "run", "ArchitectureMeasured observe", 5)
    file = run.path / "observations.jsonl"
    file.write_bytes(file.read_bytes()[:-9])
    work(run)
    assert results(run) == results(whole)
    assert len(done_twice(run)) == 1  # its line was lost, so it had to be


def test_files_of_other_inputs_are_not_taken_up(whole: RunFolder, tmp_path: Path) -> None:
    run = unfinished(tmp_path / "run", "Progress evolve", 2)
    (run.path / "stages" / "evolve.begun").write_text("of another ranker")
    file = run.path / "population.jsonl"
    file.write_text(file.read_text().replace('"number": 0', '"number": 7'))
    events = work(run)
    assert "what this stage reads has changed" in str(events)
    assert results(run) == results(whole)


@pytest.mark.parametrize("other", ["damaged", "gone"])
def test_networks_retrained_later_are_mended_too(run: RunFolder, winner: str, other: str) -> None:
    from nas.search.front import read_front
    from nas.stages.retrain import retrain

    entry = next(e for e in read_front(run).entries if e.id != winner)
    list(retrain(run, entry.id))
    before = results(run)
    file = run.path / "retrained" / entry.id / "result.json"
    flip(file) if other == "damaged" else file.unlink()
    assert named(work(run), "StageStarted") == [f"retrain-{entry.id}"]
    assert results(run) == before


def test_a_damaged_record_of_a_network_off_the_front(run: RunFolder, whole: RunFolder) -> None:
    (run.path / "stages" / "retrain-0123456789ab.json").write_text("{")
    assert set(named(work(run), "StageStarted")) <= {"report"}
    assert results(run) == results(whole)


# -- looking at damaged runs --------------------------------------------------------------------


@pytest.mark.parametrize("damage", [flip, truncate, garbage])
@pytest.mark.parametrize("file", ["pareto.json", "observations.jsonl", "stages/rank.json"])
def test_looking_at_a_damaged_run_gives_a_sentence(
    run: RunFolder, file: str, damage: Callable[[Path], None]
) -> None:
    damage(run.path / file)
    for command in ("show", "report", "runs"):
        where = ("--dir", str(run.path.parent)) if command == "runs" else (str(run.path),)
        code, said = nas(command, *where)
        assert code in (0, 1)
        assert "Traceback" not in said and "should not have happened" not in said


def test_a_damaged_front_is_not_retrained(run: RunFolder) -> None:
    file = run.path / "pareto.json"
    file.write_text(file.read_text().replace('"measured"', '"maesured"', 1))
    code, said = nas("retrain", str(run.path))
    assert code == 1 and "pareto.json is damaged" in said
    file.write_text(file.read_text().replace('"maesured"', '"measured"') + " ")
    code, said = nas("retrain", str(run.path))
    assert code == 1 and "nas resume" in said
