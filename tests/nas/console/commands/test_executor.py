"""The options that say where a run is worked on."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from nas.console.app import app
from nas.executors.base import EVALUATION_TIMEOUT_S, ExecutorSettings
from nas.run.events import Event
from nas.run.folder import RunFolder
from tests.support import cli_fakes

RAY = ("--executor", "ray")
Given = list[ExecutorSettings]


@pytest.fixture
def given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Given:
    """The settings that reach the pipeline."""
    given: Given = []

    def run(
        folder: RunFolder, where: ExecutorSettings, retime: bool, tells: bool
    ) -> Iterator[Event]:
        assert tells and not retime
        given.append(where)
        return cli_fakes.run_search(folder)

    monkeypatch.chdir(tmp_path)
    cli_fakes.install(monkeypatch)
    monkeypatch.setattr(sys.modules["nas.stages.pipeline"], "run_search", run)
    found = importlib.util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name == "ray" or found(name))
    return given


def nas(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments)


def search(*arguments: str) -> Result:
    return nas("search", "--space", "digits", "--out", "run", *arguments)


def test_a_search_is_worked_on_in_this_process_unless_asked_otherwise(given: Given) -> None:
    assert search().exit_code == 0
    assert given == [ExecutorSettings("local", timeout_s=EVALUATION_TIMEOUT_S)]


def test_the_options_reach_the_pipeline(given: Given) -> None:
    wide = ("--workers", "3", "--cpus-per-worker", "2", "--evaluation-timeout", "60")
    assert search(*RAY, "--ray-address", "auto", *wide).exit_code == 0
    assert given == [ExecutorSettings("ray", "auto", 2, 3, 60.0)]
    assert search(*RAY, "--train-workers", "4").exit_code == 0
    assert given[1] == ExecutorSettings("ray", train_workers=4)


def test_another_executor_may_resume_and_the_request_is_the_same(given: Given) -> None:
    search(*RAY)
    digest = RunFolder.open(Path("run")).spec.digest
    assert nas("resume", "run").exit_code == 0
    assert [one.kind for one in given] == ["ray", "local"]
    assert search(*RAY, "--workers", "2").exit_code == 0
    assert RunFolder.open(Path("run")).spec.digest == digest


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--executor", "slurm"), "local"),
        (("--workers", "2"), "--workers is for --executor ray"),
        (("--ray-address", "auto"), "--ray-address is for --executor ray"),
        ((*RAY, "--ray-address", "ray://head:10001"), "HOST:PORT"),
        ((*RAY, "--workers", "0"), "at least 1"),
        ((*RAY, "--train-workers", "0"), "--train-workers takes a number of at least 1"),
        (("--train-workers", "2"), "--train-workers is for --executor ray"),
        ((*RAY, "--evaluation-timeout", "0"), "above 0"),
    ],
)
def test_wrong_use_exits_with_2_and_leaves_nothing(
    given: Given, options: tuple[str, ...], message: str
) -> None:
    done = search(*options)
    assert done.exit_code == 2 and message in done.stderr
    assert not Path("run").exists() and not given


def test_without_ray_one_sentence(given: Given, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    done = search(*RAY)
    assert done.exit_code == 2 and "pip install 'nas-service[ray]'" in done.stderr
    assert not Path("run").exists()
    assert search().exit_code == 0
