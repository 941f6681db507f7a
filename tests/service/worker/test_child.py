"""What a job's process does with its orders, on a tiny real run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from nas.results.export import verify_export
from nas.run.folder import RunFolder
from nas.search.front import read_front
from search_spaces.errors import UsageError
from service import commands
from service.api.files import find_artifact, list_artifacts
from service.jobs.states import Kind
from service.settings import Settings, read_settings
from service.worker import job_process
from service.worker.runner import Outcome, ProcessRunner, _orders, _Process
from tests.support.pipeline_cases import finished_once, logged, tiny

LOCAL = {"executor": "local", "ray_address": None}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return finished_once(tmp_path_factory.mktemp("runs") / "tiny")


def begun(script: str, folder: Path) -> tuple[subprocess.Popen[bytes], _Process]:
    """A process that runs some Python there, and the same as a worker holds it."""
    with (folder / "log").open("ab") as stream:
        size = stream.tell()
        process = subprocess.Popen(
            [sys.executable, "-c", script],
            stdin=subprocess.PIPE,
            stdout=stream,
            stderr=stream,
            cwd=folder,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
    return process, _Process(process, folder / "log", size, folder, folder)


@pytest.mark.parametrize("how", ["ended", "stopped", "left alone"])
def test_what_a_job_has_started_ends_with_it(how: str, tmp_path: Path) -> None:
    """As a program of an evaluator, which listens to nothing."""
    script = (
        "import os, subprocess, sys\n"
        "from service.worker.job_process import end_with_parent\n"
        "end_with_parent()\n"
        "child = subprocess.Popen(['sh', '-c', 'trap \"\" TERM; echo $$ > pid; exec sleep 1000'])\n"
        "while not os.path.exists('pid') or not open('pid').read(): pass\n"
        + ("" if how == "ended" else "child.wait()\n")
    )
    process, child = begun(script, tmp_path)
    while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
        assert how == "ended" or process.poll() is None
    if how == "ended":
        assert child.wait(60.0) is not None
    elif how == "stopped":
        child.stop(0.0)
    else:
        child._close()
        process.wait(60.0)
    identity = int((tmp_path / "pid").read_text())
    ended = time.monotonic() + 30
    while alive(identity) and time.monotonic() < ended:
        pass
    assert not alive(identity)


def test_a_job_that_is_asked_to_end_closes_what_it_has_opened(tmp_path: Path) -> None:
    script = (
        "import signal, sys\n"
        "from service.worker import job_process\n"
        "def work(*_):\n"
        "    try:\n"
        "        open('begun', 'w').close()\n"
        "        while True: signal.pause()\n"
        "        yield\n"
        "    finally:\n"
        "        open('closed', 'w').close()\n"
        "job_process.work = work\n"
        "job_process.FencedFolder.of = lambda *a: None\n"
        "sys.exit(job_process.main(['run', 'search', '', '{\"job\": \"a\", \"attempt\": 1}']))\n"
    )
    process, child = begun(script, tmp_path)
    while not (tmp_path / "begun").exists():
        assert process.poll() is None
    process.terminate()
    found = child.wait(60.0)
    assert found is not None and found.asked and not found.ok
    assert "SIGTERM" in str(found.error) and (tmp_path / "closed").exists()


@pytest.mark.parametrize(
    ("does", "error"),
    [
        ("print('a result', end='')", None),
        ("os._exit(0)", "the job's process ended with exit code 0 before the job was done"),
        ("os._exit(3)", "the job's process ended with exit code 3 before the job was done"),
        ("sys.exit()", "what the job ran ended it with sys.exit(None)"),
        ("sys.exit('no rig')", "what the job ran ended it with sys.exit('no rig')"),
    ],
)
def test_a_job_is_done_when_its_process_says_so(
    does: str, error: str | None, tmp_path: Path
) -> None:
    """And neither when an evaluator ends it, nor when an earlier attempt said so."""
    (tmp_path / "log").write_text("error: the data are gone\nthe job is done\n")
    script = (
        "import os, sys\n"
        "from service.worker import job_process\n"
        "def work(*_):\n"
        f"    {does}\n"
        "    yield\n"
        "job_process.work = work\n"
        "job_process.FencedFolder.of = lambda *a: None\n"
        "sys.exit(job_process.main(['run', 'search', '', '{\"job\": \"a\", \"attempt\": 1}']))\n"
    )
    _, child = begun(script, tmp_path)
    assert child.wait(60.0) == Outcome(ok=error is None, error=error)


def test_the_reason_of_an_earlier_attempt_is_not_told_again(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path, runner="no_such_module")
    settings.logs.mkdir()
    (settings.logs / "a.log").write_text("error: the data are gone\n")
    job: Any = SimpleNamespace(id="a", kind=Kind.retrain, pick="best", attempt=2, request={})
    ended = ProcessRunner(settings).start(job, tmp_path).wait(60.0)
    assert ended is not None and "ended with exit code 1 before" in str(ended.error)


def alive(process: int) -> bool:
    """Whether a process works; one that nobody has looked after does not."""
    try:
        return ") Z" not in Path(f"/proc/{process}/stat").read_text("utf-8")
    except OSError:
        return False


def trained(run: RunFolder) -> str:
    ids = [entry.id for entry in read_front(run).entries]
    return next(one for one in ids if run.record(f"retrain-{one}") is not None)


def test_an_export_is_checked_told_of_and_listed_with_its_checksums(run: RunFolder) -> None:
    identity, before = trained(run), len(logged(run))
    orders = {"format": "torch", "weights": "trained"}
    for _ in range(2):  # again replaces it
        events = list(job_process.work(run, Kind.export, identity, orders))
        assert [type(event).__name__ for event in events] == [
            "StageStarted",
            "Progress",
            "StageFinished",
        ]
    assert len(logged(run)) == before + 6
    where = run.path / "export" / identity / "torch"
    assert verify_export(where).facts["id"] == identity
    listed = {file.path: file for file in list_artifacts(run.path)}
    mine = [name for name in listed if name.startswith(f"export/{identity}/torch/")]
    assert [n for n in mine if not listed[n].sha256] == [f"export/{identity}/torch/checksums.json"]


def test_damaged_checksums_of_an_export_are_none(run: RunFolder) -> None:
    identity = trained(run)
    file = run.path / "export" / identity / "other" / "checksums.json"
    file.parent.mkdir(parents=True)
    for text in ("", "[]", '{"sha256": 3}', '{"sha256": {"../../spec.json": "0"}}'):
        file.write_text(text)
        assert all(one.sha256 != "0" for one in list_artifacts(run.path))


def test_what_workers_of_a_cluster_log_is_not_listed(run: RunFolder) -> None:
    (run.path / "workers").mkdir()
    (run.path / "workers" / "one.log").write_text("started on 10.0.0.7")
    assert find_artifact(run.path, "spec.json") is not None
    assert find_artifact(run.path, "workers/one.log") is None
    assert not any(file.path.startswith("workers") for file in list_artifacts(run.path))


def test_inherited_weights_are_exported_where_they_are_asked_for(run: RunFolder) -> None:
    other = next(e.id for e in read_front(run).entries if not run.record(f"retrain-{e.id}"))
    with pytest.raises(UsageError):
        list(job_process.work(run, Kind.export, other, {"format": "torch", "weights": "trained"}))
    orders = {"format": "torch", "weights": "inherited"}
    list(job_process.work(run, Kind.export, other, orders))
    facts = json.loads((run.path / "export" / other / "torch" / "export.json").read_text())
    assert facts["id"] == other


def test_a_search_goes_where_its_worker_sends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(
        "nas.stages.pipeline.run_search", lambda folder, where, tells: seen.append(where) or []
    )
    folder = tiny(tmp_path / "run")
    job_process.work(folder, Kind.search, "", LOCAL)
    job_process.work(folder, Kind.search, "", {"executor": "ray", "ray_address": "10.0.0.1:6379"})
    assert [(one.kind, one.ray_address) for one in seen] == [
        ("local", None),
        ("ray", "10.0.0.1:6379"),
    ]


# -- the worker's side ----------------------------------------------------------------------------


def test_orders_are_what_each_kind_needs() -> None:
    settings = Settings(executor="ray", ray_address="auto")
    request = {"pick": "best", "format": "torch", "weights": "trained", "priority": 5}

    def orders(kind: Kind) -> Any:
        return _orders(SimpleNamespace(kind=kind, request=request), settings)  # type: ignore[arg-type]

    assert orders(Kind.search) == {"executor": "ray", "ray_address": "auto"}
    assert orders(Kind.export) == {"format": "torch", "weights": "trained"}
    assert orders(Kind.retrain) == orders(Kind.attention) == {}


def test_an_executor_that_cannot_be_is_refused_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--executor ray"):
        read_settings({"NAS_RAY_ADDRESS": "auto"}, home=tmp_path)
    with pytest.raises(UsageError, match="HOST:PORT"):
        read_settings({"NAS_EXECUTOR": "ray", "NAS_RAY_ADDRESS": "nowhere"}, home=tmp_path)
    with pytest.raises(UsageError, match="NAS_EXECUTOR is 'slurm'"):
        read_settings({"NAS_EXECUTOR": "slurm"}, home=tmp_path)
    good = read_settings({"NAS_EXECUTOR": "ray", "NAS_RAY_ADDRESS": "h:6379"}, home=tmp_path)
    assert good.searching.ray_address == "h:6379"


def test_the_worker_command_takes_an_executor(tmp_path: Path) -> None:
    import typer

    app = typer.Typer()
    app.command()(commands.worker)
    given = ["--home", str(tmp_path), "--ray-address", "auto"]
    refused = CliRunner().invoke(app, given)
    assert isinstance(refused.exception, UsageError)
    assert not (tmp_path / "service.db").exists()
