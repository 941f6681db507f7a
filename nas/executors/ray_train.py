"""Trains a supernet with several processes of a Ray cluster: the side of the run.

The group itself, which is Ray Train's, is started by a task (`nas.executors.ray_group`), so that
everything ends with that task when the run is interrupted.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import ray
from ray.util.placement_group import PlacementGroup, remove_placement_group

from nas.executors.ray_group import RESTARTS, GroupRoom, Joined, fit_group
from nas.executors.ray_mail import Mailbox, here
from nas.run.events import Note
from search_spaces.errors import ExecutorError
from search_spaces.wording import RESUME, mark

if TYPE_CHECKING:
    from nas.executors.board import Board
    from nas.executors.ray_nodes import Nodes
    from nas.run.opened import OpenedRun
    from supernet.training.loop import EpochReport

# After so long without a worker the user is told what is waited for.
PATIENCE_S = 60.0


class _Waited:
    """Nobody has joined for long."""


@dataclass(frozen=True, slots=True)
class _Told:
    """Something that happened to the cluster, and not to the group."""

    sentence: str


def train_together(
    run: OpenedRun, room: GroupRoom, board: Board, nodes: Nodes
) -> Generator[EpochReport | Note, None, None]:
    """Train a run's supernet, or go on with it; Ray has to be connected.

    Args:
        run: the run.
        room: for how many; where the cluster has less, this waits for it to grow.
        board: where it is told what they do.
        nodes: those of the cluster.

    Yields:
        The reports of rank 0, and notes: who trains, and each time the group had to start again.

    Raises:
        NasError, OSError: what ended the training, as in one process.
        ExecutorError: when workers died too often.
    """
    group = _Group(run, room, board, nodes)
    try:
        yield from group.events()
    finally:
        group.close()


class _Group:
    """What a group says while it trains; in the end its failure, if it failed."""

    def __init__(self, run: OpenedRun, room: GroupRoom, board: Board, nodes: Nodes) -> None:
        self._room, self._board, self._mailbox = room, board, Mailbox()
        self._nodes = nodes
        self._joined: dict[int, Joined] = {}
        self._reserved: PlacementGroup | None = None
        self._waiting_s: float | None = 0.0
        task: Any = ray.remote(fit_group)
        options = task.options(num_cpus=0, max_retries=RESTARTS, scheduling_strategy=here())
        self._task = options.remote(str(run.folder.path.resolve()), room, self._mailbox)

    def events(self) -> Iterator[EpochReport | Note]:
        """See the class."""
        for item in self._mailbox.items(self._ended):
            if not isinstance(item, Joined | _Waited | _Told):
                if isinstance(item, Note):  # the group was lost, and has to find room again
                    self._waiting_s = 0.0
                yield item
            elif (note := self._note(item)) is not None:
                yield note
        failure = self._mailbox.failure
        if failure is not None:
            raise failure
        try:
            ray.get(self._task)
        except ray.exceptions.WorkerCrashedError as error:
            raise ExecutorError(
                f"the process that starts the training died {RESTARTS + 1} times; what is "
                "finished is kept: look after the cluster and go on with "
                f"{mark(RESUME, 'nas resume')}"
            ) from error

    def close(self) -> None:
        """End whatever still works, and give back what was reserved for it.

        Ray Train does so by itself when it ends by itself. When it is killed, an actor of its own
        does, as soon as the cluster's dashboard tells it; without a dashboard that is never.
        """
        ray.cancel(self._task, force=True, recursive=True)
        if self._reserved is not None:
            remove_placement_group(self._reserved)
        self._mailbox.close()
        for rank in range(self._room.workers):
            self._board.remove(_name(rank))

    def _ended(self, seconds: float) -> bool:
        done, _ = ray.wait([self._task], timeout=seconds)
        if self._waiting_s is not None:
            self._waiting_s += seconds
            if self._waiting_s > PATIENCE_S:
                self._waiting_s = None
                self._mailbox.put(_Waited())
        # How long it waits for room is its own business: it may need that of several nodes.
        for sentence in self._nodes.told(waits=False):
            self._mailbox.put(_Told(sentence))
        return bool(done)

    def _note(self, item: Joined | _Waited | _Told) -> Note | None:
        room = self._room
        if isinstance(item, _Told):
            return Note("supernet", item.sentence)
        if isinstance(item, _Waited):
            each = f"{room.cpus} CPU{'s' * (room.cpus != 1)}"
            each += f" and {room.gpus} GPU" if room.gpus else ""
            return Note(
                "supernet",
                f"waiting for the cluster to have room for {room.workers} workers with {each} each",
            )
        self._waiting_s = None
        self._joined[item.rank] = item
        self._reserved = item.reserved
        self._board.change(_name(item.rank), doing="training", host=item.host, pid=item.pid)
        self._board.log(_name(item.rank), [f"trains on {item.host}, process {item.pid}"])
        if len(self._joined) < room.workers:
            return None
        self._board.write()
        places = [f"{one.host}:{one.pid}" for _, one in sorted(self._joined.items())]
        self._joined.clear()
        words = f"{len(places)} processes train" if len(places) > 1 else "1 process trains"
        return Note("supernet", f"{words} the supernet", {"processes": places})


def _name(rank: int) -> str:
    return f"trainer-{rank}"
