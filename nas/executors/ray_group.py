"""A group of processes that Ray Train keeps alive while it trains a supernet.

Every rank opens the run folder itself, which therefore has to lie on a disk that all machines see;
rank 0 writes the same checkpoints there that a training in one process writes. When a rank dies,
Ray Train starts the group again, and it goes on from the last checkpoint.
"""

from __future__ import annotations

import os
import shutil
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from ray.train import FailureConfig, RunConfig, ScalingConfig, TrainingFailedError, UserCallback
from ray.train.torch import TorchConfig, TorchTrainer, get_device
from ray.util.placement_group import PlacementGroup, get_current_placement_group

from latency.turns import computing
from nas.executors.attempts import out_of_memory
from nas.executors.ray_mail import Mailbox
from nas.run.events import Note
from nas.run.layout import RAY_TRAIN_FOLDER
from nas.run.opened import shared_run
from nas.run.supernet_training import supernet_trainer
from search_spaces.errors import ExecutorError, NasError
from search_spaces.wording import RESUME, mark
from supernet.training.parallel import ProcessGroup

RESTARTS = 8
# Gloo and NCCL wait so long for a rank that says nothing.
SILENCE_S = 1800
# Ray Train counts a rank as lost that does not answer it for so long. One that only waits answers.
ANSWER_VARIABLE, ANSWER_S = "RAY_TRAIN_WORKER_HEALTH_CHECK_TIMEOUT_S", 120


@dataclass(frozen=True, slots=True)
class GroupRoom:
    """The processes that train together: how many, and what is reserved for each."""

    workers: int
    cpus: int
    gpus: int


@dataclass(frozen=True, slots=True)
class Joined:
    """A rank that is about to train, and what is reserved for its group."""

    rank: int
    host: str
    pid: int
    reserved: PlacementGroup | None


def fit_group(path: str, room: GroupRoom, mailbox: Mailbox) -> None:
    """Have a group train the supernet of a run, and start it again when it is lost.

    Args:
        path: the run folder.
        room: how many, and what each gets.
        mailbox: takes reports and notes, and the error that ended the training.
    """
    os.environ.setdefault(ANSWER_VARIABLE, str(ANSWER_S))
    storage = Path(path) / RAY_TRAIN_FOLDER
    shutil.rmtree(storage, ignore_errors=True)  # of a run that was killed; it is not read again
    each = {"CPU": float(room.cpus)} | ({"GPU": float(room.gpus)} if room.gpus else {})
    trainer = TorchTrainer(
        _train,
        train_loop_config={"folder": path, "mailbox": mailbox},
        torch_config=TorchConfig("nccl" if room.gpus else "gloo", timeout_s=SILENCE_S),
        scaling_config=ScalingConfig(
            num_workers=room.workers, use_gpu=bool(room.gpus), resources_per_worker=each
        ),
        run_config=RunConfig(
            name="train",
            storage_path=str(storage),
            failure_config=FailureConfig(max_failures=RESTARTS),
            callbacks=[_Restarts(mailbox)],  # type: ignore[list-item]
        ),
    )
    try:
        trainer.fit()
    except TrainingFailedError as error:
        mailbox.fail(
            ExecutorError(
                f"the workers that train the supernet died {RESTARTS + 1} times, lastly: "
                f"{_last_line(error)}; what is finished is kept: look after the cluster and go on "
                f"with {mark(RESUME, 'nas resume')}"
            )
        )
    except OSError as error:  # the run folder cannot be written
        mailbox.fail(error)
    finally:
        shutil.rmtree(storage, ignore_errors=True)


def _last_line(error: BaseException) -> str:
    """Of an error's words those that say something: the last, if it came from a worker."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1][:300] if lines else type(error).__name__


class _Restarts(UserCallback):
    """Tells why a group ended; it runs in Ray Train's controller."""

    def __init__(self, mailbox: Mailbox) -> None:
        self._mailbox = mailbox

    def after_exception(self, run_context: Any, worker_exceptions: dict[int, Exception]) -> None:
        if self._mailbox.failure is not None:
            return
        ranks = sorted(worker_exceptions)
        details = {"ranks": ranks, "error": _last_line(worker_exceptions[ranks[0]])}
        numbers = f"rank{'s' * (len(ranks) != 1)} {', '.join(map(str, ranks))}"
        message = (
            f"the group that trains the supernet was lost ({numbers}); it starts again from the "
            "last checkpoint"
        )
        self._mailbox.put(Note("supernet", message, details))


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
        _train_rank(config["folder"], mailbox)
    except (ConnectionError, TimeoutError):
        raise  # another rank is gone: the next group may do better
    except (NasError, OSError) as error:
        mailbox.fail(error)
        raise
    except Exception as error:
        if out_of_memory(error):  # the next group would have no more
            mailbox.fail(ExecutorError(f"a worker ran out of memory while training: {error}"))
        raise


def _train_rank(path: str, mailbox: Mailbox) -> None:
    device = str(get_device())
    if device.startswith("cuda"):
        torch.cuda.set_device(device)
    run, group = shared_run(path), ProcessGroup(device)
    reserved = get_current_placement_group()
    mailbox.put(Joined(group.rank, socket.gethostname(), os.getpid(), reserved))
    with computing(device):
        for report in supernet_trainer(run, device=device, group=group).run():
            if group.rank == 0:
                mailbox.put(report)
