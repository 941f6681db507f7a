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
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from ray.train import FailureConfig, RunConfig, ScalingConfig, TrainingFailedError, UserCallback
from ray.train.torch import TorchConfig, TorchTrainer, get_device

from nas.events import Note
from nas.executors.ray_mail import Mailbox
from nas.executors.ray_run import shared_run
from search_spaces.errors import ExecutorError, NasError
from supernet.training.parallel import ProcessGroup

if TYPE_CHECKING:
    from nas.executors.board import Board
    from nas.stages.base import Run
    from supernet.training.loop import EpochReport

STORAGE = "supernet/ray"
RESTARTS = 8
# Gloo and NCCL wait so long for a rank that says nothing.
SILENCE_S = 1800
# After so long without a worker the user is told what is waited for.
PATIENCE_S = 60.0


@dataclass(frozen=True, slots=True)
class GroupRoom:
    """The processes that train together: how many, and what is reserved for each."""

    workers: int
    cpus: int
    gpus: int


def train_together(run: Run, room: GroupRoom, board: Board) -> Iterator[EpochReport | Note]:
    """Train a run's supernet, or go on with it; Ray has to be connected.

    Args:
        run: the run.
        room: for how many; where the cluster has less, this waits for it to grow.
        board: where it is told what they do.

    Yields:
        The reports of rank 0, and notes: who trains, and each time the group had to start again.

    Raises:
        NasError, OSError: what ended the training, as in one process.
        ExecutorError: when workers died too often.
    """
    path = run.folder.path.resolve()
    storage = path / STORAGE
    scaling = ScalingConfig(
        num_workers=room.workers,
        use_gpu=bool(room.gpus),
        resources_per_worker={"CPU": room.cpus} | ({"GPU": room.gpus} if room.gpus else {}),
    )
    shutil.rmtree(storage, ignore_errors=True)  # of a driver that was killed
    mailbox = Mailbox()
    trainer = TorchTrainer(
        _train,
        train_loop_config={"folder": str(path), "mailbox": mailbox},
        torch_config=TorchConfig("nccl" if room.gpus else "gloo", timeout_s=SILENCE_S),
        scaling_config=scaling,
        run_config=RunConfig(
            name="train",
            storage_path=str(storage),
            failure_config=FailureConfig(max_failures=RESTARTS),
            callbacks=[_Restarts(mailbox)],  # type: ignore[list-item]
        ),
    )
    try:
        yield from _Followed(trainer, mailbox, room, board).events()
    finally:
        mailbox.close()  # if somebody still trains, because this was interrupted, they fail by it
        shutil.rmtree(storage, ignore_errors=True)


class _Followed:
    """What a group says while it trains; in the end its failure, if it failed."""

    def __init__(
        self, trainer: TorchTrainer, mailbox: Mailbox, room: GroupRoom, board: Board
    ) -> None:
        self._trainer, self._mailbox, self._room, self._board = trainer, mailbox, room, board
        self._thread = threading.Thread(target=self._fit, name="ray-train", daemon=True)
        self._failure: Exception | None = None
        self._joined: dict[int, _Joined] = {}
        self._waiting_s: float | None = 0.0

    def events(self) -> Iterator[EpochReport | Note]:
        """See the class."""
        self._thread.start()
        for item in self._mailbox.items(self._ended):
            if not isinstance(item, _Joined | _Waited):
                yield item
            elif (note := self._note(item)) is not None:
                yield note
        for rank in range(self._room.workers):
            self._board.change(_name(rank), doing="ended")
        failure = self._mailbox.failure or self._failure
        if failure is not None:
            raise failure

    def _fit(self) -> None:
        try:
            self._trainer.fit()
        except Exception as error:  # raised in the thread that asked
            self._failure = _explained(error)

    def _ended(self, seconds: float) -> bool:
        self._thread.join(seconds)
        if self._waiting_s is not None:
            self._waiting_s += seconds
            if self._waiting_s > PATIENCE_S:
                self._waiting_s = None
                self._mailbox.put(_Waited())
        return not self._thread.is_alive()

    def _note(self, item: _Joined | _Waited) -> Note | None:
        room = self._room
        if isinstance(item, _Waited):
            each = f"{room.cpus} CPUs" + (f" and {room.gpus} GPU" if room.gpus else "")
            return Note(
                "supernet",
                f"waiting for the cluster to have room for {room.workers} workers with {each} each",
            )
        self._waiting_s = None
        self._joined[item.rank] = item
        self._board.change(_name(item.rank), doing="training", host=item.host, pid=item.pid)
        self._board.log(_name(item.rank), [f"trains on {item.host}, process {item.pid}"])
        if len(self._joined) < room.workers:
            return None
        places = [f"{one.host}:{one.pid}" for _, one in sorted(self._joined.items())]
        self._joined.clear()
        words = f"{len(places)} processes train" if len(places) > 1 else "1 process trains"
        return Note("supernet", f"{words} the supernet", {"processes": places})


def _name(rank: int) -> str:
    return f"trainer-{rank}"


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
    host: str
    pid: int


class _Waited:
    """Nobody has joined for long."""


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
    mailbox.put(_Joined(group.rank, socket.gethostname(), os.getpid()))
    for report in supernet_trainer(run, device=str(device), group=group).run():
        if group.rank == 0:
            mailbox.put(report)
