"""Trains networks of a run with fairseq, and takes weights that fairseq trained into a run.

What needs torch is imported inside the functions, so that a wrong request is told at once.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock, Timeout

from nas.fairseq.folder import BEST, FairseqJob, check_task
from nas.run.events import ArchitectureMeasured, Event, Note
from nas.run.folder import RunFolder
from nas.run.layout import result_file, weights_file
from nas.run.stages import RETRAIN
from nas.search.front import FrontEntry, pick, read_front
from search_spaces.errors import DataError, NasError, RunConflictError, UsageError

if TYPE_CHECKING:
    from nas.fairseq.checkpoint import TrainedByFairseq
    from nas.run.opened import OpenedRun

LOG_FILE = "train.log"
LOG_LINES = 8  # of a failed training's log that are shown


def check_untrained(folder: RunFolder, job: FairseqJob) -> None:
    """See that no weights would be lost that another training made.

    Raises:
        UsageError: when the run has weights of the network, and fairseq has not trained it here.
    """
    result = folder.path / result_file(job.entry.id)
    if result.exists() and not (job.path / BEST).exists():
        raise UsageError(
            f"{folder.path} has weights of the network {job.entry.id} already; run "
            f"{job.path / 'train.sh'}, and put its weights in their place with "
            "nas fairseq import --replace"
        )


def run_job(job: FairseqJob, options: Sequence[str]) -> Path:
    """Train with fairseq; what it says goes into the folder's ``train.log``.

    Training goes on from the last checkpoint where there is one: that is what fairseq does.

    Args:
        job: of `prepare_job`.
        options: further ones for `fairseq-train`, behind all others.

    Returns:
        The best checkpoint.

    Raises:
        UsageError: when fairseq is not installed.
        RunConflictError: when another process trains there.
        NasError: when it fails, with the end of its log.
    """
    program = find_program("fairseq-train")
    log = job.path / LOG_FILE
    paths = f"{program.parent}{os.pathsep}{os.environ.get('PATH', '')}"
    with _alone(job.path), log.open("ab") as stream:
        done = subprocess.run(
            ["bash", "train.sh", *options],
            cwd=job.path,
            env={**os.environ, "PATH": paths},
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            check=False,
        )
    best = job.path / BEST
    if done.returncode or not best.is_file():
        last = "\n".join(f"  {line}" for line in _last_lines(log))
        raise NasError(
            f"fairseq-train ended with {done.returncode} "
            f"{'and' if done.returncode else 'but'} left no result; its log {log} ends so:\n{last}"
        )
    return best


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Hold a folder for this process."""
    try:
        with FileLock(path / ".lock", timeout=0):
            yield
    except Timeout as error:
        raise RunConflictError(f"another process is training in {path}; wait for it") from error


def find_program(name: str) -> Path:
    """A command of fairseq's: beside this Python, or on the path.

    Raises:
        UsageError: when there is none.
    """
    beside = Path(sys.executable).parent / name
    found = str(beside) if beside.is_file() else shutil.which(name)
    if found is None:
        raise UsageError(
            f"there is no command {name}: pip install 'nas-service[fairseq]', which builds for "
            "some minutes; or carry the folder to where fairseq is and run its train.sh"
        )
    return Path(found)


def import_checkpoints(
    folder: RunFolder, files: Sequence[Path], replaces: bool = False
) -> Iterator[Event]:
    """Take the weights of checkpoints into a run, as if it had trained the network itself.

    Several are averaged, number by number. The network is scored once on the test split, before
    anything that the run has of it is given up.

    Args:
        folder: the run.
        files: checkpoints of one network, which is on the run's front.
        replaces: weights that the run has already are given up.

    Raises:
        UsageError: when the network is not on the front, or trained already.
        DataError: when a checkpoint cannot be read, or is of another network or space.
        DivergedError: when the network's outputs are not finite numbers.
    """
    from nas.stages.base import Run
    from nas.stages.report import report

    check_task(folder)
    found = _read_checkpoints(folder, files)
    run, network_id = Run(folder), found[0].blueprint.architecture.id
    with folder.locked():
        entry = pick(read_front(folder), network_id)
        if folder.has(result_file(network_id)) and not replaces:
            raise UsageError(
                f"{folder.path} has weights of the network {network_id} already; --replace "
                "puts these in their place"
            )
        yield from _replace(run, entry, found, files)
        yield from report(run)


def _read_checkpoints(folder: RunFolder, files: Sequence[Path]) -> list[TrainedByFairseq]:
    from nas.fairseq.checkpoint import read_trained

    found = [read_trained(file) for file in files]
    blueprint = found[0].blueprint
    for one, file in zip(found, files, strict=True):
        if one.blueprint.architecture != blueprint.architecture:
            raise DataError(
                f"{files[0]} is of the network {blueprint.architecture.id} and {file} of "
                f"{one.blueprint.architecture.id}; only checkpoints of one can be averaged"
            )
        if one.blueprint.settings != folder.spec.space.model:
            raise DataError(
                f"{file} was trained with other settings than those of the space "
                f"{folder.spec.space.name}; train with the architecture.json of this run"
            )
    return found


def _replace(
    run: OpenedRun, entry: FrontEntry, found: Sequence[TrainedByFairseq], files: Sequence[Path]
) -> Iterator[Event]:
    """Score the weights, and only then give up what the run has in their place."""
    from latency.turns import computing
    from nas.executors.retraining.stage import retrain_stage
    from nas.run.stage_runner import run_stage

    folder, stage = run.folder, retrain_stage(run.spec, entry.id)
    names, updates = ", ".join(map(str, files)), max(one.updates for one in found)
    note = Note(stage.name, f"weights of {names}, trained by fairseq for {updates} updates")
    folder.log(note)
    yield note
    with computing(run.computes_on):
        weights, result = _scored(run, entry, found)
    if folder.has(result_file(entry.id)):
        folder.forget(stage.name, (*stage.files, *stage.outputs))
    yield from run_stage(run, stage, lambda run: _take_over(run, entry, weights, result))


def _scored(
    run: OpenedRun, entry: FrontEntry, found: Sequence[TrainedByFairseq]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The mean of the weights, and the content of the file of its scores."""
    from nas.executors.retraining.stage import SCHEMA, scores_json
    from nas.fairseq.checkpoint import average_weights
    from search_spaces.costs import params
    from supernet.tasks.evaluation import score

    network = found[0].network
    weights = average_weights([one.network for one in found])
    network.network.load_state_dict(weights)
    task, model, device = run.quick_task, network.network.to(run.spec.device), run.spec.device
    valid = score(task, model, entry.architecture, task.valid, device=device)
    test = score(task, model, entry.architecture, task.open_test(), device=device)
    return weights, {
        "schema": SCHEMA,
        "id": entry.id,
        "architecture": entry.architecture.to_json(),
        "task": run.space.task,
        "dataset": task.name,
        **scores_json(test, valid),
        "epochs": max(one.epochs for one in found),
        "seed": run.spec.seed,
        "params": params(run.space.model, run.space.task, entry.architecture),
    }


def _take_over(
    run: OpenedRun, entry: FrontEntry, weights: Mapping[str, Any], result: Mapping[str, Any]
) -> Iterator[Event]:
    """The work of the stage that otherwise trains: write weights and scores."""
    from supernet.training.checkpoint import save

    state = {"model": weights, "architecture": entry.architecture.to_json()}
    save(run.folder.path / weights_file(entry.id), state)
    run.folder.write_json(result_file(entry.id), result)
    name = next(name for name in result if name.startswith("test_"))
    yield ArchitectureMeasured(f"{RETRAIN}{entry.id}", entry.id, {name: result[name]})


def _last_lines(log: Path) -> list[str]:
    return log.read_text(encoding="utf-8", errors="replace").splitlines()[-LOG_LINES:]
