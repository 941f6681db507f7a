"""Jobs of one kind that are done side by side on a Ray cluster, and what they tell.

Every job is a task that opens the run folder and tells through a mailbox what it does; a task whose
worker dies is started again and goes on from its checkpoint.
"""

from __future__ import annotations

import os
import socket
from abc import ABC, abstractmethod
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import ray

from nas.executors.attempts import sentence
from nas.executors.ray_mail import Mailbox
from nas.run.events import Note
from search_spaces.errors import ExecutorError

if TYPE_CHECKING:
    from nas.executors.board import Board
    from nas.executors.ray_nodes import Nodes

RESTARTS = 8


@dataclass(frozen=True, slots=True)
class JobRoom:
    """How many jobs work at once, None for as many as there is room for, and what each gets."""

    workers: int | None
    cpus: int
    gpus: int


@dataclass(frozen=True, slots=True)
class Began:
    """A worker that is about to work on a job."""

    key: str
    host: str
    pid: int
    node: str

    @classmethod
    def here(cls, key: str) -> Began:
        """This process."""
        node = ray.get_runtime_context().get_node_id()
        return cls(key, socket.gethostname(), os.getpid(), node)


class JobKind(ABC):
    """What jobs of a kind do, and what they are called."""

    doing: ClassVar[str]
    """On the board, for example ``retraining``."""
    worker: ClassVar[str]
    """Who died, for example ``the worker that retrained a network``."""
    of_network: ClassVar[bool] = False
    """Whether a key is the id of a network."""

    @abstractmethod
    def name(self, key: str) -> str:
        """Of a job, on the board."""

    @abstractmethod
    def stage(self, key: str) -> str:
        """To which a job's notes belong."""

    @abstractmethod
    def lost(self, key: str) -> str:
        """Whose worker was lost, for example ``the worker that trained 1a2b3c``."""

    @abstractmethod
    def start(self, key: str, mailbox: Mailbox) -> Any:
        """Start a job, whose task may be restarted `RESTARTS` times; what is waited for."""


def side_by_side(
    kind: JobKind, keys: Sequence[str], workers: int | None, board: Board, nodes: Nodes
) -> Generator[Any, None, None]:
    """Do jobs, as many at once as there is room for; Ray has to be connected.

    Args:
        kind: of the jobs.
        keys: which of them.
        workers: most of them at once; None for as many as there is room for.
        board: where it is told what they do.
        nodes: those of the cluster.

    Yields:
        What they put into the mailbox, and notes on who was lost.

    Raises:
        NasError, OSError: the first that ended one of them; the others are finished before.
    """
    mailbox = Mailbox()
    jobs = Jobs(kind, list(keys), workers, board, nodes, mailbox)
    nodes.begin()
    try:
        for item in mailbox.items(jobs.ended):
            told = jobs.begin(item) if isinstance(item, Began) else item
            if told is not None:
                yield told
        failure = mailbox.failure or jobs.failure
    finally:
        jobs.cancel()
        mailbox.close()
    if failure is not None:
        raise failure


class Jobs:
    """Tasks that wait for their turn, and those that work."""

    def __init__(
        self,
        kind: JobKind,
        keys: list[str],
        workers: int | None,
        board: Board,
        nodes: Nodes,
        mailbox: Mailbox,
    ) -> None:
        self._kind, self._waiting, self._most = kind, keys, workers
        self._board, self._mailbox = board, mailbox
        self._nodes = nodes
        self._working: dict[Any, str] = {}
        self._begun: dict[str, str] = {}  # job → node of the worker that began with it last
        self.failure: Exception | None = None

    def begin(self, job: Began) -> Note | None:
        """Take in who works on a job; what is to be told where somebody did before."""
        name = self._kind.name(job.key)
        network = job.key if self._kind.of_network else None
        values = {"network": network, "host": job.host, "pid": job.pid}
        self._board.change(name, doing=self._kind.doing, **values)
        self._board.log(name, [f"works on {job.host}, process {job.pid}"])
        before = self._begun.get(job.key)
        self._begun[job.key] = job.node
        if before is None:
            return None
        sentence = (
            f"{self._kind.lost(job.key)} was lost; one on {job.host} goes on from the last "
            "checkpoint"
        )
        return Note(self._kind.stage(job.key), sentence)

    def ended(self, seconds: float) -> bool:
        """Wait a little; whether all are done."""
        while self._waiting and (self._most is None or len(self._working) < self._most):
            key = self._waiting.pop(0)
            self._working[self._kind.start(key, self._mailbox)] = key
        done, _ = ray.wait(list(self._working), num_returns=len(self._working), timeout=seconds)
        for one in done:
            self._board.remove(self._kind.name(self._working.pop(one)))
            self._see(one)
        self._board.tick()
        if self._working:
            stage = self._kind.stage(next(iter(self._working.values())))
            for sentence in self._nodes.told(self._waits):
                self._mailbox.put(Note(stage, sentence))
        return not (self._working or self._waiting)

    @property
    def _waits(self) -> bool:
        """Whether all jobs wait for room: they have not begun, or did on nodes that are gone."""
        return self._nodes.gone(
            *(self._begun[key] for key in self._working.values() if key in self._begun)
        )

    def _see(self, job: Any) -> None:
        try:
            ray.get(job)
        except Exception as error:
            self.failure = self.failure or self._explained(error)

    def _explained(self, error: Exception) -> Exception:
        if isinstance(error, ray.exceptions.RayTaskError):
            return error
        if isinstance(error, ray.exceptions.OutOfMemoryError):
            return ExecutorError(
                f"{self._kind.worker} needs more memory than its machine has, each time that it "
                f"was tried: {sentence(error)}"
            )
        return ExecutorError(
            f"{self._kind.worker} died {RESTARTS + 1} times ({type(error).__name__}); what is "
            "finished is kept: look after the cluster and go on with the same command"
        )

    def cancel(self) -> None:
        """End what still works."""
        for job in self._working:
            ray.cancel(job, force=True, recursive=True)
