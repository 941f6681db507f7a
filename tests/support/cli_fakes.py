"""A pipeline without training, and the run folder it leaves, for tests of the command."""

from __future__ import annotations

import json
import os
import sys
import tomllib
from collections.abc import Iterator, Sequence
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from nas.console.plugins import GROUP
from nas.executors.base import ExecutorSettings
from nas.objectives import OBJECTIVES
from nas.run.events import (
    Event,
    FrontUpdated,
    Note,
    Progress,
    StageFinished,
    StageSkipped,
    StageStarted,
)
from nas.run.folder import RunFolder
from nas.run.stages import search_stages
from nas.search.front import FrontEntry, build_front, pick, read_front
from search_spaces.architecture import Architecture, EncoderLayer, EncoderStack

ROOT = Path(__file__).resolve().parents[2]
SMALL = Architecture(encoder=EncoderStack(16, (EncoderLayer("linear", 1, 16),)))
MIDDLE = Architecture(
    encoder=EncoderStack(32, (EncoderLayer("softmax", 2, 32), EncoderLayer("omni", 1, 64)))
)
LARGE = Architecture(encoder=EncoderStack(64, (EncoderLayer("softmax", 4, 128),) * 4))

_FIDELITY = {"kendall_tau": 0.8, "spearman": 0.9, "pairwise_accuracy": 0.85, "count": 20}
CARD = {
    "ranker": "pairwise linear l2=0.1",
    "observations": 20,
    "held_out": _FIDELITY,
    "candidates": {"pairwise linear l2=0.1": _FIDELITY},
    "baselines": {"params": _FIDELITY},
    "curve": [{"observations": 8, "fidelity": _FIDELITY}],
}


def run_search(folder: RunFolder) -> Iterator[Event]:
    """All stages; those with a record are skipped."""
    needed = [stage.name for stage in search_stages(folder.spec)]
    for stage in needed:
        yield from run_stage(folder, stage, ["pareto.json"] if stage == "front" else [])
    yield from retrain(folder, folder.spec.pick)


# How retraining was asked for: where, with how many trials, and for how many epochs.
ASKED: list[tuple[ExecutorSettings | None, int | None, int | None]] = []


def retrain(
    folder: RunFolder,
    how: str | Sequence[str],
    settings: ExecutorSettings | None = None,
    trials: int | None = None,
    epochs: int | None = None,
) -> Iterator[Event]:
    """The last two stages."""
    ASKED.append((settings, trials, epochs))
    with folder.locked():
        for one in [how] if isinstance(how, str) else how:
            chosen = pick(read_front(folder), one).id
            yield from run_stage(folder, f"retrain-{chosen}", [f"retrained/{chosen}/result.json"])
        yield from run_stage(folder, "report", ["report.html"])


def run_stage(folder: RunFolder, stage: str, outputs: list[str]) -> Iterator[Event]:
    """One stage of three steps."""
    if folder.record(stage) is not None:
        yield StageSkipped(stage, stage.title())
        return
    yield StageStarted(stage, stage.title())
    yield Progress(stage, 1, 3, "on its way", {"loss": 0.5})
    write_outputs(folder, stage)
    if stage == "prune":
        yield Note(stage, "nothing was [cut]")
    if stage == "front":
        yield FrontUpdated(stage, ({"quality": 0.2},), 0.5)
    folder.finish(stage, "digest", outputs, 1.25)
    yield StageFinished(stage, 1.25)


def write_outputs(folder: RunFolder, stage: str) -> None:
    """The files of the stages whose files the command reads."""
    if stage == "rank":
        folder.write_json("ranker/report_card.json", CARD)
    elif stage == "front":
        front = build_front(entries(folder.spec.needs_latency), objectives(folder), (3.0, 1e9), {})
        folder.write_json("pareto.json", front.to_json())
    elif stage.startswith("retrain-"):
        name = stage.removeprefix("retrain-")
        result = {"id": name, "test_accuracy": 0.975, "valid_accuracy": 0.98, "epochs": 4}
        folder.write_json(f"retrained/{name}/result.json", result)
    elif stage == "report":
        (folder.path / "report.html").write_text("<html></html>", "utf-8")


def objectives(folder: RunFolder) -> list[Any]:
    """The objectives of the run."""
    return [OBJECTIVES[name] for name in folder.spec.objectives]


def entries(timed: bool) -> list[FrontEntry]:
    """Three networks that do not dominate each other."""
    made = []
    for number, network in enumerate((LARGE, MIDDLE, SMALL), start=1):
        measured = {"quality": number / 10, "valid_accuracy": 1 - number / 100}
        measured |= {"params": 40_000 / number, "flops": 1_234_567 / number}
        measured |= {"latency_ms": 12.34 / number} if timed else {}
        predicted = {"quality": number / 9, **({"latency_ms": 11.0 / number} if timed else {})}
        made.append(FrontEntry(network.id, network, measured, predicted))
    return made


def install(patch: pytest.MonkeyPatch, search: Any = run_search) -> None:
    """Put the fakes in the place of the modules that import torch."""
    for name, parts in {
        "nas.stages.pipeline": {
            "run_search": lambda folder, _where=None, _retime=False, tells=False: search(folder)
        },
        "nas.stages.retrain": {"retrain": retrain},
        "nas.report": {"write_report": write_report},
    }.items():
        module = ModuleType(name)
        vars(module).update(parts)
        patch.setitem(sys.modules, name, module)


def write_report(folder: RunFolder) -> Path:
    """A report that differs each time."""
    path = folder.path / "report.html"
    path.write_text(f"<html>{os.urandom(4).hex()}</html>", "utf-8")
    return path


def own_entry_points() -> list[EntryPoint]:
    """The commands that pyproject.toml plugs in, whatever is installed."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    given = project["entry-points"][GROUP].items()
    return [EntryPoint(name, value, GROUP) for name, value in given]


def last_json(text: str) -> Any:
    """The last line, as JSON."""
    return json.loads(text.splitlines()[-1])
