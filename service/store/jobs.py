"""What users do with jobs: submit, look, cancel, retry, delete."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import bindparam, delete, func, select, update

from service.jobs import Action, Job, JobStateError, Kind, State
from service.store.changes import change, write_events
from service.store.database import Database
from service.store.listing import Filter, Listing
from service.store.prepared import Prepared, Row
from service.store.rows import JOB_COLUMNS, LISTED_COLUMNS, SHORT_COLUMNS, job_of
from service.store.submissions import Submission, Submissions
from service.store.tables import events, jobs, runs


class JobStore:
    """Jobs as their owners see them."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._submissions = Submissions(database)
        self._by_id = Prepared(
            database, select(*JOB_COLUMNS).where(jobs.c.id == bindparam("identity"))
        )
        self._whole = Listing(database, SHORT_COLUMNS)
        self._short = Listing(database, LISTED_COLUMNS)

    def submit(self, given: Submission) -> tuple[Job, bool]:
        """Add a job; see `Submissions.submit`."""
        return self._submissions.submit(given)

    def get(self, identity: str) -> Job | None:
        """The job of that id."""
        rows = self._by_id.rows(identity=identity)
        return job_of(rows[0]) if rows else None

    def list(self, wanted: Filter, limit: int) -> Sequence[Job]:
        """The newest jobs that fit, newest first; their moments to the microsecond.

        What was requested is told of exports alone.
        """
        return [job_of(row) for row in self._whole.newest(wanted, limit)]

    def listed(self, wanted: Filter, limit: int) -> Sequence[Row]:
        """The same as rows of `LISTED_COLUMNS`, which takes a fraction of the time."""
        return self._short.newest(wanted, limit)

    def counts(self, owner: str | None = None) -> dict[State, int]:
        """How many jobs are in each state."""
        query = select(jobs.c.state, func.count())
        if owner is not None:
            query = query.where(jobs.c.owner == owner)
        with self._database.reading() as connection:
            found = {
                State(state): n for state, n in connection.execute(query.group_by(jobs.c.state))
            }
        return {state: found.get(state, 0) for state in State}

    def spec(self, run: str) -> str:
        """The spec of a run, as JSON."""
        with self._database.reading() as connection:
            return str(connection.execute(select(runs.c.spec).where(runs.c.id == run)).scalar_one())

    def cancel(self, identity: str, stale_s: float) -> Job | None:
        """Cancel a job: at once when it waits or its worker is gone, else ask the worker.

        Returns:
            The job as it is now, or None when there is none.

        Raises:
            JobStateError: when it has ended otherwise.
        """
        with self._database.writing() as connection:
            now = self._database.now()
            row = connection.execute(
                select(*JOB_COLUMNS, now.label("now"))
                .where(jobs.c.id == identity)
                .with_for_update()
            ).one_or_none()
            if row is None:
                return None
            columns = dict(row._mapping)
            moment = columns.pop("now")
            job = job_of(columns)
            if job.state is State.cancelled:
                return job
            if job.state.ended:
                raise JobStateError(f"the job has {job.state} and cannot be cancelled any more")
            gone = job.beat_at is None or job.beat_at < moment - stale_s
            if job.state is State.queued or gone:
                values = {"ended_at": now, "attempt": jobs.c.attempt + 1, "cancel_requested": True}
                return change(connection, now, Action.cancel, job, values)
            if job.cancel_requested:
                return job
            asked = connection.execute(
                update(jobs)
                .where(jobs.c.id == identity)
                .values(cancel_requested=True, last_seq=jobs.c.last_seq + 1)
                .returning(*JOB_COLUMNS)
            ).one()
            job = job_of(asked._mapping)
            write_events(connection, job, moment, [{"event": "CancelRequested"}])
            return job

    def retry(self, identity: str) -> Job | None:
        """Let a failed or cancelled job wait again; it goes on where it stopped.

        Raises:
            JobStateError: when it is in another state.
        """
        with self._database.writing() as connection:
            job = _locked(connection, identity)
            if job is None:
                return None
            if job.state not in (State.failed, State.cancelled):
                raise JobStateError(
                    f"the job is {job.state}; only failed and cancelled jobs can be retried"
                )
            values = {"cancel_requested": False, "error": None, "ended_at": None, "losses": 0}
            return change(connection, self._database.now(), Action.retry, job, values)

    def delete(self, identity: str) -> Job | None:
        """Delete an ended job with its events, and with a search the jobs on its run.

        Raises:
            JobStateError: when it, or another job on its run, has not ended.
        """
        with self._database.claiming() as connection:
            job = _locked(connection, identity)
            if job is None:
                return None
            mine = jobs.c.run == job.run if job.kind is Kind.search else jobs.c.id == identity
            rows = connection.execute(select(jobs.c.id, jobs.c.state).where(mine)).all()
            for other, state in rows:
                if not State(state).ended:
                    name = "the job" if other == identity else f"its job {other}"
                    raise JobStateError(f"{name} is {state}; cancel it first")
            connection.execute(delete(events).where(events.c.job.in_([one for one, _ in rows])))
            connection.execute(delete(jobs).where(mine))
            if job.kind is Kind.search:
                connection.execute(delete(runs).where(runs.c.id == job.run))
            return job


def _locked(connection: Any, identity: str) -> Job | None:
    row = connection.execute(
        select(*JOB_COLUMNS).where(jobs.c.id == identity).with_for_update()
    ).one_or_none()
    return None if row is None else job_of(row._mapping)
