"""What workers do with jobs.

A worker holds a job by its attempt number. Every write compares it, so whoever was taken the job
away, and does not know it yet, can write nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, func, literal, select, update

from service.jobs import Action, Job, Kind, LeaseLostError, State, Summary
from service.store.changes import change, write_events
from service.store.database import Database
from service.store.retention import ALL
from service.store.rows import JOB_COLUMNS, job_of, summary_text
from service.store.tables import jobs, runs


class LeaseStore:
    """Jobs as their workers see them."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def claim(
        self, worker: str, *, stale_s: float, jobs_per_owner: int, max_losses: int
    ) -> Job | None:
        """Take the next job: one whose worker gave no sign of life, or the first that waits.

        Args:
            worker: who takes it.
            stale_s: seconds without a sign of life after which a worker counts as gone.
            jobs_per_owner: how many jobs of one owner may run at once.
            max_losses: how many workers may die over a job; then it fails.
        """
        with self._database.claiming() as connection:
            now = self._database.now()
            while (left := self._abandoned(connection, stale_s)) is not None:
                if left.losses + 1 >= max_losses:
                    why = f"{left.losses + 1} workers died over this job, so it is not tried again"
                    values = {"ended_at": now, "error": why, "losses": jobs.c.losses + 1}
                    fenced = {"attempt": jobs.c.attempt + 1}
                    change(connection, now, Action.fail, left, values | fenced, why=why)
                    continue
                values = _taken(worker, now) | {"losses": jobs.c.losses + 1}
                why = f"{left.worker} gave no sign of life"
                return change(connection, now, Action.reclaim, left, values, why=why)
            first = self._waiting(connection, jobs_per_owner)
            if first is None:
                return None
            values = _taken(worker, now)
            if first.kind is not Kind.search:  # others may have worked on its run while it waited
                values["events_offset"] = -1
            else:  # retention may have deleted what a retried search now makes anew
                made = update(runs).where(runs.c.id == first.run).values(kept=ALL)
                connection.execute(made)
            return change(connection, now, Action.claim, first, values)

    def _abandoned(self, connection: Connection, stale_s: float) -> Job | None:
        row = connection.execute(
            select(*JOB_COLUMNS)
            .where(jobs.c.state == State.running)
            .where(jobs.c.beat_at <= self._database.now() - literal(stale_s))
            .order_by(jobs.c.priority.desc(), jobs.c.id)
            .limit(1)
            .with_for_update(skip_locked=True)
        ).one_or_none()
        return None if row is None else job_of(row._mapping)

    def _waiting(self, connection: Connection, jobs_per_owner: int) -> Job | None:
        running = connection.execute(
            select(jobs.c.owner, jobs.c.run).where(jobs.c.state == State.running)
        ).all()
        owners = [owner for owner, _ in running]
        full = {owner for owner in owners if owners.count(owner) >= jobs_per_owner}
        row = connection.execute(
            select(*JOB_COLUMNS)
            .where(jobs.c.state == State.queued)
            .where(jobs.c.owner.not_in(full), jobs.c.run.not_in({run for _, run in running}))
            .order_by(jobs.c.priority.desc(), jobs.c.id)
            .limit(1)
            .with_for_update(skip_locked=True)
        ).one_or_none()
        return None if row is None else job_of(row._mapping)

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
            }
            changed = self._update(connection, job, values)
            write_events(connection, changed, changed.beat_at or 0.0, told)
            return changed

    def end(self, job: Job, action: Action, error: str | None = None) -> Job:
        """Let go of a job: succeed, fail, stop or release.

        Raises:
            LeaseLostError: when it is no longer ours.
        """
        with self._database.writing() as connection:
            now = self._database.now()
            values: dict[str, Any] = {"error": error}
            if action is not Action.release:
                values["ended_at"] = now
            changed = change(connection, now, action, job, values, why=error or "")
            if changed is None:
                raise LeaseLostError(f"{job.id} is no longer held by {job.worker}")
            return changed

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


def _taken(worker: str, now: Any) -> dict[str, Any]:
    return {
        "worker": worker,
        "attempt": jobs.c.attempt + 1,
        "beat_at": now,
        "started_at": func.coalesce(jobs.c.started_at, now),
    }
