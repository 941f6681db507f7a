"""Logs a run to MLflow: a tracking server, or the store that MLflow uses by itself."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from nas.console.listeners.base import Logger, Outcome
from nas.console.listeners.results import request
from nas.run.folder import RunFolder

# Read by MLflow itself; whoever sets them knows better. A server that does not answer must not
# hold up a search: by default MLflow tries for many minutes.
_SETTINGS = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_DISABLE_TELEMETRY": "true",
}

EXPERIMENT = "nas"

# Tags by which a run that is resumed finds itself again.
_DIGEST = "nas.digest"
_FOLDER = "nas.folder"

_STATUS: dict[Outcome, str] = {"finished": "FINISHED", "failed": "FAILED", "stopped": "KILLED"}


class MlflowLogger(Logger):
    """One MLflow run for each run folder, in the experiment ``nas``.

    Args:
        folder: of the run.
        uri: of the server or store; None for MLflow's own choice (``MLFLOW_TRACKING_URI``).
    """

    def __init__(self, folder: RunFolder, uri: str | None) -> None:
        for name, value in _SETTINGS.items():
            os.environ.setdefault(name, value)
        from mlflow.tracking import MlflowClient

        self._client = MlflowClient(tracking_uri=uri)
        self._run = self._earlier(folder) or self._new(folder)

    def numbers(self, values: Mapping[str, float], step: int) -> None:
        """Log metrics, all in one request."""
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        metrics = [Metric(name, value, now, step) for name, value in values.items()]
        self._client.log_batch(self._run, metrics=metrics)

    def text(self, name: str, markdown: str) -> None:
        """Keep a text as an artifact."""
        self._client.log_text(self._run, markdown, f"{name}.md")

    def file(self, folder: Path, name: str) -> None:
        """Keep a file as an artifact, in the folder it has in the run."""
        place = PurePosixPath(name).parent
        self._client.log_artifact(self._run, str(folder / name), str(place) if place.name else None)

    def close(self, outcome: Outcome) -> None:
        """End the MLflow run."""
        self._client.set_terminated(self._run, _STATUS[outcome])

    def _earlier(self, folder: RunFolder) -> str | None:
        """The run of an earlier session, set going again."""
        experiment = self._client.get_experiment_by_name(EXPERIMENT)
        if experiment is None:
            return None
        same_request = f"tags.`{_DIGEST}` = '{folder.spec.digest}'"
        for run in self._client.search_runs([experiment.experiment_id], same_request):
            if run.data.tags.get(_FOLDER) == str(folder.path.resolve()):
                self._client.update_run(run.info.run_id, status="RUNNING")
                return str(run.info.run_id)
        return None

    def _new(self, folder: RunFolder) -> str:
        from mlflow.entities import Param

        experiment = self._client.get_experiment_by_name(EXPERIMENT)
        number = experiment.experiment_id if experiment else None
        run = self._client.create_run(
            number or self._client.create_experiment(EXPERIMENT),
            run_name=folder.path.resolve().name,
            tags={_DIGEST: folder.spec.digest, _FOLDER: str(folder.path.resolve())},
        )
        params = [Param(name, value) for name, value in request(folder.spec).items()]
        self._client.log_batch(run.info.run_id, params=params)
        return str(run.info.run_id)
