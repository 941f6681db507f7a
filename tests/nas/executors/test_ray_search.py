"""Whole searches through Ray: the same front as in one process, whatever happens on the way."""

from __future__ import annotations

import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from typer.testing import CliRunner

from nas.console.app import app
from nas.executors.base import ExecutorSettings
from nas.executors.board import read_workers
from nas.run.events import Event
from nas.run.folder import RunFolder
from nas.run.layout import EVENTS_FILE
from nas.stages.pipeline import run_search
from search_spaces.errors import ExecutorError
from tests.nas.stages.test_pipeline_conflicts import small_disk
from tests.support.pipeline_cases import (
    done_twice,
    finished,
    finished_once,
    named,
    results,
    tiny,
    trained_once,
    work,
)

__all__ = ["small_disk"]  # a fixture

pytestmark = pytest.mark.ray
# One process trains, so that the weights have the bits of a training without Ray.
TWO = ExecutorSettings("ray", workers=2, train_workers=1)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A run in one process."""
    return finished_once(tmp_path_factory.mktemp("whole") / "run")


def events(folder: RunFolder) -> Iterator[Event]:
    return run_search(RunFolder.open(folder.path), TWO)


def test_begun_through_ray_and_ended_without(
    whole: RunFolder, tmp_path: Path, ray_session: None
) -> None:
    run, seen = trained_once(tmp_path / "run"), 0
    with closing(events(run)) as stream:  # type: ignore[type-var]
        while seen < 5:
            seen += type(next(stream)).__name__ == "ArchitectureMeasured"
        assert {one.doing for one in read_workers(run.path)} <= {"starting", "idle", "evaluating"}
        said = CliRunner().invoke(app, ["show", str(run.path)]).stdout
        assert "worker-0" in said and "worker-1" in said
    assert read_workers(run.path) == []
    assert "observe" in named(work(RunFolder.open(run.path)), "StageStarted")
    assert results(run) == results(whole) and done_twice(run) == []
    logs = "".join(file.read_text() for file in run.path.glob("workers/worker-*.log"))
    assert logs.count("evaluated") >= 5


@pytest.mark.slow
@pytest.mark.parametrize("searcher", ["rank-evolve", "ranknas", "tpe"])
def test_the_same_front_by_every_searcher(searcher: str, tmp_path: Path, ray_session: None) -> None:
    alone = finished(tmp_path / "alone", searcher=searcher)
    run = tiny(tmp_path / "run", searcher=searcher)
    list(events(run))
    assert results(run) == results(alone) and done_twice(run) == []


@pytest.mark.slow
def test_a_timed_search(tmp_path: Path, ray_session: None) -> None:
    costs = ("quality", "latency_ms", "peak_memory_mb")
    alone = finished(tmp_path / "alone", objectives=costs)
    run = tiny(tmp_path / "run", objectives=costs)
    list(events(run))
    if any("other work disturbed" in (one.path / EVENTS_FILE).read_text() for one in (alone, run)):
        pytest.skip("other work disturbed timings, which then are taken anew")
    assert results(run) == results(alone)  # what was timed once is known


@pytest.mark.slow
def test_a_search_that_measures_memory_and_times_nothing(
    tmp_path: Path, ray_session: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What measures needs the processors that the evaluating workers held."""
    monkeypatch.setattr("nas.executors.ray_device.FREE_TIMEOUT_S", 60.0)
    costs = ("quality", "peak_memory_mb")
    alone = finished(tmp_path / "alone", objectives=costs)
    run = tiny(tmp_path / "run", objectives=costs)
    list(events(run))
    assert results(run) == results(alone)


@pytest.mark.slow
def test_a_full_disk_that_grows(whole: RunFolder, small_disk: Path, ray_session: None) -> None:
    run = tiny(small_disk / "run")
    options = ["--quiet", "--executor", "ray", "--workers", "2", "--train-workers", "1"]
    done = CliRunner().invoke(app, ["resume", str(run.path), *options])
    assert done.exit_code == 1 and "no space is left" in done.stderr
    assert "Traceback" not in done.stderr and not (run.path / "crash.log").exists()
    subprocess.run(["mount", "-o", "remount,size=50m", str(small_disk)], check=True)
    assert CliRunner().invoke(app, ["resume", str(run.path), *options]).exit_code == 0
    assert results(run) == results(whole)


def test_a_disk_that_fills_up_with_logs(
    whole: RunFolder, tmp_path: Path, ray_session: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = trained_once(tmp_path / "run")
    (run.path / "workers").write_text("a file where the folder should be")
    done = CliRunner().invoke(app, ["resume", str(run.path), "-q", "--executor", "ray"])
    assert done.exit_code == 1 and "workers" in done.stderr and "Traceback" not in done.stderr
    (run.path / "workers").unlink()
    work(RunFolder.open(run.path))
    assert results(run) == results(whole)


@pytest.mark.parametrize("address", ["127.0.0.1:1", "nowhere.invalid:6379"])
def test_a_head_that_is_not_there(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from nas.executors import ray_cluster
    from nas.executors.ray_cluster import RayCluster

    monkeypatch.setattr(ray_cluster.ray, "is_initialized", lambda: False)
    with pytest.raises(ExecutorError, match=rf"no Ray cluster to be had at {address}.* ray start"):
        RayCluster(ExecutorSettings("ray", address)).connect()


@pytest.mark.parametrize(
    ("says", "told"), [(b"-ERR unknown command\r\n", "something else"), (b"", "timed out")]
)
def test_a_head_that_is_something_else(
    says: bytes, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a database is, at the port that Ray usually takes."""
    from nas.executors import ray_cluster
    from nas.executors.ray_cluster import RayCluster

    monkeypatch.setattr(ray_cluster.ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray_cluster, "CONNECT_TIMEOUT_S", 5.0 if says else 0.2)
    over = threading.Event()

    def answer(door: socket.socket) -> None:
        line = door.accept()[0]
        line.sendall(says)
        over.wait()
        line.close()

    with socket.create_server(("127.0.0.1", 0)) as door:
        answering = threading.Thread(target=answer, args=(door,))
        answering.start()
        address = f"127.0.0.1:{door.getsockname()[1]}"
        with pytest.raises(ExecutorError, match=rf"to be had at {address} \(.*{told}"):
            RayCluster(ExecutorSettings("ray", address)).connect()
        over.set()
        answering.join()
