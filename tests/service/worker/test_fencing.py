"""One attempt at a job writes a run folder at a time, and the newest wins."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nas.run.events import StageStarted
from nas.run.folder import RunFolder, locked
from nas.run.layout import ATTEMPTS_FOLDER, EVENTS_FILE, LOCK_FILE
from nas.run.opened import OpenedRun
from nas.run.supernet_training import supernet_checkpoints
from search_spaces.errors import RunConflictError
from service.settings import Settings
from service.worker import job_process
from service.worker.job_process import FencedFolder
from tests.support.pipeline_cases import tiny
from tests.support.service_cases import fresh_store

NOTE = StageStarted("one", "One")
ROOT = Path(__file__).resolve().parents[3]

HOLD = """
import os, signal, sys
from pathlib import Path
from nas.run.events import StageStarted
from nas.run.folder import locked
from search_spaces.errors import RunConflictError
from service.worker.job_process import FencedFolder
folder = FencedFolder.of(Path(sys.argv[1]), "job", 1)
with folder.locked():
    folder.log(StageStarted("one", "One"))
    print("held", flush=True)
    os.kill(os.getpid(), signal.SIGSTOP)
    try:
        folder.log(StageStarted("two", "Two"))
    except RunConflictError:
        sys.exit(75)
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tiny(tmp_path / "runs" / "run").path


@pytest.fixture
def frozen(path: Path) -> Iterator[subprocess.Popen[str]]:
    """The process of a first attempt, stopped while it holds the run."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert process.stdout is not None and process.stdout.readline() == "held\n"
    os.waitid(os.P_PID, process.pid, os.WSTOPPED)
    yield process
    process.kill()
    process.communicate()


def stages(path: Path) -> list[str]:
    lines = (path / EVENTS_FILE).read_text().splitlines()
    return [json.loads(line)["stage"] for line in lines]


def test_a_frozen_attempt_lets_go_of_its_run_when_it_wakes(
    path: Path, frozen: subprocess.Popen[str]
) -> None:
    newer = FencedFolder.of(path, "job", 2)
    with pytest.raises(RunConflictError, match="another process"), newer.locked():
        pass
    frozen.send_signal(signal.SIGCONT)
    assert frozen.wait(60) == 75
    assert stages(path) == ["one"]
    with newer.locked():
        newer.log(NOTE)
    assert stages(path) == ["one", "one"]


WRITES: dict[str, Callable[[RunFolder], None]] = {
    "log": lambda folder: folder.log(NOTE),
    "append": lambda folder: folder.append("a.jsonl", [{}]),
    "write_json": lambda folder: folder.write_json("a.json", {}),
    "begin": lambda folder: folder.begin("one", "digest"),
    "finish": lambda folder: folder.finish("one", "digest", (), 1.0),
    "write_journal": lambda folder: folder.write_journal("b.jsonl", [{}]),
    "forget": lambda folder: folder.forget("none", ()),
    "checkpoint": lambda folder: supernet_checkpoints(OpenedRun(folder)).save_last({}),
    "best": lambda folder: supernet_checkpoints(OpenedRun(folder)).save_best({}),
}


@pytest.mark.parametrize("write", list(WRITES))
def test_an_attempt_writes_nothing_once_there_is_a_newer_one(path: Path, write: str) -> None:
    older, other = FencedFolder.of(path, "job", 1), FencedFolder.of(path, "another", 1)
    with older.locked():
        WRITES[write](older)
        before = sorted(one.name for one in path.rglob("*") if ATTEMPTS_FOLDER not in one.parts)
        FencedFolder.of(path, "job", 2)
        with pytest.raises(RunConflictError, match="attempt 2"):
            WRITES[write](older)
    WRITES[write](other)
    assert sorted(one.name for one in path.rglob("*") if ATTEMPTS_FOLDER not in one.parts) == before


def test_an_attempt_that_comes_late_does_not_begin(path: Path) -> None:
    newer = FencedFolder.of(path, "job", 2)
    with newer.locked():
        assert [one.name for one in (path / ATTEMPTS_FOLDER).iterdir()] == ["job-2"]
    with pytest.raises(RunConflictError, match="attempt 2"):
        FencedFolder.of(path, "job", 1)
    with newer.locked():
        newer.log(NOTE)


def test_a_run_that_was_moved_away_is_not_begun_in_its_place(path: Path) -> None:
    folder = FencedFolder.of(path, "job", 1)
    path.rename(path.with_name("aside"))
    with pytest.raises(RunConflictError, match="not there"), folder.locked():
        pass
    with pytest.raises(RunConflictError, match="not there"):
        FencedFolder.of(path, "job", 1)
    assert {one.name for one in path.iterdir()} <= {LOCK_FILE}
    again = tiny(path)  # what is left there is in nobody's way
    with again.locked():
        again.log(NOTE)


def test_the_process_of_a_job_says_that_its_run_is_busy(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(job_process, "end_with_parent", lambda: None)
    orders = {"executor": "local", "ray_address": None, "job": "job", "attempt": 1}
    with locked(path):
        assert job_process.main([str(path), "search", "", json.dumps(orders)]) == job_process.BUSY
    FencedFolder.of(path, "job", 2)
    assert job_process.main([str(path), "search", "", json.dumps(orders)]) == job_process.BUSY
    assert (
        job_process.main([str(path / "none"), "search", "", json.dumps(orders)]) == job_process.BUSY
    )
    assert "attempt 2" in capsys.readouterr().err


def test_the_run_of_a_frozen_process_is_neither_moved_nor_deleted(
    path: Path, frozen: subprocess.Popen[str]
) -> None:
    from service.jobs.retention import delete_job, make_room
    from tests.support.service_cases import submission

    home = path.parents[1]
    settings = Settings(home=home, quota_gib=1e-9)
    with fresh_store(f"sqlite:///{home / 'service.db'}") as store:
        job, _ = store.jobs.submit(submission())
        store.jobs.cancel(job.id, 20.0)
        mine = path.rename(path.with_name(job.run))
        store.retention.note(job.run, 1000)
        make_room(store, settings)
        assert stages(mine) == ["one"] and store.retention.kept(job.run) == "all"
        assert delete_job(store, settings, job.id) is not None
        assert stages(mine) == ["one"]  # nobody's, and swept up once it is let go
        os.utime(mine, (0, 0))
        make_room(store, settings)
        assert mine.is_dir()
        frozen.kill()
        frozen.wait(60)
        os.utime(mine, (0, 0))
        make_room(store, settings)
        assert not mine.exists()
