"""What workers do with jobs.

A worker holds a job by its attempt number. Every write compares it, so whoever was taken the job
away, and does not know it yet, can write nothing.

Claims wait for nobody: they pass over what somebody else has locked, be it a job, an owner or a
run, so that a worker that is paused while it claims keeps no other job from being taken.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Connection, func, select, update

from service.jobs.database import Database
from service.jobs.rows import JOB_COLUMNS, change, event_text, job_of, summary_text, write_events
from service.jobs.states import ALL, Action, Job, Kind, LeaseLostError, State, Summary
from service.jobs.tables import jobs, owners, runs

LOOKS = 4  # until a worker is gone, at least: a process that was itself paused has seen nothing

_RUNNING = jobs.c.state == State.running
_SIGN = (jobs.c.attempt, jobs.c.beat_at, jobs.c.last_seq)


class LeaseStore:
    """Jobs as their workers see them.

    Args:
        database: it is asked of.
        clock: seconds that only grow; see `Signs`.
    """

    def __init__(self, database: Database, clock: Callable[[], float] = time.monotonic) -> None:
        self._database = database
        self._signs = Signs(clock)

    def look(self, stale_s: float) -> dict[str, Hashable]:
        """See which of the running jobs give signs of life; worth doing every few seconds.

        Args:
            stale_s: seconds without a sign of life after which a worker counts as gone.

        Returns:
            The jobs whose workers are gone, with their last signs.
        """
        with self._database.reading() as connection:
            rows = connection.execute(select(jobs.c.id, *_SIGN).where(_RUNNING)).all()
        return self._signs.look({row[0]: tuple(row[1:]) for row in rows}, stale_s)

    def claim(
        self,
        worker: str,
        *,
        stale_s: float,
        jobs_per_owner: int,
        max_losses: int,
        passing: Collection[str] = (),
    ) -> Job | None:
        """Take the next job: one whose worker gave no sign of life, or the first that waits.

        Of those that wait a larger priority goes first; within one, owners take turns.

        Args:
            worker: who takes it.
            stale_s: seconds without a sign of life after which a worker counts as gone.
            jobs_per_owner: how many jobs of one owner may run at once.
            max_losses: how many workers may die over a job, or lose it; then it fails.
            passing: jobs that are to wait, since their runs are still held.
        """
        gone = self.look(stale_s)
        if not gone and not self._any_waits():
            return None
        with self._database.writing() as connection:
            now = self._database.now()
            for left in _abandoned(connection, gone):
                if _lost_too_often(connection, now, left, max_losses):
                    continue
                values = _taken(worker, now) | {"losses": jobs.c.losses + 1}
                why = f"{left.worker} gave no sign of life"
                return change(connection, now, Action.reclaim, left, values, why=why)
            first = _next_waiting(connection, jobs_per_owner, passing)
            return None if first is None else _take(connection, now, first, worker)

    def _any_waits(self) -> bool:
        """Whether there is anything to claim; asked first, so that idle workers write nothing."""
        query = select(jobs.c.id).where(jobs.c.state == State.queued).limit(1)
        with self._database.reading() as connection:
            return connection.execute(query).first() is not None

    def beat(self, job: Job) -> Job:
        """Give a sign of life.

        Returns:
            The job as it is now; look at `cancel_requested`.

        Raises:
            LeaseLostError: when the job is no longer ours.
        """
        with self._database.writing() as connection:
            return self._update(connection, job, {"beat_at": self._database.now()})

    def append(
        self, job: Job, told: Sequence[Mapping[str, Any]], offset: int, summary: Summary
    ) -> Job:
        """Add what the job's process has told since `job` was read; also a sign of life.

        Args:
            job: as it was returned last.
            told: events in the form of `nas.run.events.event_to_json`, each with its ``time``.
            offset: how much of the run's events is read with them.
            summary: of all events.

        Raises:
            LeaseLostError: when the job is no longer ours.
        """
        with self._database.writing() as connection:
            now = self._database.now()
            values = {
                "beat_at": now,
                "last_seq": jobs.c.last_seq + len(told),
                "events_offset": offset,
                "summary": summary_text(summary),
                "stored_bytes": jobs.c.stored_bytes + sum(len(event_text(one)) for one in told),
            }
            changed = self._update(connection, job, values)
            write_events(connection, changed, changed.beat_at or 0.0, told)
            return changed

    def end(self, job: Job, action: Action, error: str | None = None, why: str = "") -> Job:
        """Let go of a job: succeed, fail, stop or release; `why` is for the event.

        Raises:
            LeaseLostError: when it is no longer ours.
        """
        with self._database.writing() as connection:
            now = self._database.now()
            values: dict[str, Any] = {"error": error}
            if action is not Action.release:
                values["ended_at"] = now
            changed = change(connection, now, action, job, values, why=error or why)
            if changed is None:
                raise LeaseLostError(f"{job.id} is no longer held by {job.worker}")
            return changed

    def give_back(self, job: Job, max_losses: int, why: str) -> None:
        """Let a job wait again whose process its worker has ended, unsure whether it holds it.

        Nothing is done unless that worker still holds it, in that attempt.

        Args:
            job: as it was claimed; what has come to it since is looked up.
            max_losses: as of `claim`.
            why: for the event.
        """
        with self._database.writing() as connection:
            row = connection.execute(
                select(*JOB_COLUMNS)
                .where(jobs.c.id == job.id, _RUNNING)
                .where(jobs.c.worker == job.worker, jobs.c.attempt == job.attempt)
                .with_for_update()
            ).one_or_none()
            if row is None:
                return
            now, held = self._database.now(), job_of(row._mapping)
            if not _lost_too_often(connection, now, held, max_losses):
                values = {"losses": jobs.c.losses + 1}
                change(connection, now, Action.release, held, values, why=why)

    def _update(self, connection: Connection, job: Job, values: Mapping[str, Any]) -> Job:
        row = connection.execute(
            update(jobs)
            .where(
                jobs.c.id == job.id,
                jobs.c.state == State.running,
                jobs.c.attempt == job.attempt,
                jobs.c.events_offset == job.events_offset,
            )
            .values(**values)
            .returning(*JOB_COLUMNS)
        ).one_or_none()
        if row is None:
            raise LeaseLostError(f"{job.id} is no longer held by {job.worker}")
        return job_of(row._mapping)


def _abandoned(connection: Connection, gone: Mapping[str, Hashable]) -> Iterator[Job]:
    """The jobs that are still as when their workers were last seen, and that nobody else takes."""
    if not gone:
        return
    rows = connection.execute(
        select(*JOB_COLUMNS, *(column.label(f"sign_{column.name}") for column in _SIGN))
        .where(_RUNNING, jobs.c.id.in_(gone))
        .order_by(jobs.c.priority.desc(), jobs.c.id)
        .with_for_update(skip_locked=True)
    ).all()
    for row in rows:
        columns = dict(row._mapping)
        sign = tuple(columns.pop(f"sign_{column.name}") for column in _SIGN)
        if sign == gone[columns["id"]]:
            yield job_of(columns)


def _lost_too_often(
    connection: Connection, now: ColumnElement[float], left: Job, max_losses: int
) -> bool:
    """Whether a job that was lost once more is not tried again; it has failed then."""
    losses = left.losses + 1
    if losses < max_losses:
        return False
    why = f"{losses} workers died over this job or lost it, so it is not tried again"
    values = {"ended_at": now, "error": why, "losses": jobs.c.losses + 1}
    fenced = {"attempt": jobs.c.attempt + 1}
    change(connection, now, Action.fail, left, values | fenced, why=why)
    return True


def _next_waiting(
    connection: Connection, jobs_per_owner: int, passing: Collection[str] = ()
) -> Job | None:
    """The first job that may run, its owner and its run held for this transaction.

    Whether an owner has jobs enough is asked again once it is held: by then another worker may
    have claimed one of its jobs, which the statement that found the job could not see.
    """
    passed_over = set(passing)
    found: Job | None = None
    while True:
        running = connection.execute(select(jobs.c.owner, jobs.c.run).where(_RUNNING)).all()
        all_owners = [owner for owner, _ in running]
        full = {owner for owner in all_owners if all_owners.count(owner) >= jobs_per_owner}
        busy = {run for _, run in running}
        free = found is not None and found.owner not in full and found.run not in busy
        if found is not None and free and _hold(connection, found.run):
            return found
        # An owner first, and one of its jobs after it: a statement that locks both would keep the
        # jobs of an owner whom it passes over, so that nobody else could claim them meanwhile.
        identity = connection.execute(
            select(jobs.c.id)
            .join(owners, owners.c.name == jobs.c.owner)
            .where(jobs.c.state == State.queued, jobs.c.id.not_in(passed_over))
            .where(jobs.c.owner.not_in(full), jobs.c.run.not_in(busy))
            .order_by(jobs.c.priority.desc(), owners.c.turn, jobs.c.id)
            .limit(1)
            .with_for_update(skip_locked=True, of=owners)
        ).scalar_one_or_none()
        if identity is None:
            return None
        row = connection.execute(
            select(*JOB_COLUMNS)
            .where(jobs.c.id == identity, jobs.c.state == State.queued)
            .with_for_update(skip_locked=True)
        ).one_or_none()
        found = None if row is None else job_of(row._mapping)
        passed_over.add(identity)


def _hold(connection: Connection, run: str) -> bool:
    """Lock a run's row, unless somebody deletes it or makes it smaller just now."""
    query = (
        select(runs.c.id).where(runs.c.id == run).with_for_update(skip_locked=True, key_share=True)
    )
    return connection.execute(query).one_or_none() is not None


def _take(connection: Connection, now: ColumnElement[float], first: Job, worker: str) -> Job | None:
    values = _taken(worker, now)
    if first.kind is not Kind.search:  # others may have worked on its run while it waited
        values["events_offset"] = -1
    else:  # retention may have deleted what a retried search now makes anew
        connection.execute(update(runs).where(runs.c.id == first.run).values(kept=ALL))
    after = select(func.max(owners.c.turn) + 1).scalar_subquery()
    connection.execute(update(owners).where(owners.c.name == first.owner).values(turn=after))
    return change(connection, now, Action.claim, first, values)


def _taken(worker: str, now: Any) -> dict[str, Any]:
    return {
        "worker": worker,
        "attempt": jobs.c.attempt + 1,
        "beat_at": now,
        "started_at": func.coalesce(jobs.c.started_at, now),
    }


@dataclass(frozen=True, slots=True)
class _Seen:
    sign: Hashable
    silent_s: float


class Signs:
    """The signs of life of all running jobs, as this process has seen them.

    A clock that is set back lets a dead worker look alive, and one that is set forward a living one
    dead. So each process remembers the last sign of every running job, and for how long it has
    itself seen that one unchanged, by its own monotonic clock.

    Args:
        clock: seconds that only grow.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._guard = threading.Lock()
        self._looked_at = clock()
        self._seen: dict[str, _Seen] = {}

    def look(self, found: Mapping[str, Hashable], stale_s: float) -> dict[str, Hashable]:
        """Look at the signs that the running jobs give now.

        Args:
            found: job → anything that changes whenever its worker gives a sign of life.
            stale_s: seconds of silence after which a worker counts as gone.

        Returns:
            The jobs whose workers are gone, with their last sign.
        """
        with self._guard:
            now = self._clock()
            passed_s = min(now - self._looked_at, max(stale_s, 0.0) / LOOKS)
            self._looked_at = now
            before, self._seen = self._seen, {}
            for job, sign in found.items():
                known = before.get(job)
                same = known is not None and known.sign == sign
                self._seen[job] = _Seen(sign, known.silent_s + passed_s if known and same else 0.0)
            return {job: one.sign for job, one in self._seen.items() if one.silent_s > stale_s}
