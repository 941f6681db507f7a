"""The two loggers with the real packages, where they are installed."""

from __future__ import annotations

from pathlib import Path

import pytest

from nas.console.listeners import Target
from tests.support import cli_fakes
from tests.support.logging_cases import new_run

# Theirs, not ours: both libraries warn of what their own dependencies deprecate.
pytestmark = pytest.mark.filterwarnings("ignore")


def logged(target: Target, path: Path) -> None:
    folder, warnings = new_run(path), list[str]()
    with target.listener(folder, warnings.append) as listener:
        for event in cli_fakes.run_search(folder):
            listener.hear(event)
    assert warnings == []


def test_tensorboard_reads_what_was_written(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="the package tensorboard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    logged(Target("tensorboard"), tmp_path)
    seen = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    (loss,) = seen.Tensors("supernet/loss")
    assert (loss.step, list(loss.tensor_proto.float_val)) == (1, [0.5])
    assert cli_fakes.LARGE.id in str(seen.Tensors("front")[0].tensor_proto)


def test_mlflow_reads_what_was_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    tracking = pytest.importorskip("mlflow.tracking", reason="the package mlflow is not installed")
    uri = f"file:{tmp_path / 'store'}"
    logged(Target("mlflow", uri), tmp_path / "run")
    client = tracking.MlflowClient(tracking_uri=uri)
    (run,) = client.search_runs([client.get_experiment_by_name("nas").experiment_id])
    assert run.info.status == "FINISHED"
    assert run.data.metrics["supernet/loss"] == 0.5
    assert run.data.params["preset"] == "smoke"
    assert {"pareto.json", "front.md"} <= {f.path for f in client.list_artifacts(run.info.run_id)}
