"""Retrains several networks side by side on a Ray cluster.

Every network is a task that opens the run folder, does the stage there is for it, and tells its
events; a task whose worker dies is started again and goes on from its checkpoint. The settings of
a network are tuned by Ray Tune from within such a task.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import ray

from nas.executors.ray_mail import Mailbox
from nas.executors.retraining.tuning_record import asked_trials
from nas.run.events import Event, Note
from nas.run.opened import OpenedRun, shared_run
from nas.run.stages import RETRAIN
from search_spaces.errors import ExecutorError, NasError

if TYPE_CHECKING:
    from nas.executors.board import Board
    from nas.executors.ray_nodes import Nodes

RESTARTS = 8


@dataclass(frozen=True, slots=True)
class JobRoom:
    """How many train at once, None for as many as there is room for, and what each gets."""

    workers: int | None
    cpus: int
    gpus: int


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
    mailbox = Mailbox()
    jobs = _Jobs(run, list(ids), room, board, nodes, mailbox, share)
    nodes.begin()
    try:
        for item in mailbox.items(jobs.ended):
            if isinstance(item, _Began):
                item = jobs.begin(item)
                if item is None:
                    continue
            if share is None or not isinstance(item, Note):  # the stage that halves keeps these
                run.folder.log(item)
            yield item
        failure = mailbox.failure or jobs.failure
    finally:
        jobs.cancel()
        mailbox.close()
    if failure is not None:
        raise failure


@dataclass(frozen=True, slots=True)
class _Began:
    """A job that is about to work on a network."""

    network_id: str
    host: str
    pid: int
    node: str


class _Jobs:
    """Tasks that wait for their turn, and those that work."""

    def __init__(
        self,
        run: OpenedRun,
        ids: list[str],
        room: JobRoom,
        board: Board,
        nodes: Nodes,
        mailbox: Mailbox,
        share: float | None,
    ) -> None:
        self._share = share
        self._run, self._waiting, self._room = run, ids, room
        self._board, self._mailbox = board, mailbox
        self._nodes = nodes
        self._working: dict[Any, str] = {}
        self._begun: dict[str, str] = {}  # network → node of the worker that began with it last
        self.failure: Exception | None = None

    def begin(self, job: _Began) -> Note | None:
        """Take in who works on a network; what is to be told where somebody did before."""
        name = _name(job.network_id)
        values = {"network": job.network_id, "host": job.host, "pid": job.pid}
        self._board.change(name, doing="retraining", **values)
        self._board.log(name, [f"works on {job.host}, process {job.pid}"])
        before = self._begun.get(job.network_id)
        self._begun[job.network_id] = job.node
        if before is None:
            return None
        sentence = (
            f"the worker that trained {job.network_id} was lost; one on {job.host} goes on from "
            "the last checkpoint"
        )
        return Note(RETRAIN + job.network_id, sentence)

    def ended(self, seconds: float) -> bool:
        """Wait a little; whether all are done."""
        most = self._room.workers
        while self._waiting and (most is None or len(self._working) < most):
            network_id = self._waiting.pop(0)
            self._working[self._start(network_id)] = network_id
        done, _ = ray.wait(list(self._working), num_returns=len(self._working), timeout=seconds)
        for one in done:
            self._board.remove(_name(self._working.pop(one)))
            self._see(one)
        if self._working:
            stage = RETRAIN + next(iter(self._working.values()))
            for sentence in self._nodes.told(self._waits):
                self._mailbox.put(Note(stage, sentence))
        return not (self._working or self._waiting)

    @property
    def _waits(self) -> bool:
        """Whether all jobs wait for room: they have not begun, or did on nodes that are gone."""
        return self._nodes.gone(
            *(self._begun[n] for n in self._working.values() if n in self._begun)
        )

    def _start(self, network_id: str) -> Any:
        tuned = self._share is None and asked_trials(self._run.folder, network_id) > 0
        task: Any = ray.remote(_job)
        # A task that tunes only waits for its trials.
        cpus, gpus = (0, 0) if tuned else (self._room.cpus, self._room.gpus)
        path = str(self._run.folder.path.resolve())
        return task.options(max_retries=RESTARTS, num_cpus=cpus, num_gpus=gpus).remote(
            path, network_id, self._mailbox, self._room, self._share
        )

    def _see(self, job: Any) -> None:
        try:
            ray.get(job)
        except Exception as error:
            self.failure = self.failure or _explained(error)

    def cancel(self) -> None:
        """End what still works."""
        for job in self._working:
            ray.cancel(job, force=True, recursive=True)


def _name(network_id: str) -> str:
    return f"retrain-{network_id}"


def _explained(error: Exception) -> Exception:
    if isinstance(error, ray.exceptions.RayTaskError):
        return error
    return ExecutorError(
        f"the worker that retrained a network died {RESTARTS + 1} times ({type(error).__name__}); "
        "what is finished is kept: look after the cluster and go on with the same command"
    )


def _job(path: str, network_id: str, mailbox: Mailbox, room: JobRoom, share: float | None) -> None:
    """The stage of one network, in a worker."""
    os.environ["TUNE_DISABLE_AUTO_CALLBACK_LOGGERS"] = "1"
    from nas.executors.retraining.stage import retrain_stage, retrain_work, train_part
    from nas.executors.retraining.tuning import RayTuner
    from nas.run.stage_runner import stage_events

    node = ray.get_runtime_context().get_node_id()
    mailbox.put(_Began(network_id, socket.gethostname(), os.getpid(), node))
    tuner = RayTuner(mailbox.put, room.cpus, room.gpus, room.workers)
    try:
        run = shared_run(path)
        if share is not None:
            for event in train_part(run, network_id, share):
                mailbox.put(event)
            return
        work = retrain_work(run, network_id, tuner)
        for event in stage_events(run, retrain_stage(network_id), work):
            mailbox.put(event)
    except (NasError, OSError) as error:
        mailbox.fail(error)
