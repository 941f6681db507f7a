"""New jobs: several at once in one transaction, each once for its idempotency key."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from sqlalchemy import Connection, Table, TextClause, insert, select, text
from sqlalchemy.exc import IntegrityError

from service.jobs import Job, JobStateError, Kind, State, Summary, new_id
from service.store.changes import event_rows
from service.store.database import Database
from service.store.group_commit import GroupCommit
from service.store.rows import JOB_COLUMNS, job_of, search_text
from service.store.tables import events, jobs, runs


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


Outcome = tuple[Job, bool] | Exception
_BY_KEY = select(*JOB_COLUMNS, jobs.c.request_digest)
_TOLD = {"event": "StateChanged", "action": "submit", "before": None, "attempt": 0}


class Submissions:
    """Adds jobs."""

    def __init__(self, database: Database) -> None:
        self._database = database
        # PostgreSQL sees the commits of several writers to the disk together by itself.
        self._together = GroupCommit(database.writing, self._write) if database.is_sqlite else None

    def submit(self, given: Submission) -> tuple[Job, bool]:
        """Add a job.

        Returns:
            The job, and whether it is new rather than the one that the key already stood for.

        Raises:
            IdempotencyError: when the key was used with another request.
            JobStateError: when the run it is to work on was deleted.
        """
        outcome = self._alone(given) if self._together is None else self._together.do(given)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def _alone(self, given: Submission) -> Outcome:
        for attempt in (1, 2):
            try:
                with self._database.writing() as connection:
                    return self._write(connection, [given])[0]
            except IntegrityError:  # somebody was faster: with that key, or deleting the run
                if attempt == 2:
                    raise
        raise AssertionError("a loop of two ends in the second")

    def _write(self, connection: Connection, wanted: Sequence[Submission]) -> list[Outcome]:
        """Write all that can be written; the others are told why not."""
        batch = _Batch(connection, self._database.moment(connection))
        outcomes = [batch.add(given) for given in wanted]
        batch.write(at_once=self._database.is_sqlite)
        return outcomes


class _Batch:
    """Rows to be written together."""

    def __init__(self, connection: Connection, now: float) -> None:
        self._connection = connection
        self._now = now
        self._keys: dict[tuple[str, str], tuple[Job, str]] = {}
        self._runs: list[dict[str, Any]] = []
        self._jobs: list[dict[str, Any]] = []
        self._events: list[dict[str, Any]] = []

    def add(self, given: Submission) -> Outcome:
        """The job that is to be written, or the one that is there; or why there is none."""
        known = self._known(given)
        if known is not None:
            job, digest = known
            return (job, False) if digest == given.digest else IdempotencyError()
        if given.run is not None and not self._has_run(given.run):
            return JobStateError("the search that this is about was deleted just now")
        job = self._job(given)
        if given.spec is not None:
            self._runs.append({"id": job.run, "spec": given.spec})
        self._jobs.append(_row(job, given))
        self._events += event_rows(job, self._now, [{**_TOLD, "state": job.state}])
        if given.key is not None:
            self._keys[given.owner, given.key] = job, given.digest
        return job, True

    def write(self, *, at_once: bool) -> None:
        """Write the rows.

        Args:
            at_once: as JSON in one step for each table, as SQLite can; see `Prepared`.
        """
        for table, rows in ((runs, self._runs), (jobs, self._jobs), (events, self._events)):
            if rows and at_once:
                values = {"rows": json.dumps([list(row.values()) for row in rows])}
                statement = _from_json(table, tuple(rows[0]))
                self._connection.execute(statement, values | {"now": self._now})
            elif rows:
                self._connection.execute(insert(table), rows)

    def _known(self, given: Submission) -> tuple[Job, str] | None:
        if given.key is None:
            return None
        if (given.owner, given.key) in self._keys:
            return self._keys[given.owner, given.key]
        mine = jobs.c.owner == given.owner, jobs.c.idempotency_key == given.key
        row = self._connection.execute(_BY_KEY.where(*mine)).one_or_none()
        if row is None:
            return None
        columns = dict(row._mapping)
        digest = columns.pop("request_digest")
        return job_of(columns), digest

    def _has_run(self, run: str) -> bool:
        query = select(runs.c.id).where(runs.c.id == run)
        return self._connection.execute(query).one_or_none() is not None

    def _job(self, given: Submission) -> Job:
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
            created_at=self._now,
            started_at=None,
            ended_at=None,
            last_seq=1,
            events_offset=-1,
            summary=Summary(),
        )


@cache
def _from_json(table: Table, names: tuple[str, ...]) -> TextClause:
    """Insert rows that come as JSON, but for the moment, which it would round."""
    moments = ("created_at", "time")
    values = [
        ":now" if name in moments else f"json_extract(value, '$[{place}]')"
        for place, name in enumerate(names)
    ]
    columns = ", ".join(names)
    return text(
        f"INSERT INTO {table.name} ({columns}) SELECT {', '.join(values)} FROM json_each(:rows)"
    )


def _row(job: Job, given: Submission) -> dict[str, Any]:
    """A row of the table; the other columns have defaults."""
    names = ("id", "kind", "state", "owner", "run", "space", "dataset", "preset", "title", "pick")
    return {
        **{name: getattr(job, name) for name in names},
        "request": json.dumps(given.request),
        "priority": job.priority,
        "created_at": job.created_at,
        "last_seq": job.last_seq,
        "idempotency_key": given.key,
        "request_digest": given.digest,
        "search": search_text(job.title, job.space, job.dataset, job.id),
    }
