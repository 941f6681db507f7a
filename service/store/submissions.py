"""New jobs, each once for its idempotency key, and within the quotas of its owner."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, insert, select
from sqlalchemy.exc import IntegrityError

from service.jobs import Job, JobStateError, Kind, State, Summary, new_id
from service.store.changes import write_events
from service.store.database import Database
from service.store.owners import ROW_BYTES, Quotas, register
from service.store.rows import JOB_COLUMNS, job_of, search_text
from service.store.tables import jobs, runs


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


_BY_KEY = select(*JOB_COLUMNS, jobs.c.request_digest)
_TOLD = {"event": "StateChanged", "action": "submit", "before": None, "attempt": 0}
_TRIES = 3  # somebody may be faster with the key, with the owner's first job, or deleting the run


class Submissions:
    """Adds jobs."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def submit(self, given: Submission, quotas: Quotas) -> tuple[Job, bool]:
        """Add a job.

        Returns:
            The job, and whether it is new rather than the one that the key already stood for;
            that one is told whatever the quotas are.

        Raises:
            IdempotencyError: when the key was used with another request.
            JobStateError: when the run it is to work on was deleted.
            QueueFullError: when the owner has too many jobs waiting.
            NoRoomError: when the disk or the database holds as much as it may.
        """
        for attempt in range(1, _TRIES + 1):
            try:
                with self._database.writing() as connection:
                    known = _known(connection, given)
                    if known is not None:
                        return known, False
                    quotas.check_queue(connection, given.owner)
                    quotas.check_room(connection, given.owner)
                    return _add(connection, given, self._database.moment(connection)), True
            except IntegrityError:
                if attempt == _TRIES:
                    raise
        raise AssertionError("the last try returns or raises")


def _known(connection: Connection, given: Submission) -> Job | None:
    """The job that the key already stands for."""
    if given.key is None:
        return None
    mine = jobs.c.owner == given.owner, jobs.c.idempotency_key == given.key
    row = connection.execute(_BY_KEY.where(*mine)).one_or_none()
    if row is None:
        return None
    columns = dict(row._mapping)
    if columns.pop("request_digest") != given.digest:
        raise IdempotencyError
    return job_of(columns)


def _add(connection: Connection, given: Submission, now: float) -> Job:
    job = _job(given, now)
    register(connection, given.owner)
    if given.spec is not None:
        connection.execute(insert(runs).values(id=job.run, owner=job.owner, spec=given.spec))
    elif connection.execute(select(runs.c.id).where(runs.c.id == job.run)).one_or_none() is None:
        raise JobStateError("the search that this is about was deleted just now")
    connection.execute(insert(jobs).values(**_row(job, given)))
    write_events(connection, job, now, [{**_TOLD, "state": job.state}])
    return job


def _job(given: Submission, now: float) -> Job:
    identity = new_id()
    return Job(
        id=identity,
        kind=given.kind,
        state=State.queued,
        owner=given.owner,
        run=given.run or identity,
        space=given.space,
        dataset=given.dataset,
        preset=given.preset,
        title=given.title,
        pick=given.pick,
        request=given.request,
        priority=given.priority,
        attempt=0,
        losses=0,
        worker=None,
        beat_at=None,
        cancel_requested=False,
        error=None,
        created_at=now,
        started_at=None,
        ended_at=None,
        last_seq=1,
        events_offset=-1,
        summary=Summary(),
    )


def _row(job: Job, given: Submission) -> dict[str, Any]:
    """A row of the table; the other columns have defaults."""
    names = ("id", "kind", "state", "owner", "run", "space", "dataset", "preset", "title", "pick")
    request = json.dumps(given.request)
    return {
        **{name: getattr(job, name) for name in names},
        "request": request,
        "priority": job.priority,
        "created_at": job.created_at,
        "last_seq": job.last_seq,
        "idempotency_key": given.key,
        "request_digest": given.digest,
        "search": search_text(job.title, job.space, job.dataset, job.id),
        "stored_bytes": ROW_BYTES + len(request) + len(given.spec or ""),
    }
