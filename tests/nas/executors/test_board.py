"""What workers do, in files that `nas show` reads while they do it."""

from __future__ import annotations

from collections import deque
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from nas.console.app import app
from nas.executors import board
from nas.executors.board import Board, read_workers
from nas.run.folder import RunFolder
from nas.run.layout import WORKERS_STATE_FILE
from tests.support.node_cases import Cluster
from tests.support.run_fixture import empty_run


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return empty_run(tmp_path / "run")


@pytest.fixture
def made(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> Board:
    """A board that writes at every change."""
    monkeypatch.setattr(board, "WRITE_EVERY_S", 0.0)
    return Board(run.path)


def test_each_worker_is_told_as_it_is_now(made: Board, run: RunFolder) -> None:
    made.change("worker-0", doing="starting")
    made.change("worker-1", doing="idle", host="far", pid=7)
    made.change("worker-1", doing="evaluating", network="abc", done=3)
    first, second = read_workers(run.path)
    assert (first.name, first.doing, first.network) == ("worker-0", "starting", None)
    assert (second.host, second.pid, second.network, second.done) == ("far", 7, "abc", 3)
    made.clear()
    assert read_workers(run.path) == [] and not (run.path / WORKERS_STATE_FILE).exists()


def test_a_worker_that_has_done_its_work_is_forgotten(made: Board, run: RunFolder) -> None:
    made.change("worker-0", doing="idle")
    made.change("trainer-0", doing="training")
    made.remove("trainer-0")
    made.remove("trainer-1")
    assert [one.name for one in read_workers(run.path)] == ["worker-0"]


def test_it_is_not_written_at_every_change(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(board, "WRITE_EVERY_S", 1e9)
    made = Board(run.path)
    made.change("worker-0", doing="idle")
    assert read_workers(run.path) == []
    made.write()
    assert [one.doing for one in read_workers(run.path)] == ["idle"]


def changed_twice(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> Board:
    """A board whose second change came too soon to be written, some time later."""
    made = Board(run.path)
    made.change("worker-0", doing="idle")
    monkeypatch.setattr(board, "WRITE_EVERY_S", 1e9)
    made.change("worker-0", doing="evaluating", network="abc")
    assert [one.doing for one in read_workers(run.path)] == ["idle"]
    made.tick()
    assert [one.doing for one in read_workers(run.path)] == ["idle"]
    monkeypatch.setattr(board, "WRITE_EVERY_S", 0.0)
    return made


def test_what_came_too_soon_is_written_when_it_may(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = changed_twice(run, monkeypatch)
    made.tick()
    assert [one.doing for one in read_workers(run.path)] == ["evaluating"]
    (run.path / WORKERS_STATE_FILE).unlink()
    made.tick()  # nothing has changed since
    assert read_workers(run.path) == []


@pytest.mark.ray
@pytest.mark.parametrize("who", ["pool", "jobs"])
def test_it_is_written_while_workers_are_waited_for(
    who: str, run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    from nas.executors import ray_jobs
    from nas.executors.ray_pool import Pool

    monkeypatch.setattr(ray_jobs.ray, "wait", lambda calls, **_: ([], calls))
    made, nodes = changed_twice(run, monkeypatch), Cluster(one=1).watch()
    nobody: Any = None
    if who == "pool":
        list(Pool(nobody, made, 9.0, nodes, nobody)._answers(deque()))
    else:
        ray_jobs.Jobs(nobody, [], 1, made, nodes, nobody).ended(0.0)
    assert [one.doing for one in read_workers(run.path)] == ["evaluating"]


def test_logs_grow_and_stay(made: Board, run: RunFolder) -> None:
    made.log("worker-0", ["started", "evaluated"])
    Board(run.path).log("worker-0", ["again"])
    made.clear()
    lines = (run.path / "workers" / "worker-0.log").read_text().splitlines()
    assert [line.split(" ", 1)[1] for line in lines] == ["started", "evaluated", "again"]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"workers": [{}]}', '{"workers": [{"x": 1}]}'])
def test_a_board_that_cannot_be_read_tells_nothing(run: RunFolder, text: str) -> None:
    (run.path / "workers").mkdir()
    (run.path / WORKERS_STATE_FILE).write_text(text)
    assert read_workers(run.path) == []


def test_show_tells_while_the_run_is_worked_on(
    made: Board, run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")  # pytest-xdist sets it to 80
    made.change("worker-0", doing="evaluating", network="0123456789ab", host="far", pid=7, lost=1)
    with run.locked():
        said = CliRunner().invoke(app, ["show", str(run.path)]).stdout
    assert all(
        word in said for word in ("Workers", "worker-0", "far", "evaluating", "0123456789ab")
    )


def test_show_does_not_tell_of_those_of_a_run_that_was_killed(made: Board, run: RunFolder) -> None:
    made.change("worker-0", doing="evaluating")
    assert "Workers" not in CliRunner().invoke(app, ["show", str(run.path)]).stdout
