"""Retrains several networks side by side on a Ray cluster.

Every network is a job that does the stage there is for it, and tells its events. The settings of a
network are tuned by Ray Tune from within such a job.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import ray

from latency.turns import computing
from nas.executors.ray_jobs import RESTARTS, Began, JobKind, JobRoom, side_by_side
from nas.executors.ray_mail import Mailbox
from nas.executors.retraining.asked import read_asked
from nas.run.events import Event, Note
from nas.run.layout import result_file
from nas.run.opened import OpenedRun, shared_run
from nas.run.stages import RETRAIN
from search_spaces.errors import NasError

if TYPE_CHECKING:
    from nas.executors.board import Board
    from nas.executors.ray_nodes import Nodes


def retrain_side_by_side(
    run: OpenedRun,
    ids: Sequence[str],
    room: JobRoom,
    board: Board,
    nodes: Nodes,
    share: float | None = None,
) -> Generator[Event, None, None]:
    """Retrain networks, as many at once as there is room for; Ray has to be connected.

    Args:
        run: the run.
        ids: of the networks.
        room: for how many.
        board: where it is told what they do.
        nodes: those of the cluster.
        share: of the training, see `nas.executors.base.Executor.retrain`.

    Raises:
        NasError, OSError: the first that ended one of them; the others are finished before.
    """
    kind = _Retraining(run, ids, room, share)
    for event in side_by_side(kind, ids, room.workers, board, nodes):
        if share is None or not isinstance(event, Note):  # the stage that halves keeps these
            run.folder.log(event)
        yield event


class _Retraining(JobKind):
    """Trains networks; a job is known by its network's id.

    Those that are not trained yet share the workers: each tries as many settings at once as falls
    to it.
    """

    doing = "retraining"
    worker = "the worker that retrained a network"
    of_network = True

    def __init__(
        self, run: OpenedRun, ids: Sequence[str], room: JobRoom, share: float | None
    ) -> None:
        self._run, self._room, self._share = run, room, share
        if room.workers is not None:
            left = sum(not run.folder.has(result_file(one)) for one in ids)
            self._room = replace(room, workers=max(1, room.workers // max(1, left)))

    def name(self, key: str) -> str:
        return f"retrain-{key}"

    def stage(self, key: str) -> str:
        return RETRAIN + key

    def lost(self, key: str) -> str:
        return f"the worker that trained {key}"

    def start(self, key: str, mailbox: Mailbox) -> Any:
        tuned = self._share is None and read_asked(self._run.folder, key).trials > 0
        task: Any = ray.remote(_job)
        # A task that tunes only waits for its trials.
        cpus, gpus = (0, 0) if tuned else (self._room.cpus, self._room.gpus)
        path = str(self._run.folder.path.resolve())
        return task.options(max_retries=RESTARTS, num_cpus=cpus, num_gpus=gpus).remote(
            path, key, mailbox, self._room, self._share
        )


def _job(path: str, network_id: str, mailbox: Mailbox, room: JobRoom, share: float | None) -> None:
    """The stage of one network, in a worker."""
    os.environ["TUNE_DISABLE_AUTO_CALLBACK_LOGGERS"] = "1"
    from nas.executors.retraining.stage import retrain_stage, retrain_work, train_part
    from nas.executors.retraining.tuning import RayTuner
    from nas.run.stage_runner import stage_events

    mailbox.put(Began.here(network_id))
    tuner = RayTuner(mailbox.put, room.cpus, room.gpus, room.workers)
    try:
        run = shared_run(path)
        if share is not None:
            with computing(run.computes_on):
                for event in train_part(run, network_id, share):
                    mailbox.put(event)
            return
        work = retrain_work(run, network_id, tuner)
        for event in stage_events(run, retrain_stage(run.spec, network_id), work):
            mailbox.put(event)
    except (NasError, OSError) as error:
        mailbox.fail(error)
