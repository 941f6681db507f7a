"""Trainings of tiny supernets by one process or by several, and what a process of a group does."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as processes

from search_spaces.errors import NasError
from supernet.training.checkpoint import CheckpointFolder
from supernet.training.loop import Trainer
from supernet.training.parallel import Group, ProcessGroup
from supernet.training.sampling import build_sampler
from supernet.training_settings import TrainingSettings
from tests.support.task_cases import KINDS, SEGMENT, SPACES, networks_of, supernet_of, task_of
from tests.support.tight_memory import tighten

SHORT = TrainingSettings(
    epochs=2,
    max_tokens=256,
    segment_length=SEGMENT,
    batch_size=16,
    check_every=1,
    sampling="sandwich",
    distillation=0.5,
    num_random=1,
    learning_rate=2e-3,
)
STEPWISE = replace(SHORT, dropout=0.2, checkpoint_updates=1, accumulate=2)


def trainer(kind: str, settings: TrainingSettings = SHORT, **options: Any) -> Trainer:
    """Of the tiny supernet of a task."""
    space = SPACES[kind]
    model = supernet_of(space, settings.dropout)
    sampler, probes = build_sampler(space, settings, 0), networks_of(space, 3)
    return Trainer(model, sampler, probes, task_of(kind), settings, seed=0, **options)


def stopped_after(training: Trainer, saves: int) -> None:
    """Let a training go on until it has saved so often, and leave it there."""
    saved, save = 0, training._save

    def counted() -> None:
        nonlocal saved
        save()
        saved += 1
        if saved == saves:
            raise KilledError

    training._save = counted  # type: ignore[method-assign]
    try:
        list(training.run())
    except KilledError:
        return
    raise AssertionError(f"the training saved only {saved} times")


class KilledError(Exception):
    """The process would have been killed here."""


def run_group(size: int, folder: Path) -> list[dict[str, Any]]:
    """What `work` found in each rank of a group of processes."""
    processes.spawn(work, (size, str(folder)), nprocs=size)
    return [json.loads((folder / f"{rank}.json").read_text("utf-8")) for rank in range(size)]


def work(rank: int, size: int, where: str) -> None:
    """All that a rank does, so that processes are started only once."""
    torch.set_num_threads(1)
    folder = Path(where)
    store = f"file://{folder}/store"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=size)
    group = ProcessGroup()
    found: dict[str, Any] = {"rank": group.rank, "size": group.size}
    for kind in KINDS:
        whole = trainer(kind, folder=CheckpointFolder(folder / kind, "d"), group=group)
        reports = [report.train_loss for report in whole.run()]
        found[kind] = {"train": reports, "probes": whole._losses, "history": whole.history}
        found[kind]["sum"] = weight_sum(whole)
    found["tight"] = _tight(group)
    found["resumed"] = _resumed(folder, group)
    found["diverged"] = _told(lambda: _diverging(group))
    found["apart"] = _told(lambda: _apart(folder, group))
    (folder / f"{rank}.json").write_text(json.dumps(found), "utf-8")
    dist.destroy_process_group()


def train_run(size: int, folder: Path, store: Path) -> None:
    """Train a run's supernet by a group of processes, without Ray: the twin of Ray Train."""
    processes.spawn(_train_run, (size, str(folder), str(store)), nprocs=size)


def _train_run(rank: int, size: int, folder: str, store: str) -> None:
    from nas.run.opened import shared_run
    from nas.run.supernet_training import supernet_trainer

    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)
    for _ in supernet_trainer(shared_run(folder), group=ProcessGroup()).run():
        pass
    dist.destroy_process_group()


def _tight(group: Group) -> dict[str, Any]:
    """Only the last rank has too little memory for more than two rows at a time."""
    training = trainer("translation", group=group)
    refused = tighten(training, 2 if group.rank == group.size - 1 else 1000)
    reports = list(training.run())
    return {
        "train": [report.train_loss for report in reports],
        "told": [report.parts for report in reports],
        "parts": training._parts,
        "refused": len(refused),
        "sum": weight_sum(training),
    }


def _resumed(folder: Path, group: Group) -> list[float]:
    """Sums of weights at the end, undisturbed and after a stop within an epoch."""
    whole = trainer("translation", STEPWISE, folder=_at(folder / "whole"), group=group)
    list(whole.run())
    stopped_after(
        trainer("translation", STEPWISE, folder=_at(folder / "half"), group=group), saves=2
    )
    dist.barrier()
    again = trainer("translation", STEPWISE, folder=_at(folder / "half"), group=group)
    list(again.run())
    return [weight_sum(whole), weight_sum(again)]


def _at(path: Path) -> CheckpointFolder:
    return CheckpointFolder(path, "d")


def _diverging(group: Group) -> None:
    """Only what the last rank sees is not a number."""
    training = trainer("classification", group=group)
    if group.rank == group.size - 1:
        training._task.train.inputs.fill_(math.nan)
    list(training.run())


def _apart(folder: Path, group: Group) -> None:
    """Every rank has a run folder of its own, of which only the first holds a checkpoint."""
    own = CheckpointFolder(folder / "apart" / str(group.rank), "d")
    if group.rank == 0:
        list(trainer("classification", folder=own).run())
    list(trainer("classification", folder=own, group=group).run())


def _told(work: Callable[[], None]) -> str:
    try:
        work()
    except NasError as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def weight_sum(training: Trainer) -> float:
    """One number that changes with every weight."""
    flat = torch.cat([tensor.flatten() for tensor in training.model.state_dict().values()])
    return float((flat.double() * torch.arange(1, len(flat) + 1)).sum())
