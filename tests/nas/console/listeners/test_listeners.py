"""Listeners pass on what is worth keeping, and never stop a search."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from nas.console.listeners import Listener, Logger, Target, read_target, targets
from nas.console.listeners.results import stage_results
from nas.run import events
from nas.run.events import Event
from nas.run.folder import RunFolder
from search_spaces.errors import DamagedRunError, UsageError
from tests.support import cli_fakes, logging_cases
from tests.support.cli_fakes import LARGE
from tests.support.logging_cases import FakeClient, FakeWriter, Remembered, new_run


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return new_run(tmp_path / "run")


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> None:
    logging_cases.install(monkeypatch)


def heard(folder: RunFolder, logger: Logger, run: Iterable[Event]) -> list[str]:
    """Let a logger hear a run; its warnings."""
    warnings: list[str] = []
    with Listener("memory", folder, lambda: logger, warnings.append) as listener:
        for event in run:
            listener.hear(event)
    return warnings


# -- what is kept ---------------------------------------------------------------------------------


def test_times_losses_hypervolume_and_scores_are_kept(folder: RunFolder) -> None:
    logger = Remembered()
    assert heard(folder, logger, cli_fakes.run_search(folder)) == []
    assert logger.points["supernet/loss"] == [(1, 0.5)]
    assert logger.points["seconds/supernet"] == [(0, 1.25)]
    assert logger.points["front/hypervolume"] == [(1, 0.5)]
    assert logger.points["front/final_networks"] == [(0, 3.0)]
    assert logger.points[f"retrain-{LARGE.id}/test_accuracy"] == [(0, 0.975)]
    assert logger.outcome == "finished"


def test_the_report_card_is_kept_with_plain_names(folder: RunFolder) -> None:
    logger = Remembered()
    heard(folder, logger, cli_fakes.run_search(folder))
    assert logger.points["ranker/kendall_tau"] == [(0, 0.8)]
    assert logger.points["ranker/candidates/pairwise-linear-l2-0.1/spearman"] == [(0, 0.9)]
    assert logger.points["ranker/curve/pairwise_accuracy"] == [(8, 0.85)]
    assert logger.texts["ranker"] == "pairwise linear l2=0.1"


def test_the_front_is_a_table_and_results_are_files(folder: RunFolder) -> None:
    logger = Remembered()
    heard(folder, logger, cli_fakes.run_search(folder))
    rows = logger.texts["front"].splitlines()
    assert rows[:2] == ["| id | quality | flops |", "| --- | --- | --- |"]
    assert f"| {LARGE.id} | 0.1 | 1.235e+06 |" in rows
    result = f"retrained/{LARGE.id}/result.json"
    assert logger.files == ["ranker/report_card.json", "pareto.json", result, "report.html"]


def test_a_session_that_skips_everything_tells_the_results(folder: RunFolder) -> None:
    for _ in cli_fakes.run_search(folder):
        pass
    logger = Remembered()
    heard(folder, logger, cli_fakes.run_search(folder))
    assert logger.points["front/final_hypervolume"] == [(0, pytest.approx(0.9, abs=0.1))]
    assert "seconds/supernet" not in logger.points
    assert logger.texts.keys() == {"ranker", "front"}


def test_hypervolumes_of_one_session_are_counted(folder: RunFolder) -> None:
    logger = Remembered()
    heard(folder, logger, [events.FrontUpdated("evolve", (), volume) for volume in (0.1, 0.2)])
    assert logger.points["front/hypervolume"] == [(1, 0.1), (2, 0.2)]


def test_nothing_worth_keeping_opens_no_logger(folder: RunFolder) -> None:
    def refuse() -> Logger:
        raise AssertionError("opened")

    run = [
        events.StageStarted("declare", "Declare"),
        events.Progress("declare", 1, 1, "words"),
        events.ArchitectureMeasured("observe", "abc", {"quality": 1.0}),
        events.Note("declare", "words"),
        events.StageSkipped("declare", "Declare"),
    ]
    warnings: list[str] = []
    with Listener("memory", folder, refuse, warnings.append) as listener:
        for event in run:
            listener.hear(event)
    assert warnings == []


def test_stages_without_results_leave_none(folder: RunFolder) -> None:
    assert stage_results(folder, "observe").series == ()
    with pytest.raises(DamagedRunError):
        stage_results(folder, "rank")


# -- failures -------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["numbers", "text", "file", "close"])
def test_a_failing_logger_warns_once_and_hears_no_more(folder: RunFolder, method: str) -> None:
    logger = Remembered(fails_at=method)
    (warning,) = heard(folder, logger, cli_fakes.run_search(folder))
    assert warning == (
        f"logging to memory failed, the run goes on without it: no {method} and a second line"
    )
    assert logger.calls.count(method) == 1
    assert logger.calls[-1] == "close"


def test_a_logger_that_does_not_open_is_tried_once(folder: RunFolder) -> None:
    tries, warnings = [], list[str]()

    def fail() -> Logger:
        tries.append(1)
        raise ImportError

    with Listener("memory", folder, fail, warnings.append) as listener:
        for event in cli_fakes.run_search(folder):
            listener.hear(event)
    assert (len(tries), len(warnings)) == (1, 1)
    assert warnings[0].endswith("ImportError")


def test_a_missing_file_of_a_stage_is_a_warning(folder: RunFolder) -> None:
    (warning,) = heard(folder, Remembered(), [events.StageFinished("rank", 1.0)])
    assert "report_card.json" in warning


def test_ctrl_c_is_not_swallowed(folder: RunFolder) -> None:
    class Interrupted(Remembered):
        def _called(self, name: str) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        heard(folder, Interrupted(), [events.StageFinished("observe", 1.0)])


@pytest.mark.parametrize(
    ("error", "outcome"), [(ValueError, "failed"), (KeyboardInterrupt, "stopped")]
)
def test_the_logger_learns_how_it_ended(
    folder: RunFolder, error: type[BaseException], outcome: str
) -> None:
    def run() -> Iterator[Event]:
        yield events.StageFinished("observe", 1.0)
        raise error

    logger = Remembered()
    with pytest.raises(error):
        heard(folder, logger, run())
    assert logger.outcome == outcome


def test_chatter_of_a_library_does_not_reach_stdout(
    folder: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    heard(folder, Remembered(), [events.StageFinished("observe", 1.0)])
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "chatter" in captured.err


# -- what is asked for ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("tensorboard", Target("tensorboard")),
        ("mlflow", Target("mlflow")),
        ("mlflow=http://host:5000/?a=b", Target("mlflow", "http://host:5000/?a=b")),
    ],
)
def test_targets_are_read(fakes: None, text: str, target: Target) -> None:
    assert read_target(text) == target


@pytest.mark.parametrize("text", ["", "wandb", "tensorboard=", "tensorboard=x", "mlflow=", "=x"])
def test_other_targets_are_refused(fakes: None, text: str) -> None:
    with pytest.raises(UsageError, match="--log takes tensorboard, mlflow or mlflow=URI"):
        read_target(text)


def test_a_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(targets, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"with its extra mlflow.*\.\[mlflow\]"):
        read_target("mlflow=x")


# -- the two libraries, by their stand-ins --------------------------------------------------------


def log_to(target: Target, folder: RunFolder) -> list[str]:
    warnings: list[str] = []
    with target.listener(folder, warnings.append) as listener:
        for event in cli_fakes.run_search(folder):
            listener.hear(event)
    return warnings


def test_tensorboard_gets_scalars_and_texts(fakes: None, folder: RunFolder) -> None:
    assert log_to(Target("tensorboard"), folder) == []
    (writer,) = FakeWriter.made
    assert writer.folder == str(folder.path / "tensorboard")
    assert ("supernet/loss", 0.5, 1) in writer.events
    assert "- limits: params=20000" in writer.events[0][1]
    assert any(event[0] == "front" and LARGE.id in event[1] for event in writer.events)
    assert writer.closed


def test_mlflow_gets_metrics_params_and_artifacts(fakes: None, folder: RunFolder) -> None:
    assert log_to(Target("mlflow", "sqlite:///x.db"), folder) == []
    (run,) = FakeClient.runs
    assert FakeClient.uris == ["sqlite:///x.db"]
    assert (run.info.name, run.info.status) == ("run", "FINISHED")
    assert ("supernet/loss", 1, 0.5) in run.data.metrics
    assert run.data.params["space"] == "digits"
    expected = {"front.md", "/pareto.json", f"retrained/{LARGE.id}/result.json"}
    assert expected <= set(run.data.files)


def test_a_resumed_run_goes_on_in_mlflow_too(
    fakes: None, folder: RunFolder, tmp_path: Path
) -> None:
    for _ in range(2):
        log_to(Target("mlflow"), folder)
    assert len(FakeClient.runs) == 1
    log_to(Target("mlflow"), new_run(tmp_path / "another"))  # the same request elsewhere
    assert len(FakeClient.runs) == 2
    assert [run.info.status for run in FakeClient.runs] == ["FINISHED"] * 2
