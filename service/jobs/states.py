"""A job and its states.

Every change of state is one line of `TRANSITIONS`, made by the store as one compare-and-set and
one event in the same transaction. Nothing else changes a state.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from search_spaces.errors import NasError

# What is left of a run's files.
ALL, RESULTS, NOTHING = "all", "results", "nothing"


class State(StrEnum):
    """Where a job stands."""

    queued = "queued"
    running = "running"
    succeeded = "succeeded"
    failed = "failed"
    cancelled = "cancelled"

    @property
    def ended(self) -> bool:
        """Whether nothing more happens to it unless somebody asks."""
        return self not in (State.queued, State.running)


class Kind(StrEnum):
    """What a job does; all but a search work on the run of a search that has succeeded."""

    search = "search"
    retrain = "retrain"  # train one of its networks from scratch
    attention = "attention"  # look into the omni layers of one
    export = "export"  # write one as a folder that works without the run


class Outcome(StrEnum):
    """What has become of a message to a webhook."""

    waiting = "waiting"
    delivered = "delivered"
    failed = "failed"


class Action(StrEnum):
    """What changes a state."""

    claim = "claim"  # a worker takes a job that waits
    reclaim = "reclaim"  # a worker takes over from one that gave no sign of life
    release = "release"  # a worker that is asked to end, or has lost the database, gives it back
    succeed = "succeed"
    fail = "fail"
    cancel = "cancel"  # of a job that waits, or whose worker is gone
    stop = "stop"  # a worker has stopped the process of a job that was cancelled
    retry = "retry"


TRANSITIONS: Mapping[Action, tuple[frozenset[State], State]] = {
    Action.claim: (frozenset({State.queued}), State.running),
    Action.reclaim: (frozenset({State.running}), State.running),
    Action.release: (frozenset({State.running}), State.queued),
    Action.succeed: (frozenset({State.running}), State.succeeded),
    Action.fail: (frozenset({State.running}), State.failed),
    Action.cancel: (frozenset({State.queued, State.running}), State.cancelled),
    Action.stop: (frozenset({State.running}), State.cancelled),
    Action.retry: (frozenset({State.failed, State.cancelled}), State.queued),
}


class JobStateError(NasError):
    """The job is in a state in which this cannot be done."""


class LeaseLostError(NasError):
    """The job was given to another worker, or has ended: whoever holds it must let go."""


@dataclass(frozen=True, slots=True)
class Summary:
    """How far a job is, read from its events, so that lists need not read them again.

    Attributes:
        stage: the stage it is in.
        label: the stage in words.
        done: steps of the stage done.
        total: steps of the stage; 0 where it is not known.
        message: the last words about it.
        measured: networks whose quality was measured so far.
        front_size: networks on the front.
        hypervolume: of the front.
        stage_at: when the stage began; None between two stages.
        worked_s: seconds that the stages which ended have taken.
    """

    stage: str | None = None
    label: str | None = None
    done: int = 0
    total: int = 0
    message: str = ""
    measured: int = 0
    front_size: int | None = None
    hypervolume: float | None = None
    stage_at: float | None = None
    worked_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Job:
    """A request with a state.

    Attributes:
        id: sorts by the time it was made.
        kind: a search, or something about one network of a finished search.
        state: where it stands.
        owner: name of the token it came with.
        run: name of the run folder; the id of the search.
        space: name of the space.
        dataset: name of the data set.
        preset: of the search.
        title: the owner's own words.
        tags: words to find it by, sorted.
        notes: what the owner has to say about it.
        pick: the network that it is about.
        request: what was submitted.
        priority: 0 to 9, larger ones first.
        attempt: how often a worker has taken it; writes of earlier attempts are refused.
        losses: how many workers died over it or lost it.
        worker: who holds it, or held it last.
        beat_at: the worker's last sign of life.
        cancel_requested: whether the worker is asked to stop it.
        error: why it failed.
        created_at: seconds since 1970, as all times here.
        started_at: when a worker took it first.
        ended_at: when it ended.
        last_seq: number of its last event.
        events_offset: bytes of the run's ``events.jsonl`` that have become events; -1 before any.
        summary: how far it is.
    """

    id: str
    kind: Kind
    state: State
    owner: str
    run: str
    space: str
    dataset: str
    preset: str
    title: str
    tags: tuple[str, ...]
    notes: str
    pick: str
    request: Mapping[str, Any]
    priority: int
    attempt: int
    losses: int
    worker: str | None
    beat_at: float | None
    cancel_requested: bool
    error: str | None
    created_at: float
    started_at: float | None
    ended_at: float | None
    last_seq: int
    events_offset: int
    summary: Summary


@dataclass(frozen=True, slots=True)
class JobEvent:
    """One event of a job: its number within the job, when, what, in which attempt."""

    seq: int
    time: float
    attempt: int
    data: Mapping[str, Any]

    @property
    def name(self) -> str:
        """The event's type, as in `nas.run.events`; ``StateChanged`` is the store's own."""
        return str(self.data["event"])


class _Ids:
    """Ids of one process, each after the one before: also within a millisecond."""

    def __init__(self) -> None:
        self._last = 0
        self._one_at_a_time = threading.Lock()

    def draw(self) -> str:
        drawn = (time.time_ns() // 1_000_000 << 32) + secrets.randbits(32)
        with self._one_at_a_time:
            self._last = max(drawn, self._last + 1 + secrets.randbits(16))
            return f"{self._last:020x}"


_ids = _Ids()


def new_id() -> str:
    """An id that sorts by time and that nobody else draws."""
    return _ids.draw()
