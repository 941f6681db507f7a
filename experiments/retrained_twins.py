"""A search's winner, retrained longer, beside its all-softmax and all-linear twins.

``python -m experiments.retrained_twins --run RUN --preset standard --test``

RUN is a finished search. Its winner is trained from scratch with the retraining of a larger preset,
and so, alike in everything else, are the networks that have softmax, or linear, attention in every
place. A training that is killed goes on from its last epoch; the test split is read once, when all
are trained.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from rich.table import Table

from experiments.harness import Options, Study, add_numbers, positive, processes, table_of
from experiments.trainings import trained, untrained
from nas.request.fields import pairs
from nas.request.presets import budget_for
from nas.run.folder import RunFolder
from nas.search.front import pick, read_front
from search_spaces.architecture import Architecture, AttentionKind
from search_spaces.costs import flops, params
from search_spaces.files import write_atomically
from supernet.extraction import StandAlone
from supernet.tasks.base import Task
from supernet.tasks.evaluation import score
from supernet.tasks.opening import open_task
from supernet.training.checkpoint import CheckpointFolder, load, save
from supernet.training_settings import TrainingSettings

TWINS: tuple[AttentionKind, ...] = ("softmax", "linear")


@dataclass(frozen=True)
class Job:
    """One training.

    Attributes:
        name: told with its losses.
        run: the folder of a search, on whose data it is trained.
        architecture: of the network.
        settings: of the training.
        seed: of weights and order of the examples.
        work: the folder of all trainings.
    """

    name: str
    run: str
    architecture: Architecture
    settings: TrainingSettings
    seed: int
    work: str

    @property
    def folder(self) -> Path:
        """Where its checkpoints and results are: of no other network, seed, settings or run."""
        run = RunFolder.open(Path(self.run)).spec.digest
        digest = hashlib.sha256(f"{run}:{asdict(self.settings)}".encode()).hexdigest()
        return Path(self.work) / f"{self.architecture.id}-{self.seed}-{digest[:12]}"


def twin(network: Architecture, kind: AttentionKind) -> Architecture:
    """The same network with one kind of attention in every place."""
    encoder, decoder = network.encoder, network.decoder
    if encoder is not None:
        layers = [replace(layer, attention=kind) for layer in encoder.layers]
        encoder = replace(encoder, layers=tuple(layers))
    if decoder is not None:
        crossed = [
            replace(
                layer,
                self_attention=kind,
                cross_attention=None if layer.cross_attention is None else kind,
            )
            for layer in decoder.layers
        ]
        decoder = replace(decoder, layers=tuple(crossed))
    return Architecture(encoder, decoder)


def train(job: Job) -> dict[str, Any]:
    """Train one network, or take what was trained; its scores on the validation split."""
    torch.set_num_threads(1)
    folder = job.folder
    done = folder / "result.json"
    if done.exists():
        result: dict[str, Any] = json.loads(done.read_text(encoding="utf-8"))
        return result
    task, network = _untrained(job)
    started = time.perf_counter()
    trained(
        network,
        job.architecture,
        task,
        job.settings,
        job.seed,
        job.name,
        CheckpointFolder(folder, folder.name),
    )
    save(folder / "weights.pt", {"model": network.network.state_dict()})
    valid = score(task, network.network, job.architecture, task.valid)
    result = {
        "id": job.architecture.id,
        "architecture": job.architecture.to_json(),
        "seed": job.seed,
        "valid": dict(valid.values),
        "minutes": round((time.perf_counter() - started) / 60, 1),
    }
    write_atomically(done, json.dumps(result, indent=1))
    return result


def score_test(job: Job) -> dict[str, Any]:
    """A trained network's scores on the test split."""
    torch.set_num_threads(1)
    task, network = _untrained(job)
    network.network.load_state_dict(load(job.folder / "weights.pt")["model"])
    found = score(task, network.network, job.architecture, task.open_test())
    return {"test": dict(found.values), "bleu_signature": found.bleu_signature}


def _untrained(job: Job) -> tuple[Task[Any, Any], StandAlone]:
    spec = RunFolder.open(Path(job.run)).spec
    space = spec.space
    network = untrained(space, job.architecture, job.settings, job.seed)
    return open_task(space, spec.dataset, spec.data, spec.seed), network


def show(content: Mapping[str, Any]) -> Iterator[Table]:
    """A row for each network."""
    rows = content["networks"]
    splits = [(s, name) for s in ("valid", "test") for name in rows[0]["valid"] if s in rows[0]]
    heads = ("network", "id", "seed", "params", "FLOPs", *map(" ".join, splits), "minutes")
    cells = [
        (
            row["name"],
            row["id"],
            row["seed"],
            f"{row['params']:,}",
            f"{row['flops']:.3g}",
            *(f"{row[split][name]:.3f}" for split, name in splits),
            row["minutes"],
        )
        for row in rows
    ]
    epochs = content["settings"]["epochs"]
    yield table_of(f"retrained alike for {epochs} epochs, from scratch", heads, cells)


def measure(options: Options) -> dict[str, Any]:
    """Train the winner and its twins, then test them where that is asked for."""
    spec = RunFolder.open(Path(options.run)).spec
    settings = budget_for(spec.space, options.preset, pairs("--set", options.set)).retrain
    winner = pick(read_front(RunFolder.open(Path(options.run))), options.pick).architecture
    networks = {"winner": winner} | {f"all {kind}": twin(winner, kind) for kind in options.twins}
    jobs = [
        Job(name, options.run, network, settings, int(seed), options.work)
        for seed in options.seeds.split(",")
        for name, network in networks.items()
    ]
    found = done_once(train, jobs, options.workers)
    if options.test:
        tests = done_once(score_test, jobs, options.workers)
        found = [one | test for one, test in zip(found, tests, strict=True)]
    space = spec.space
    length = int(space.workload["source"]) if space.task != "classification" else None
    rows = [
        {
            "name": job.name,
            **one,
            "params": params(space.model, space.task, job.architecture),
            "flops": flops(space.model, space.task, job.architecture, source_length=length),
        }
        for one, job in zip(found, jobs, strict=True)
    ]
    return {"space": space.name, "settings": asdict(settings), "networks": rows}


def done_once(
    work: Callable[[Job], dict[str, Any]], jobs: Sequence[Job], workers: int
) -> list[dict[str, Any]]:
    """What comes of each job; jobs of one folder, as of a winner that is its own twin, are one."""
    once = {job.folder: job for job in jobs}
    with processes(workers) as pool:
        found = dict(zip(once, pool.map(work, once.values()), strict=True))
    return [found[job.folder] for job in jobs]


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of the study."""
    parser.add_argument("--run", required=True, help="the folder of a finished search")
    parser.add_argument("--pick", default="best", help="best, knee or an id of its front")
    parser.add_argument("--preset", default="standard", help="whose retraining is done")
    add_numbers(parser)
    parser.add_argument("--seeds", default="1")
    parser.add_argument("--twins", nargs="*", choices=TWINS, default=TWINS, help="beside it")
    parser.add_argument("--work", default="runs/retrained_twins", help="checkpoints and weights")
    parser.add_argument("--workers", type=positive, default=3)
    parser.add_argument("--test", action="store_true", help="score the test split, at the very end")


STUDY = Study(
    "retrained_twins",
    "Is a search's winner better than its all-softmax and all-linear twins, retrained alike?",
    add_options,
    measure,
    show,
    results=lambda options: "retrained_twins",
    width=160,
)

if __name__ == "__main__":
    sys.exit(STUDY.main())
