"""A logger that remembers, and stand-ins for the packages TensorBoard and MLflow."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar, NamedTuple

import pytest

from nas.console.listeners import Logger, Outcome, targets
from nas.request.presets import budget_for
from nas.request.spec import build_spec
from nas.run.folder import RunFolder
from search_spaces.loading import dump_space, load_space


class Remembered(Logger):
    """Keeps what it is told; `fails_at` names a method that raises."""

    def __init__(self, fails_at: str = "") -> None:
        self.fails_at = fails_at
        self.points: dict[str, list[tuple[int, float]]] = {}
        self.texts: dict[str, str] = {}
        self.files: list[str] = []
        self.outcome: Outcome | None = None
        self.calls: list[str] = []

    def numbers(self, values: Mapping[str, float], step: int) -> None:
        self._called("numbers")
        for name, value in values.items():
            self.points.setdefault(name, []).append((step, value))

    def text(self, name: str, markdown: str) -> None:
        self._called("text")
        self.texts[name] = markdown

    def file(self, folder: Path, name: str) -> None:
        self._called("file")
        assert (folder / name).is_file()
        self.files.append(name)

    def close(self, outcome: Outcome) -> None:
        self._called("close")
        self.outcome = outcome

    def _called(self, name: str) -> None:
        self.calls.append(name)
        print("chatter of a library")
        if name == self.fails_at:
            raise OSError(f"no {name}\nand a second line")


def new_run(path: Path) -> RunFolder:
    """The folder of a search that has not begun."""
    space = load_space("digits")
    spec = build_spec(
        space_toml=dump_space(space),
        dataset="digits",
        objectives=("quality", "flops"),
        limits={"params": 2e4},
        budget=budget_for(space, "smoke", {}),
        preset="smoke",
    )
    return RunFolder.create(path, spec)


# -- the packages ---------------------------------------------------------------------------------


class Point(NamedTuple):
    """Stands for MLflow's Metric and for an event of TensorBoard."""

    key: str
    value: Any
    time: float = 0
    step: int = 0


@dataclass
class FakeWriter:
    """TensorBoard's writer of event files; `made` holds every one."""

    folder: str
    events: list[Any] = field(default_factory=list)
    closed: bool = False
    made: ClassVar[list[FakeWriter]] = []

    def __post_init__(self) -> None:
        self.made.append(self)

    def add_event(self, event: Any) -> None:
        self.events.append((event.summary.key, event.summary.value, event.step))

    def flush(self) -> None:
        assert not self.closed

    def close(self) -> None:
        self.closed = True


class FakeClient:
    """MLflow's client over one store in memory, whatever the URI."""

    uris: ClassVar[list[str | None]] = []
    runs: ClassVar[list[Any]] = []

    def __init__(self, tracking_uri: str | None) -> None:
        self.uris.append(tracking_uri)

    def get_experiment_by_name(self, name: str) -> Any:
        return SimpleNamespace(experiment_id="7") if self.runs else None

    def create_experiment(self, name: str) -> str:
        assert name == "nas"
        return "7"

    def create_run(self, experiment: str, run_name: str, tags: dict[str, str]) -> Any:
        assert experiment == "7"
        info = SimpleNamespace(run_id=str(len(self.runs)), name=run_name, status="RUNNING")
        data = SimpleNamespace(tags=tags, metrics=[], params={}, files=[])
        self.runs.append(SimpleNamespace(info=info, data=data))
        return self.runs[-1]

    def search_runs(self, experiments: list[str], filter_string: str) -> list[Any]:
        return [run for run in self.runs if run.data.tags["nas.digest"] in filter_string]

    def update_run(self, run_id: str, status: str) -> None:
        self.runs[int(run_id)].info.status = status

    set_terminated = update_run

    def log_batch(self, run_id: str, metrics: Any = (), params: Any = ()) -> None:
        self.runs[int(run_id)].data.metrics += [(m.key, m.step, m.value) for m in metrics]
        self.runs[int(run_id)].data.params |= {p.key: p.value for p in params}

    def log_text(self, run_id: str, text: str, file: str) -> None:
        self.runs[int(run_id)].data.files.append(file)

    def log_artifact(self, run_id: str, path: str, place: str | None) -> None:
        self.runs[int(run_id)].data.files.append(f"{place or ''}/{Path(path).name}")


def install(patch: pytest.MonkeyPatch) -> None:
    """Put empty stand-ins in the place of both packages."""
    patch.setattr(FakeWriter, "made", [])
    patch.setattr(FakeClient, "runs", [])
    patch.setattr(FakeClient, "uris", [])
    for name in ("MAX_RETRIES", "TIMEOUT"):  # so that what the logger sets is taken back
        patch.setenv(f"MLFLOW_HTTP_REQUEST_{name}", "1")
    patch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    patch.setattr(targets, "find_spec", lambda name: object())
    parts: dict[str, dict[str, Callable[..., Any]]] = {
        "tensorboard.compat.proto.event_pb2": {"Event": SimpleNamespace},
        "tensorboard.plugins.scalar.summary_v2": {"scalar_pb": Point},
        "tensorboard.plugins.text.summary_v2": {"text_pb": Point},
        "tensorboard.summary.writer.event_file_writer": {"EventFileWriter": FakeWriter},
        "mlflow.tracking": {"MlflowClient": FakeClient},
        "mlflow.entities": {"Metric": Point, "Param": Point},
    }
    for name, content in parts.items():
        words = name.split(".")
        for end in range(1, len(words) + 1):
            patch.setitem(sys.modules, ".".join(words[:end]), ModuleType(".".join(words[:end])))
        vars(sys.modules[name]).update(content)
