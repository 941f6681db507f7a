"""Tiny searches of real data that end in about a second, and what tests ask of their folders."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, partial, partialmethod
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from nas.request.presets import budget_for
from nas.request.spec import SearchSpec, build_spec
from nas.run.events import Event
from nas.run.folder import RunFolder
from search_spaces.loading import dump_space, load_space

ROOT = Path(__file__).resolve().parents[2]

# 4 patches of a digit, 2 * (12 + 12 * 12) = 312 networks.
TINY = """
[space]
name = "tiny"
task = "classification"

[model]
max_length = 4
num_classes = 10
head_dim = 4
norm = "pre"
activation = "relu"
positions = "learned"
class_token = false
pooling = "mean"
linear_kernel = "cosformer"
omni_kernel = "performer"
omni_span = 2

[model.input]
kind = "image"
image_size = 8
patch_size = 4
channels = 1

[encoder]
embed_dim = [4, 8]
num_layers = [1, 2]
attention = ["softmax", "linear", "omni"]
num_heads = [1, 2]
ffn_dim = [4, 8]

[data]
dataset = "digits"

[workload]
batch = 4
source = 4
"""

NUMBERS = {
    "threads": "1",
    "supernet.epochs": "2",
    "supernet.check_every": "1",
    "supernet.batch_size": "288",
    "supernet.sampling": "uniform",
    "supernet.num_random": "1",
    "supernet.num_probes": "4",
    "observations": "12",
    "rounds.first": "8",
    "rounds.batch": "4",
    "latency_samples": "8",
    "timing_rounds": "1",
    "evolution.population": "16",
    "evolution.generations": "3",
    "verified": "6",
    "retrain.epochs": "2",
    "retrain.check_every": "1",
    "retrain.batch_size": "288",
}

SEARCH = (
    "declare",
    "supernet",
    "observe",
    "rank",
    "prune",
    "evolve",
    "verify",
    "front",
    "exchange",
)
# Everything a finished run holds besides events, locks and marks, `{id}` being the winner's.
FILES = {
    "declare": ("space.toml", "data.json"),
    "supernet": ("supernet/last.pt", "supernet/best.pt", "supernet/history.json"),
    "observe": ("observations.jsonl",),
    "rank": ("ranker/ranker.json", "ranker/report_card.json", "ranker/importances.json"),
    "prune": ("pruned_space.toml", "pruning.json"),
    "evolve": ("population.jsonl",),
    "verify": ("verification.jsonl", "holding.jsonl"),
    "front": ("pareto.json",),
    "exchange": ("exchanges.jsonl",),
    "retrain-{id}": ("retrained/{id}/result.json", "retrained/{id}/weights.pt"),
    "report": ("report.html", "optuna.journal"),
}


def edited(*changes: tuple[str, str]) -> str:
    """The tiny space with some lines changed."""
    text = TINY
    for old, new in changes:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text


def spec_of(
    path: Path, text: str = TINY, numbers: dict[str, str] | None = None, **values: Any
) -> SearchSpec:
    """A tiny request; `path` is where the space's file is written for a moment."""
    path.parent.mkdir(parents=True, exist_ok=True)
    file = path.with_name(f"{path.name}.toml")
    file.write_text(text, encoding="utf-8")
    space = load_space(str(file))
    file.unlink()
    given: dict[str, Any] = {
        "space_toml": dump_space(space),
        "dataset": space.data["dataset"],
        "budget": budget_for(space, "smoke", NUMBERS | (numbers or {})),
        "preset": "smoke",
        "objectives": ("quality", "flops"),
        "pick": "knee",
    }
    return build_spec(**(given | values))


def tiny(path: Path, text: str = TINY, **values: Any) -> RunFolder:
    """The folder of a tiny request, not begun."""
    return RunFolder.create(path, spec_of(path, text, **values))


def work(folder: RunFolder) -> list[Event]:
    """Run a search to its end."""
    from nas.stages.pipeline import run_search

    return list(run_search(folder))


def finished(path: Path, text: str = TINY, **values: Any) -> RunFolder:
    """A tiny search that has ended."""
    folder = tiny(path, text, **values)
    work(folder)
    return folder


@cache
def _files() -> dict[str, bytes]:
    # Whoever asks first in this process, of the service's tests too, makes it for all.
    with TemporaryDirectory() as place, few_rankers():
        return tree(finished(Path(place) / "run").path)


def finished_once(path: Path) -> RunFolder:
    """What `finished` leaves there, made once in a process: to compare with, to read or copy."""
    for name, content in _files().items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(content)
    return RunFolder.open(path)


def trained_once(path: Path) -> RunFolder:
    """The same search as it was when the supernet had been trained."""
    run = finished_once(path)
    for stage, name in list(files_of(run)):
        if stage not in ("declare", "supernet"):
            (path / name).unlink()
    lines = (path / "events.jsonl").read_text("utf-8").splitlines(keepends=True)
    last = next(n for n, line in enumerate(lines) if '"StageFinished", "stage": "supernet"' in line)
    (path / "events.jsonl").write_text("".join(lines[: last + 1]), "utf-8")
    return run


@contextmanager
def few_rankers() -> Iterator[None]:
    """Searches choose among two rankers, quickly fitted: for tests that do not ask which.

    What proposes networks meanwhile has few trees, each of which counts for more.
    """
    from nas.search.ranking import PairwiseLinear, PairwiseTrees, report_card

    few = [lambda: PairwiseLinear(0.1), lambda: PairwiseLinear(0.01)]
    with pytest.MonkeyPatch.context() as patch:
        quick = partialmethod(PairwiseTrees.__init__, rounds=20, learning_rate=0.3)
        patch.setattr(PairwiseTrees, "__init__", quick)
        patch.setattr(report_card, "default_candidates", lambda: (few, []))
        yield


@contextmanager
def few_samples() -> Iterator[None]:
    """Pages order features by few predictions: for tests that do not ask by how many."""
    from nas.search import sensitivity

    few = partial(sensitivity.top_features, samples=64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sensitivity, "top_features", few)
        yield


@contextmanager
def short_calibrations() -> Iterator[None]:
    """What a search tells of its duration comes from few steps: for tests that do not ask."""
    from nas.run import pace
    from nas.stages import calibration

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(calibration, "MOST_ROUNDS", 1)
        for module in (calibration, pace):
            patch.setattr(module, "MOST_UPDATES", 2)
            patch.setattr(module, "ENOUGH_S", 1e-9)
        yield


def named(events: list[Event], kind: str) -> list[str]:
    """The stages of the events of a kind."""
    return [event.stage for event in events if type(event).__name__ == kind]


def logged(folder: RunFolder) -> list[dict[str, Any]]:
    """Everything in ``events.jsonl`` but a line that was cut."""
    found = []
    for line in (folder.path / "events.jsonl").read_bytes().splitlines():
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found


def done_twice(folder: RunFolder) -> list[tuple[str, str]]:
    """Networks measured twice, stages that worked after they had ended."""
    counts: Counter[tuple[str, str]] = Counter()
    ended: set[str] = set()
    again = []
    for event in logged(folder):
        match event["event"]:
            case "ArchitectureMeasured":
                counts[event["stage"], event["architecture_id"]] += 1
            case "StageFinished":
                ended.add(event["stage"])
            case "StageStarted" if event["stage"] in ended:
                again.append(("stage", event["stage"]))
    return again + [key for key, count in counts.items() if count > 1]


def results(folder: RunFolder) -> dict[str, bytes]:
    """The front and the networks trained from scratch, byte by byte."""
    files = [folder.path / "pareto.json", *folder.path.glob("retrained/*/result.json")]
    return {file.relative_to(folder.path).as_posix(): file.read_bytes() for file in files}


def tree(path: Path) -> dict[str, bytes]:
    """Every file below a folder."""
    return {str(f.relative_to(path)): f.read_bytes() for f in path.rglob("*") if f.is_file()}


def files_of(folder: RunFolder) -> Iterator[tuple[str, str]]:
    """(stage, file) of a finished run, the stages' own records among the files."""
    (winner,) = (path.parent.name for path in folder.path.glob("retrained/*/result.json"))
    for stage, names in FILES.items():
        name = stage.format(id=winner)
        yield from ((name, file.format(id=winner)) for file in names)
        yield name, f"stages/{name}.json"


RUNNER = """
import sys
from pathlib import Path
from nas.stages.pipeline import run_search
from nas.run.folder import RunFolder
from tests.support.pipeline_cases import few_rankers
folder = RunFolder.open(Path(sys.argv[1]))
with few_rankers():
    for event in run_search(folder):
        print(type(event).__name__, event.stage, flush=True)
        if len(sys.argv) > 2:
            sys.stdin.readline()
"""


def start(folder: RunFolder, *, stepped: bool = False) -> subprocess.Popen[str]:
    """Work on a run in a process of its own.

    It tells each event on a line; when `stepped` it then waits to be sent a line.
    """
    steps = ["step"] if stepped else []
    return subprocess.Popen(
        [sys.executable, "-c", RUNNER, str(folder.path), *steps],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def step_to(
    folder: RunFolder, line: str, count: int, *, stepped: bool = True
) -> subprocess.Popen[str]:
    """A process of `start` that has just told an event for the `count`-th time."""
    process = start(folder, stepped=stepped)
    assert process.stdout is not None and process.stdin is not None
    seen = 0
    for told in process.stdout:
        seen += told.startswith(line)
        if seen == count:
            return process
        if stepped:
            process.stdin.write("\n")
            process.stdin.flush()
    raise AssertionError(process.communicate()[1])


def kill(process: subprocess.Popen[str]) -> None:
    """SIGKILL, and wait for it to be over."""
    process.kill()
    process.communicate()
