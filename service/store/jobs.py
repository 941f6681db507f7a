"""What users do with jobs: submit, look, cancel, retry, delete."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, RowMapping, delete, func, insert, select, update
from sqlalchemy.exc import IntegrityError

from service.jobs import Action, Job, JobStateError, Kind, State, new_id
from service.store.changes import change, write_events
from service.store.database import Database
from service.store.listing import Filter, newest
from service.store.rows import JOB_COLUMNS, LISTED_COLUMNS, job_of, search_text
from service.store.tables import events, jobs, runs

_NEW_RUN = insert(runs)


class IdempotencyError(Exception):
    """The key was used before with another request."""


@dataclass(frozen=True, slots=True)
class Submission:
    """A new job.

    Attributes:
        kind: what it does.
        owner: whose it is.
        request: as submitted, for people to read.
        spec: of a search, as JSON; None for anything else.
        run: the run that it works on; for a search None.
        pick: network of that run.
        space: name of the space.
        dataset: name of the data set.
        preset: of the search.
        title: the submitter's own words.
        priority: 0 to 9.
        key: the idempotency key, if there is one.
    """

    kind: Kind
    owner: str
    request: dict[str, Any]
    space: str
    dataset: str
    preset: str
    spec: str | None = None
    run: str | None = None
    pick: str = ""
    title: str = ""
    priority: int = 5
    key: str | None = None

    @property
    def digest(self) -> str:
        """What an idempotency key stands for."""
        text = json.dumps([self.kind, self.run, self.request], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()


class JobStore:
    """Jobs as their owners see them."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._new_job = (
            insert(jobs)
            .values(state=State.queued, created_at=database.now(), last_seq=1)
            .returning(*JOB_COLUMNS)
        )

    def submit(self, given: Submission) -> tuple[Job, bool]:
        """Add a job.

        Returns:
            The job, and whether it is new rather than the one that the key already stood for.

        Raises:
            IdempotencyError: when the key was used with another request.
        """
        try:
            return self._insert(given), True
        except IntegrityError:
            known = self._by_key(given)
            if known is None:
                raise
            return known, False

    def _insert(self, given: Submission) -> Job:
        return self._database.write_together(lambda connection: self._write(given, connection))

    def _write(self, given: Submission, connection: Connection) -> Job:
        identity = new_id()
        run = given.run or identity
        if given.spec is not None:
            connection.execute(_NEW_RUN, {"id": run, "spec": given.spec})
        values = {
            "id": identity,
            "kind": given.kind,
            "owner": given.owner,
            "run": run,
            "space": given.space,
            "dataset": given.dataset,
            "preset": given.preset,
            "title": given.title,
            "pick": given.pick,
            "request": json.dumps(given.request),
            "priority": given.priority,
            "idempotency_key": given.key,
            "request_digest": given.digest,
            "search": search_text(given.title, given.space, given.dataset, identity),
        }
        job = job_of(connection.execute(self._new_job, values).one()._mapping)
        told = {"event": "StateChanged", "action": "submit", "before": None, "attempt": 0}
        write_events(connection, job, job.created_at, [{**told, "state": job.state}])
        return job

    def _by_key(self, given: Submission) -> Job | None:
        if given.key is None:
            return None
        with self._database.reading() as connection:
            row = connection.execute(
                select(*JOB_COLUMNS, jobs.c.request_digest).where(
                    jobs.c.owner == given.owner, jobs.c.idempotency_key == given.key
                )
            ).one_or_none()
        if row is None:
            return None
        columns = dict(row._mapping)
        if columns.pop("request_digest") != given.digest:
            raise IdempotencyError
        return job_of(columns)

    def get(self, identity: str) -> Job | None:
        """The job of that id."""
        with self._database.reading() as connection:
            row = connection.execute(
                select(*JOB_COLUMNS).where(jobs.c.id == identity)
            ).one_or_none()
        return None if row is None else job_of(row._mapping)

    def list(self, wanted: Filter, limit: int) -> Sequence[Job]:
        """The newest jobs that fit, newest first."""
        query = newest(self._database, select(*JOB_COLUMNS), wanted, limit)
        with self._database.reading() as connection:
            return [job_of(row._mapping) for row in connection.execute(query)]

    def listed(self, wanted: Filter, limit: int) -> Sequence[RowMapping]:
        """The same as rows of `LISTED_COLUMNS`, which takes a fraction of the time."""
        query = newest(self._database, select(*LISTED_COLUMNS), wanted, limit)
        with self._database.reading() as connection:
            return connection.execute(query).mappings().all()

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
