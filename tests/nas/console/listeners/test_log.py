"""`--log`: asked for on the command line, and never in the way of a search."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner, Result

from nas.console.app import app
from nas.console.listeners import targets
from nas.console.listeners.targets import complete_log
from nas.console.progress import BarReporter
from nas.run.events import Event, StageStarted
from nas.run.folder import RunFolder
from search_spaces.errors import UsageError
from tests.support import cli_fakes, logging_cases
from tests.support.cli_fakes import MIDDLE, last_json
from tests.support.logging_cases import FakeClient, FakeWriter

BOTH = ("--log", "tensorboard", "--log", "mlflow=http://host")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    cli_fakes.install(monkeypatch)
    logging_cases.install(monkeypatch)
    return tmp_path


def nas(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments)


def search(*arguments: str) -> Result:
    return nas("search", "--space", "digits", "--out", "run", *arguments)


def out_of_space(*_: Any) -> None:
    raise OSError("no space")


def test_a_search_goes_to_both() -> None:
    done = search(*BOTH)
    assert done.exit_code == 0, done.output
    assert (len(FakeWriter.made), FakeClient.uris) == (1, ["http://host"])
    assert FakeClient.runs[0].info.status == "FINISHED"


def test_without_the_option_nothing_is_logged() -> None:
    assert search().exit_code == 0
    assert (FakeWriter.made, FakeClient.uris) == ([], [])


def test_resume_and_retrain_log_too() -> None:
    search()
    assert nas("resume", "run", "--log", "mlflow").exit_code == 0
    assert nas("retrain", "run", "--pick", MIDDLE.id, "--log", "mlflow").exit_code == 0
    (run,) = FakeClient.runs
    assert f"retrained/{MIDDLE.id}/result.json" in run.data.files


def test_a_place_named_twice_is_logged_to_once() -> None:
    assert search("--log", "tensorboard", "--log", "tensorboard").exit_code == 0
    assert len(FakeWriter.made) == 1


@pytest.mark.parametrize("how", [(), ("--quiet",), ("--json",)], ids=str)
def test_a_failing_logger_is_one_line_on_stderr(
    monkeypatch: pytest.MonkeyPatch, how: tuple[str, ...]
) -> None:
    monkeypatch.setattr(FakeWriter, "add_event", out_of_space)
    done = search("--log", "tensorboard", *how)
    told = "note: logging to tensorboard failed, the run goes on without it: no space"
    assert done.exit_code == 0
    assert done.stderr.count("logging to") == 1
    assert told in done.stderr.splitlines()
    assert "logging to" not in done.stdout


def test_the_warning_stands_above_the_bars() -> None:
    stream = io.StringIO()
    with BarReporter(Console(file=stream, force_terminal=True, width=120)) as screen:
        screen.warn("logging [failed]")
    assert "note: logging [failed]" in stream.getvalue()


def test_a_logger_does_not_change_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = last_json(nas("search", "--space", "digits", "--out", "a", "--json").stdout)
    logged = last_json(nas("search", "--space", "digits", "--out", "b", "--json", *BOTH).stdout)
    assert Path("a/pareto.json").read_bytes() == Path("b/pareto.json").read_bytes()
    assert Path("a/spec.json").read_bytes() == Path("b/spec.json").read_bytes()
    assert plain.keys() == logged.keys()


@pytest.mark.parametrize("command", ["search", "resume", "retrain"])
def test_a_missing_package_is_told_before_any_work(
    monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setattr(targets, "find_spec", lambda name: None)
    words = ("--space", "digits") if command == "search" else ("run",)
    if command != "search":
        search()
    before = {path for path in Path().rglob("*")}
    done = nas(command, *words, "--log", "tensorboard")
    assert done.exit_code == 2
    assert "extra tensorboard" in done.stderr
    assert {path for path in Path().rglob("*")} == before


def test_a_refused_request_leaves_no_log(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(folder: RunFolder) -> Iterator[Event]:
        yield StageStarted("declare", "Declare")
        raise UsageError("too small")

    cli_fakes.install(monkeypatch, refused)
    assert search(*BOTH).exit_code == 2
    assert not Path("run").exists()
    assert (FakeWriter.made, FakeClient.runs) == ([], [])


def test_the_shell_completes_loggers() -> None:
    assert complete_log("ml") == ["mlflow", "mlflow="]
