"""Trains a supernet with several processes of a Ray cluster, through Ray Train.

Every rank opens the run folder itself, which therefore has to lie on a disk that all machines see;
rank 0 writes the same checkpoints there that a training in one process writes. When a rank dies,
Ray Train starts the group again, and it goes on from the last checkpoint.
"""

from __future__ import annotations

import os
import shutil
import socket
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray
import ray.train
import torch
from ray.train import FailureConfig, RunConfig, ScalingConfig, TrainingFailedError, UserCallback
from ray.train.torch import TorchConfig, TorchTrainer, get_device

from nas.events import Note
from nas.executors.ray_mail import Mailbox
from nas.executors.ray_run import shared_run
from search_spaces.errors import ExecutorError, NasError
from supernet.training.parallel import ProcessGroup

if TYPE_CHECKING:
    from nas.executors.base import ExecutorSettings
    from nas.stages.base import Run
    from supernet.training.loop import EpochReport

STORAGE = "supernet/ray"
RESTARTS = 8
# Gloo and NCCL wait so long for a rank that says nothing.
SILENCE_S = 1800


def train_together(run: Run, settings: ExecutorSettings, cpus: int) -> Iterator[EpochReport | Note]:
    """Train a run's supernet, or go on with it; Ray has to be connected.

    Args:
        run: the run.
        settings: how many train together.
        cpus: reserved for each of them.

    Yields:
        The reports of rank 0, and a note each time the group had to start again.

    Raises:
        NasError, OSError: what ended the training, as in one process.
        ExecutorError: when the cluster has no room, or workers died too often.
    """
    gpu = run.spec.device.startswith("cuda")
    path = run.folder.path.resolve()
    storage = path / STORAGE
    scaling = ScalingConfig(
        num_workers=_num_workers(settings, cpus, gpu),
        use_gpu=gpu,
        resources_per_worker={"CPU": cpus} | ({"GPU": 1} if gpu else {}),
    )
    shutil.rmtree(storage, ignore_errors=True)  # of a driver that was killed
    mailbox = Mailbox()
    trainer = TorchTrainer(
        _train,
        train_loop_config={"folder": str(path), "mailbox": mailbox},
        torch_config=TorchConfig("nccl" if gpu else "gloo", timeout_s=SILENCE_S),
        scaling_config=scaling,
        run_config=RunConfig(
            name="train",
            storage_path=str(storage),
            failure_config=FailureConfig(max_failures=RESTARTS),
            callbacks=[_Restarts(mailbox)],  # type: ignore[list-item]
        ),
    )
    try:
        yield from _followed(trainer, mailbox)
    finally:
        mailbox.close()  # if somebody still trains, because this was interrupted, they fail by it
        shutil.rmtree(storage, ignore_errors=True)


def _num_workers(settings: ExecutorSettings, cpus: int, gpu: bool) -> int:
    """As many as were asked for, or as the cluster has room for."""
    wanted = settings.train_workers or settings.workers
    there: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
    room = int(there.get("GPU", 0)) if gpu else int(there.get("CPU", 0)) // cpus
    if room < (settings.train_workers or 1):
        kind = "GPUs" if gpu else f"workers with {cpus} CPUs each"
        raise ExecutorError(
            f"training needs {settings.train_workers or 1} {kind}, and the cluster has room for "
            f"{room}: add nodes, or lower --train-workers or --cpus-per-worker"
        )
    return min(wanted or room, room)


def _followed(trainer: TorchTrainer, mailbox: Mailbox) -> Iterator[EpochReport | Note]:
    """What the group says while it trains; in the end its failure, if it failed."""
    failures: list[Exception] = []

    def fit() -> None:
        try:
            trainer.fit()
        except Exception as error:  # raised below, in the thread that asked
            failures.append(error)

    thread = threading.Thread(target=fit, name="ray-train", daemon=True)
    thread.start()

    def ended(seconds: float) -> bool:
        thread.join(seconds)
        return not thread.is_alive()

    joined: list[_Joined] = []
    for item in mailbox.items(ended):
        if not isinstance(item, _Joined):
            yield item
            continue
        joined.append(item)
        if len(joined) == item.size:
            yield _together(joined)
            joined = []
    known = mailbox.failure
    if known is not None:
        raise known
    if failures:
        raise _explained(failures[0]) from failures[0]


def _together(joined: Sequence[_Joined]) -> Note:
    places = [f"{one.host}:{one.pid}" for one in sorted(joined, key=lambda one: one.rank)]
    number = len(places)
    words = f"{number} processes train" if number > 1 else "1 process trains"
    return Note("supernet", f"{words} the supernet", {"processes": places})


def _explained(error: Exception) -> Exception:
    if not isinstance(error, TrainingFailedError):
        return error
    return ExecutorError(
        f"the workers that train the supernet died {RESTARTS + 1} times, lastly: "
        f"{_first_line(error)}; what is finished is kept: look after the cluster and go on with "
        "nas resume"
    )


def _first_line(error: BaseException) -> str:
    """The last line that says something: of a remote error that is its own message."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1][:300] if lines else type(error).__name__


class _Restarts(UserCallback):
    """Tells the driver why a group ended; it runs in Ray Train's controller."""

    def __init__(self, mailbox: Mailbox) -> None:
        self._mailbox = mailbox

    def after_exception(self, run_context: Any, worker_exceptions: dict[int, Exception]) -> None:
        if self._mailbox.failure is None:
            ranks = ", ".join(map(str, sorted(worker_exceptions)))
            error = worker_exceptions[min(worker_exceptions)]
            details = {"ranks": sorted(worker_exceptions), "error": _first_line(error)}
            self._mailbox.put(
                Note(
                    "supernet",
                    f"the workers that train together were lost (rank {ranks}); they start again "
                    "from the last checkpoint",
                    details,
                )
            )


@dataclass(frozen=True, slots=True)
class _Joined:
    """A rank that is about to train."""

    rank: int
    size: int
    host: str
    pid: int


# -- in the workers ---------------------------------------------------------------------------


def _train(config: dict[str, Any]) -> None:
    """What each rank does.

    An error that would come again is left in the mailbox; a group that is started because of it
    finds it there and ends.
    """
    mailbox: Mailbox = config["mailbox"]
    if mailbox.failure is not None:
        return
    try:
        _train_rank(Path(config["folder"]), mailbox)
    except (NasError, OSError) as error:
        mailbox.fail(error)
        raise
    except torch.OutOfMemoryError as error:
        mailbox.fail(ExecutorError(f"a worker ran out of memory while training: {error}"))
        raise


def _train_rank(path: Path, mailbox: Mailbox) -> None:
    from nas.stages.learn import supernet_trainer

    device = get_device()
    run = shared_run(path)
    group = ProcessGroup(str(device))
    mailbox.put(_Joined(group.rank, group.size, socket.gethostname(), os.getpid()))
    for report in supernet_trainer(run, device=str(device), group=group).run():
        if group.rank == 0:
            mailbox.put(report)
