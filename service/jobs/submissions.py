"""New jobs, each once for its idempotency key, and within the quotas of its owner."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Connection, func, insert, or_, select
from sqlalchemy.exc import IntegrityError

from search_spaces.errors import NasError
from service.jobs.database import Database
from service.jobs.rows import JOB_COLUMNS, job_of, search_text, write_events
from service.jobs.states import ALL, Job, JobStateError, Kind, State, new_id
from service.jobs.tables import jobs, owners, runs
from service.settings import GIB, MIB

ROW_BYTES = 1000  # of a job besides its request and spec, roughly


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
        title: the owner's own words.
        tags: words to find it by.
        notes: what the owner has to say about it.
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
    tags: tuple[str, ...] = ()
    notes: str = ""
    priority: int = 5
    key: str | None = None

    @property
    def digest(self) -> str:
        """What an idempotency key stands for."""
        text = json.dumps([self.kind, self.run, self.request], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()


class QueueFullError(NasError):
    """An owner has as many jobs waiting as one may have."""


class NoRoomError(NasError):
    """The disk or the database holds as much as it may, of one owner or of all."""


@dataclass(frozen=True, slots=True)
class Quotas:
    """How much there may be; None means any number.

    Attributes:
        queued: jobs of one owner that wait.
        database_bytes: of one owner's requests, specs and events.
        owner_disk_bytes: of one owner's runs.
        disk_bytes: of all runs.
    """

    queued: int | None = None
    database_bytes: int | None = None
    owner_disk_bytes: int | None = None
    disk_bytes: int | None = None

    def check_queue(self, connection: Connection, owner: str) -> None:
        """See that one more of the owner's jobs may wait.

        Requests that come at the very same moment may both be let in.

        Raises:
            QueueFullError: when it may not.
        """
        if self.queued is None:
            return
        query = select(func.count()).where(jobs.c.owner == owner, jobs.c.state == State.queued)
        waiting = connection.execute(query).scalar_one()
        if waiting >= self.queued:
            raise QueueFullError(
                f"{waiting} jobs of {owner} wait already, and {self.queued} are the most; wait "
                "until some have begun, or cancel some"
            )

    def check_room(self, connection: Connection, owner: str) -> None:
        """See that there is room for one more of the owner's jobs.

        Runs that a worker will make smaller as soon as it looks (`service.jobs.retention`) do not
        count.

        Raises:
            NoRoomError: when there is none.
        """
        stored = select(func.sum(jobs.c.stored_bytes)).where(jobs.c.owner == owner)
        total = select(func.sum(runs.c.disk_bytes))
        mine = total.where(runs.c.owner == owner)
        going = select(jobs.c.run).where(jobs.c.state.in_((State.queued, State.running)))
        stays = or_(runs.c.kept != ALL, runs.c.id.in_(going))  # asked late: it reads the specs
        left = "GiB and nothing more can be deleted by itself"
        for most, used, what, unit, where in (
            (self.database_bytes, [stored], f"jobs of {owner}", MIB, "MiB of the database"),
            (self.owner_disk_bytes, [mine, mine.where(stays)], f"runs of {owner}", GIB, left),
            (self.disk_bytes, [total, total.where(stays)], "runs", GIB, left),
        ):
            if most is not None and all(
                (connection.execute(one).scalar_one() or 0) >= most for one in used
            ):
                raise NoRoomError(
                    f"the {what} fill their {most / unit:.4g} {where}; delete finished jobs, or "
                    "ask an administrator for a larger quota"
                )


_BY_KEY = select(*JOB_COLUMNS, jobs.c.request_digest)
_TOLD = {"event": "StateChanged", "action": "submit", "before": None, "attempt": 0}
_TRIES = 3  # somebody may be faster with the key, with the owner's first job, or deleting the run


def submit(database: Database, given: Submission, quotas: Quotas) -> tuple[Job, bool]:
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
            with database.writing() as connection:
                known = _known(connection, given)
                if known is not None:
                    return known, False
                quotas.check_queue(connection, given.owner)
                quotas.check_room(connection, given.owner)
                return _add(connection, given, database.now()), True
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


def _add(connection: Connection, given: Submission, now: ColumnElement[float]) -> Job:
    identity = new_id()
    run = given.run or identity
    register(connection, given.owner)
    if given.spec is not None:
        connection.execute(insert(runs).values(id=run, owner=given.owner, spec=given.spec))
    elif connection.execute(select(runs.c.id).where(runs.c.id == run)).one_or_none() is None:
        raise JobStateError("the search that this is about was deleted just now")
    request = json.dumps(given.request)
    row = connection.execute(
        insert(jobs)
        .values(
            id=identity,
            kind=given.kind,
            state=State.queued,
            owner=given.owner,
            run=run,
            space=given.space,
            dataset=given.dataset,
            preset=given.preset,
            title=given.title,
            tags=json.dumps(given.tags),
            notes=given.notes,
            pick=given.pick,
            request=request,
            priority=given.priority,
            created_at=now,
            last_seq=1,
            idempotency_key=given.key,
            request_digest=given.digest,
            search=search_text(given.title, given.space, given.dataset, identity, *given.tags),
            stored_bytes=ROW_BYTES + len(request) + len(given.spec or "") + len(given.notes),
        )
        .returning(*JOB_COLUMNS)
    ).one()
    job = job_of(row._mapping)
    write_events(connection, job, job.created_at, [{**_TOLD, "state": job.state}])
    return job


def register(connection: Connection, owner: str) -> None:
    """See that an owner has a row; who has never had a turn is first in line."""
    query = select(owners.c.name).where(owners.c.name == owner)
    if connection.execute(query).one_or_none() is None:
        connection.execute(insert(owners).values(name=owner))
