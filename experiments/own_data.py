"""Does a search of anybody's data, without a space of one's own, pay?

``python -m experiments.own_data --data data/pets data/mails --hours 1``

Each folder of `nas data prepare` is searched by ``nas search --data DIR --hours H`` as it stands.
Its winner's scores stand beside those of its baselines, which the search trained with the same
steps, the largest plain transformer and the one of nearly the winner's cost, and of a plain
transformer that had more: the winner with softmax attention in every place, trained from scratch
for as many epochs as take all of the hours, at the pace of the winner's, as somebody would who had
not searched. Beside the time that was asked for stand that which its stages were told to take
before they began and that which they took, with the stage that was furthest off; making the space
and starting come on top in what the whole command took. What was searched or trained before under
``--work`` is not done again; the test split is read when a training has ended.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from rich.table import Table

from experiments.harness import STDERR, Options, Study, note, table_of
from experiments.retrained_twins import Job, score_test, train, twin
from nas.console.formatting import NOTHING
from nas.request.fitted_space import MOST_PASSES
from nas.results.state import RunState, read_state
from nas.run.events import Progress
from nas.run.folder import RunFolder
from nas.run.pace import operations
from nas.run.stages import RETRAIN
from search_spaces.architecture import Architecture
from search_spaces.costs import params
from search_spaces.errors import NasError, UsageError
from search_spaces.files import write_atomically
from supernet.data.manifest import Manifest, read_manifest
from supernet.tasks.opening import open_task
from supernet.training_settings import TrainingSettings, epoch_updates

TOOK = "seconds.json"
COMMAND = "from nas.console.app import app; app()"
DURATION_HEADS = ("min told", "taken", "ratio", "most off")
Stages = Mapping[str, tuple[float, float]]  # seconds told and taken
# The score that a task is known by, and whether more of it is better.
KNOWN_BY = {
    "classification": ("accuracy", True),
    "translation": ("bleu", True),
    "language_modelling": ("loss", False),
}


def measure(options: Options) -> dict[str, Any]:
    """Search and train for each folder.

    Raises:
        NasError: for a folder that was not prepared, and a search that fails.
    """
    folders = [Path(data).expanduser() for data in options.data]
    if len({folder.name for folder in folders}) < len(folders):
        raise UsageError("two folders have the same name: give them others")
    manifests = [read_manifest(folder) for folder in folders]
    rows = [
        _row(folder, manifest, options.hours, Path(options.work))
        for folder, manifest in zip(folders, manifests, strict=True)
    ]
    return {"hours": options.hours, "rows": rows}


def _row(folder: Path, manifest: Manifest, hours: float, work: Path) -> dict[str, Any]:
    """A search, its winner's scores, and those of the plain network."""
    words = ["--data", str(folder), "--hours", f"{hours:g}"]
    run = RunFolder.open(searched(words, work / f"{folder.name}-{hours:g}h"))
    _check_data(run, folder)
    state = read_state(run, thorough=False)
    results = {str(one["id"]): one for one in state.retrained}
    winner = Architecture.from_json(results[str(state.picked)]["architecture"])
    plain_ones = [one.baseline for one in state.comparisons(run.spec)]
    settings, space, network = run.spec.budget.retrain, run.spec.space, twin(winner, "softmax")
    dearer = operations(space, [network]) / operations(space, [winner])
    task = open_task(space, run.spec.dataset, run.spec.data, run.spec.seed)
    a_pass = task.num_batches(settings)
    passes = MOST_PASSES[manifest.content]
    epochs = hours * 3600 / (dearer * _epoch_s(run, winner.id))
    settings = _longer(settings, epochs, passes, a_pass)
    settings = replace(settings, threads=run.spec.budget.threads)
    job = Job("plain", str(run.path), network, settings, 1, str(run.path.parent))
    note(f"{folder.name}: training the plain network")
    plain = train(job) | score_test(job)
    return {
        "data": folder.name,
        "task": manifest.task,
        "winner": _network(results[winner.id]),
        "baselines": {
            role: _network(results[one.entry.id]) for one in plain_ones for role in one.roles
        },
        "plain": {
            "id": plain["id"],
            "params": params(space.model, space.task, job.architecture),
            "valid": plain["valid"],
            "test": plain["test"],
        },
        "minutes_asked": hours * 60,
        **durations(run, state),
        "minutes_plain": plain["minutes"],
    }


def _network(result: Mapping[str, Any]) -> dict[str, Any]:
    """A network that the search trained."""
    scores = {split: _scores(result, split) for split in ("valid", "test")}
    return {"id": result["id"], "params": result["params"], **scores}


def _scores(result: Mapping[str, Any], split: str) -> dict[str, float]:
    """The scores of a split in the result of a retraining, by name."""
    begin = f"{split}_"
    return {name.removeprefix(begin): n for name, n in result.items() if name.startswith(begin)}


def searched(words: Sequence[str], run: Path) -> Path:
    """The run of a finished ``nas search``; one that was stopped goes on.

    Args:
        words: options of the command.
        run: its folder.

    Raises:
        NasError: when it fails; it has said why.
    """
    took = run / TOOK
    if not took.exists():
        note(f"nas search {' '.join(words)}")
        begun = time.perf_counter()
        command = [sys.executable, "-c", COMMAND, "search", *words, "--out", str(run), "--quiet"]
        done = subprocess.run(command, stdout=STDERR, check=False)
        if done.returncode:
            raise NasError(f"nas search {' '.join(words)} ended with exit code {done.returncode}")
        write_atomically(took, json.dumps(time.perf_counter() - begun))
    return run


def durations(run: RunFolder, state: RunState) -> dict[str, Any]:
    """Seconds of each stage, told before and taken, and the minutes of the whole command."""
    told, taken = state.told.told, state.told.taken
    seconds = json.loads((run.path / TOOK).read_text("utf-8"))
    return {
        "stages": {name: (round(told[name], 1), round(taken[name], 1)) for name in taken},
        "minutes_taken": round(seconds / 60, 1),
    }


def _check_data(run: RunFolder, folder: Path) -> None:
    """A run of another folder of that name is no answer for this one."""
    if run.spec.data is None or Path(run.spec.data).resolve() != folder.resolve():
        raise UsageError(
            f"{run.path} searched {run.spec.data}, not {folder}: give another folder with --work"
        )


def _epoch_s(run: RunFolder, winner: str) -> float:
    """Seconds of a usual epoch of the winner's training, which others may have interrupted."""
    times = [
        seconds
        for seconds, event in run.events(RETRAIN + winner)
        if isinstance(event, Progress) and event.total
    ]
    return median(after - before for before, after in pairwise(times))


def _longer(
    settings: TrainingSettings, epochs: float, passes: int, num_batches: int
) -> TrainingSettings:
    """A training of so many epochs, as far as passes over the data have something new."""
    whole = replace(settings, epoch_updates=0)
    most = passes * epoch_updates(whole, num_batches) / epoch_updates(settings, num_batches)
    return replace(settings, epochs=max(1, round(min(epochs, most))))


def show(numbers: Mapping[str, Any]) -> Iterator[Table]:
    """A row for each folder."""
    rows = []
    for row in numbers["rows"]:
        name, more = KNOWN_BY[row["task"]]
        winner, nearest = row["winner"], row["baselines"].get("nearest")
        rows.append(
            (
                row["data"],
                name,
                *_cells(winner, name),
                *_cells(row["baselines"].get("largest"), name),
                *_cells(nearest, name),
                _as_good(winner, nearest, name, more=more),
                *_cells(row["plain"], name),
                _as_good(winner, row["plain"], name, more=more),
                f"{row['minutes_asked']:g}",
                *duration_cells(row["stages"]),
                f"{row['minutes_taken']:g}",
            )
        )
    heads = (
        "data",
        "test",
        "winner",
        "params",
        "largest plain",
        "params",
        "nearest plain",
        "params",
        "as good",
        "plain, as long",
        "params",
        "as good",
        "min asked",
        *DURATION_HEADS,
        "whole",
    )
    yield table_of(f"searches of own data for {numbers['hours']:g} h", heads, rows)


def times_taken(stages: Stages) -> float | None:
    """How many times as long as told the stages took; None where nothing was told."""
    told, taken = (sum(times[n] for times in stages.values()) for n in (0, 1))
    return taken / told if told else None


def duration_cells(stages: Stages) -> tuple[str, str, str, str]:
    """Minutes told and taken, how many times, and the stage whose seconds were furthest off."""
    times = times_taken(stages)
    if times is None:
        return NOTHING, NOTHING, NOTHING, NOTHING
    told, taken = (sum(pair[n] for pair in stages.values()) for n in (0, 1))
    worst = max(stages, key=lambda name: abs(stages[name][1] - stages[name][0]))
    before, after = stages[worst]
    off = f"{worst}: {before:.0f} s, took {after:.0f} s"
    return f"{told / 60:.1f}", f"{taken / 60:.1f}", f"{times:.2f}", off


def _cells(network: Mapping[str, Any] | None, name: str) -> tuple[str, str]:
    """A network's score and size, or that there is none."""
    if network is None:
        return NOTHING, NOTHING
    return f"{network['test'][name]:.4g}", f"{network['params']:,}"


def _as_good(
    winner: Mapping[str, Any], other: Mapping[str, Any] | None, name: str, *, more: bool
) -> str:
    """Whether the winner's score is at least another network's."""
    if other is None:
        return NOTHING
    own, its = winner["test"][name], other["test"][name]
    return "yes" if own == its or (own > its) == more else "no"


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of the study."""
    parser.add_argument("--data", nargs="+", required=True, metavar="DIR", help="prepared folders")
    parser.add_argument("--hours", type=float, default=1.0, help="for each search")
    parser.add_argument("--work", default="runs/own_data", help="where runs and trainings are kept")


STUDY = Study(
    "own_data",
    "Does nas search --data DIR, without a space, find what a plain transformer does not?",
    add_options,
    measure,
    show,
    example="--data data/pets data/mails --hours 1",
    width=240,
)

if __name__ == "__main__":
    sys.exit(STUDY.main())
