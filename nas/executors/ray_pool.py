"""Hands networks out to workers as these become free, and replaces workers that are lost.

Each worker has one network at a time, so that when it is lost there is no doubt about which
network it was lost with. A lost process counts as a try of that network; a lost machine does not,
because no network is to blame for it.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import ray
from ray.exceptions import (
    ActorUnavailableError,
    OutOfMemoryError,
    RayActorError,
    RayError,
    RayTaskError,
)

from nas.executors.attempts import sentence
from nas.executors.base import TRIES, Answered, Failure, FailureKind, Outcome
from nas.executors.board import Board
from nas.executors.ray_nodes import LOOK_EVERY_S, Nodes
from nas.executors.ray_worker import Answer, Place
from search_spaces.errors import ExecutorError, NasError

# Workers lost without an answer in between, for no fault of a network, before a run gives up.
MOST_LOST = 20


class Asked(Protocol):
    """A network, or what is asked about one."""

    @property
    def id(self) -> str:
        """Of the network."""

    def to_json(self) -> dict[str, Any]:
        """What a worker is sent."""


@dataclass(eq=False)
class _Job:
    """A network that is to be evaluated: its place among those asked for, and tries so far."""

    index: int
    network: Asked
    tries: int = 0


@dataclass(eq=False)
class _Slot:
    """A place for a worker: its name, the process that fills it now, and what that was told last.

    Attributes:
        job: what it works on; None while it starts, or has nothing to do.
        call: the answer that is waited for; None when it has nothing to do.
        since: monotonic seconds when that call was made.
        there: a call that is answered as soon as there is a process.
    """

    name: str
    actor: Any
    call: Any
    since: float
    there: Any
    job: _Job | None = None
    node: str = ""
    host: str = ""


class Pool:
    """A number of workers; none is started before there is something to do.

    Args:
        start: starts a worker; gives its handle, the call that is answered as soon as there is a
            process, and the one that prepares it.
        board: is told what workers do.
        timeout_s: of an evaluation.
        nodes: where workers can be.
        final: whether trying again would be of no use.
        grace_s: so much longer than `timeout_s` a worker is waited for that limits its time itself.
    """

    def __init__(
        self,
        start: Callable[[], tuple[Any, Any, Any]],
        board: Board,
        timeout_s: float,
        nodes: Nodes,
        final: Callable[[Outcome], bool],
        grace_s: float = 0.0,
    ) -> None:
        self._start, self._board, self._timeout_s = start, board, timeout_s
        self._nodes, self._final, self._grace_s = nodes, final, grace_s
        self._slots: list[_Slot] = []
        self._lost = 0
        self._said: list[str] = []

    def run(self, networks: Sequence[Asked], size: int) -> Generator[Answered | str, None, None]:
        """Evaluate networks on up to `size` workers.

        Yields:
            Index and outcome of each network, in any order, and sentences on what was lost.

        Raises:
            ExecutorError: when no worker can be started, or too many are lost.
        """
        todo = deque(_Job(index, network) for index, network in enumerate(networks))
        left = len(todo)
        self._nodes.begin()
        try:
            while left:
                self._grow(min(size, left))
                self._hand_out(todo)
                answers = list(self._answers(todo))
                self._hand_out(todo)  # before whoever asked is busy with the answers
                left -= len(answers)
                said, self._said = self._said, []
                yield from said
                yield from ((job.index, outcome) for job, outcome in answers)
        except RayError as error:
            raise ExecutorError(f"the Ray cluster was lost: {sentence(error)}") from error
        finally:
            # Nobody waits for their answers any more.
            self._drop([slot for slot in self._slots if slot.job is not None])

    def close(self) -> None:
        """End all workers."""
        self._drop(self._slots)

    # -- workers ------------------------------------------------------------------------------

    def _grow(self, size: int) -> None:
        names = {slot.name for slot in self._slots}
        free = (name for number in range(size) if (name := f"worker-{number}") not in names)
        for name in list(free)[: max(0, size - len(self._slots))]:
            self._slots.append(self._new(name))

    def _new(self, name: str) -> _Slot:
        actor, there, call = self._start()
        self._board.change(name, doing="starting", network=None, host="", pid=0)
        return _Slot(name, actor, call, time.monotonic(), there)

    def _drop(self, slots: Sequence[_Slot]) -> None:
        dropped = list(slots)
        self._slots = [slot for slot in self._slots if slot not in dropped]
        for slot in dropped:
            ray.kill(slot.actor)
        for slot in dropped:
            self._board.change(slot.name, doing="ended", network=None)

    def _replace(self, slot: _Slot, why: str) -> None:
        """Put a new worker in the place of one that is lost."""
        lost = self._board.state(slot.name).lost + 1
        self._board.log(slot.name, [f"lost: {why}"])
        where = f" on {slot.host}" if slot.host else ""
        self._said.append(f"{slot.name}{where} was lost: {why}; another takes its place")
        self._board.change(slot.name, lost=lost)
        ray.kill(slot.actor)
        self._slots[self._slots.index(slot)] = self._new(slot.name)

    # -- work ---------------------------------------------------------------------------------

    def _hand_out(self, todo: deque[_Job]) -> None:
        for slot in self._slots:
            if todo and slot.call is None:
                slot.job = job = todo.popleft()
                slot.call = slot.actor.evaluate.remote(job.network.to_json(), job.tries + 1)
                slot.since = time.monotonic()
                self._board.change(slot.name, doing="evaluating", network=job.network.id)

    def _answers(self, todo: deque[_Job]) -> Iterator[tuple[_Job, Outcome]]:
        """Wait a while and take what has come; what has to be tried again goes to the front."""
        waiting = {slot.call: slot for slot in self._slots if slot.call is not None}
        ray.wait(list(waiting), timeout=self._patience())
        ready, _ = ray.wait(list(waiting), num_returns=len(waiting), timeout=0)
        for call in ready:
            slot = waiting[call]
            if slot.job is None:
                self._started(slot)
                continue
            job = slot.job
            outcome = self._outcome(slot)
            if outcome is None or self._again(job, outcome):
                todo.appendleft(job)
            else:
                yield job, outcome
        yield from self._overdue(todo)
        starting = [slot.there for slot in self._slots if slot.job is None and slot.call]
        waits = len(starting) == len(self._slots) and not ray.wait(starting, timeout=0)[0]
        self._said += self._nodes.told(waits)
        self._board.tick()

    def _again(self, job: _Job, outcome: Outcome) -> bool:
        return not self._final(outcome) and job.tries < TRIES

    @property
    def _longest_s(self) -> float:
        return self._timeout_s + self._grace_s

    def _patience(self) -> float:
        ends = [slot.since + self._longest_s for slot in self._slots if slot.job is not None]
        return max(0.0, min(LOOK_EVERY_S, min(ends, default=1e9) - time.monotonic()))

    def _started(self, slot: _Slot) -> None:
        try:
            place: Place = ray.get(slot.call)
        except RayTaskError as error:
            raise _cannot_start(error) from error
        except (RayActorError, OutOfMemoryError) as error:
            self._count_lost(error)
            self._replace(slot, f"it ended while it started: {sentence(error)}")
            return
        slot.call, slot.node, slot.host = None, place.node, place.host
        self._board.change(slot.name, doing="idle", host=place.host, pid=place.pid)
        where = f"started on {place.host}, process {place.pid}, in {place.seconds:.2f} s"
        self._board.log(slot.name, [where])

    def _outcome(self, slot: _Slot) -> Outcome | None:
        """What came of a worker's job, its tries counted; None when no network is to blame."""
        job = slot.job
        assert job is not None
        try:
            answer: Answer = ray.get(slot.call)
        except OutOfMemoryError as error:
            return self._lost_with(slot, "memory", sentence(error))
        except RayActorError as error:
            if (
                isinstance(error, ActorUnavailableError)
                or error.preempted
                or self._nodes.gone(slot.node)
            ):
                self._count_lost(error)
                self._replace(slot, f"its machine cannot be reached: {sentence(error)}")
                return None
            return self._lost_with(slot, "worker died", "its process ended")
        except RayTaskError as error:
            return self._lost_with(slot, "error", sentence(error.cause or error))
        job.tries, self._lost = job.tries + 1, 0
        self._note(slot, answer)
        slot.job = slot.call = None
        return answer.outcome

    def _note(self, slot: _Slot, answer: Answer) -> None:
        assert slot.job is not None
        state, outcome = self._board.state(slot.name), answer.outcome
        bad = isinstance(outcome, Failure)
        what = f"failed: {outcome.reason}" if isinstance(outcome, Failure) else "evaluated"
        line = f"{slot.job.network.id} {what} in {answer.seconds:.3f} s"
        self._board.log(slot.name, [*answer.lines, line])
        self._board.change(
            slot.name,
            doing="idle",
            network=None,
            done=state.done + (not bad),
            failed=state.failed + bad,
        )

    def _lost_with(self, slot: _Slot, kind: FailureKind, reason: str) -> Failure:
        """A try that cost the worker."""
        job = slot.job
        assert job is not None
        job.tries += 1
        self._board.change(slot.name, failed=self._board.state(slot.name).failed + 1)
        self._replace(slot, f"{job.network.id}: {reason}")
        return Failure(kind, reason, job.tries)

    def _overdue(self, todo: deque[_Job]) -> Iterator[tuple[_Job, Outcome]]:
        """End workers that take too long."""
        now = time.monotonic()
        for slot in [one for one in self._slots if one.job is not None]:
            if now - slot.since < self._longest_s:
                continue
            job = slot.job
            assert job is not None
            outcome = self._lost_with(slot, "timeout", f"it took longer than {self._timeout_s:g} s")
            if self._again(job, outcome):
                todo.appendleft(job)
            else:
                yield job, outcome

    def _count_lost(self, error: RayError) -> None:
        self._lost += 1
        if self._lost >= MOST_LOST:
            raise ExecutorError(
                f"{self._lost} workers in a row were lost, the last one so: {sentence(error)}; see "
                "to the cluster and resume"
            ) from error


def _cannot_start(error: RayTaskError) -> NasError:
    cause = error.cause
    reason = str(cause) if isinstance(cause, NasError) else sentence(cause or error)
    return ExecutorError(f"a worker could not be made ready: {reason}")
