"""Everything the service remembers, in SQL: SQLite for one machine, PostgreSQL for several."""

from __future__ import annotations

import hmac
import json
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass

from sqlalchemy import ColumnElement, delete, func, insert, literal, or_, select, update

from service.auth import Role, Token, feed_key_of
from service.jobs.database import TIMEOUT_S, Database
from service.jobs.job_store import JobStore
from service.jobs.leases import LeaseStore
from service.jobs.outbox import Outbox
from service.jobs.rows import event_of, summary_text
from service.jobs.states import ALL, NOTHING, RESULTS, JobEvent, Kind, State, Summary
from service.jobs.tables import events, jobs, runs, tokens, workers

_TOKEN_COLUMNS = [
    tokens.c[name] for name in ("id", "name", "role", "created_at", "expires_at", "revoked_at")
]
# A run may be made smaller from which states of its search, and from what is left of it; from the
# same again, should a process have been killed between saying so and doing it.
_MAY_SHRINK = {
    NOTHING: ((State.failed, State.cancelled), (ALL, NOTHING)),
    RESULTS: ((State.succeeded,), (ALL, RESULTS)),
}


@dataclass(frozen=True)
class Store:
    """The parts of the store over one database.

    Attributes:
        database: connections and transactions.
        jobs: what users do with jobs.
        leases: what workers do with jobs.
        events: what happened to jobs.
        tokens: who may use the service.
        workers: who does the work.
        retention: how much space the runs take.
        outbox: webhooks and what is to be delivered to them.
    """

    database: Database
    jobs: JobStore
    leases: LeaseStore
    events: EventStore
    tokens: TokenStore
    workers: WorkerStore
    retention: RetentionStore
    outbox: Outbox


def open_store(
    url: str, timeout_s: float = TIMEOUT_S, clock: Callable[[], float] = time.monotonic
) -> Store:
    """Open the database; its tables are made by `service.jobs.migrate.upgrade`.

    Args:
        url: SQLAlchemy's.
        timeout_s: seconds after which a database that does not answer counts as away.
        clock: seconds that only grow, by which signs of life are watched.

    Raises:
        UsageError: for a URL that names no database we can use.
    """
    database = Database(url, timeout_s)
    return Store(
        database,
        JobStore(database),
        LeaseStore(database, clock),
        EventStore(database),
        TokenStore(database),
        WorkerStore(database),
        RetentionStore(database),
        Outbox(database),
    )


class EventStore:
    """The event logs of all jobs."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def after(self, job: str, seq: int, limit: int) -> Sequence[JobEvent]:
        """The events of a job that come after number `seq`, in order."""
        query = (
            select(events.c.seq, events.c.time, events.c.attempt, events.c.data)
            .where(events.c.job == job, events.c.seq > seq)
            .order_by(events.c.seq)
            .limit(limit)
        )
        with self._database.reading() as connection:
            return [event_of(row._mapping) for row in connection.execute(query)]


class TokenStore:
    """Tokens, of which only digests are kept."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, token: Token, digest: str) -> None:
        """Keep a new token."""
        with self._database.writing() as connection:
            connection.execute(insert(tokens).values(digest=digest, **asdict(token)))

    def valid(self, digest: str) -> Token | None:
        """The token with that digest, unless it has expired or was revoked."""
        return self._good(tokens.c.digest == digest)

    def good(self, identity: str) -> bool:
        """Whether the token of that id has neither expired nor been revoked."""
        return self._good(tokens.c.id == identity) is not None

    def feed_key(self, identity: str) -> str:
        """What opens the feed of the token of that id."""
        query = select(tokens.c.digest).where(tokens.c.id == identity)
        with self._database.reading() as connection:
            return feed_key_of(connection.execute(query).scalar_one())

    def of_feed(self, identity: str, key: str) -> Token | None:
        """The token whose feed that key opens, unless it has expired or was revoked."""
        token = self._good(tokens.c.id == identity)
        good = token is not None and hmac.compare_digest(self.feed_key(identity), key)
        return token if good else None

    def _good(self, which: ColumnElement[bool]) -> Token | None:
        unexpired = or_(tokens.c.expires_at.is_(None), tokens.c.expires_at > self._database.now())
        query = select(*_TOKEN_COLUMNS).where(which, tokens.c.revoked_at.is_(None), unexpired)
        with self._database.reading() as connection:
            row = connection.execute(query).one_or_none()
        return None if row is None else _token_of(row)

    def list(self) -> Sequence[Token]:
        """All tokens, oldest first."""
        query = select(*_TOKEN_COLUMNS).order_by(tokens.c.created_at, tokens.c.id)
        with self._database.reading() as connection:
            return [_token_of(row) for row in connection.execute(query)]

    def count(self) -> int:
        """How many tokens there are or were."""
        with self._database.reading() as connection:
            return int(connection.execute(select(func.count()).select_from(tokens)).scalar_one())

    def revoke(self, identity: str) -> bool:
        """Make a token worthless; False when there is none of that id that was not already."""
        with self._database.writing() as connection:
            done = connection.execute(
                update(tokens)
                .where(tokens.c.id == identity, tokens.c.revoked_at.is_(None))
                .values(revoked_at=self._database.now())
                .returning(tokens.c.id)
            ).one_or_none()
            return done is not None


def _token_of(row: object) -> Token:
    values = dict(row._mapping)  # type: ignore[attr-defined]
    return Token(**{**values, "role": Role(values["role"])})


@dataclass(frozen=True, slots=True)
class WorkerState:
    """A worker: its name, since when, its last sign of life, its job, and its machine."""

    name: str
    started_at: float
    beat_at: float
    job: str | None
    host: str


class WorkerStore:
    """The workers of the service."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def beat(self, name: str, job: str | None, host: str = "") -> None:
        """Say that a worker lives, what it is at, and on which machine."""
        now = self._database.now()
        with self._database.writing() as connection:
            known = connection.execute(
                update(workers)
                .where(workers.c.name == name)
                .values(beat_at=now, job=job, host=host)
                .returning(workers.c.name)
            ).one_or_none()
            if known is None:
                connection.execute(
                    insert(workers).values(
                        name=name, started_at=now, beat_at=now, job=job, host=host
                    )
                )

    def leave(self, name: str) -> None:
        """Say that a worker ends."""
        with self._database.writing() as connection:
            connection.execute(delete(workers).where(workers.c.name == name))

    def alive(self, stale_s: float) -> Sequence[WorkerState]:
        """The workers that gave a sign of life lately; one of the future is of a clock set back."""
        now = self._database.now()
        query = select(workers).where(
            workers.c.beat_at > now - literal(stale_s), workers.c.beat_at < now + literal(stale_s)
        )
        with self._database.reading() as connection:
            return [WorkerState(**row._mapping) for row in connection.execute(query)]


class RetentionStore:
    """The sizes of the runs."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def total(self, owner: str | None = None) -> int:
        """Bytes of all runs, or of those of one owner."""
        query = select(func.sum(runs.c.disk_bytes))
        if owner is not None:
            query = query.where(runs.c.owner == owner)
        with self._database.reading() as connection:
            return int(connection.execute(query).scalar_one() or 0)

    def owners(self) -> Sequence[str]:
        """Whoever has runs."""
        with self._database.reading() as connection:
            return list(connection.execute(select(runs.c.owner).distinct()).scalars())

    def note(self, run: str, disk_bytes: int) -> None:
        """Keep how much space a run takes."""
        with self._database.writing() as connection:
            connection.execute(update(runs).where(runs.c.id == run).values(disk_bytes=disk_bytes))

    def kept(self, run: str) -> str:
        """What is left of a run's files: ``all``, ``results`` or ``nothing``."""
        with self._database.reading() as connection:
            return str(connection.execute(select(runs.c.kept).where(runs.c.id == run)).scalar_one())

    def known(self, names: Collection[str]) -> set[str]:
        """Those of the names that are runs."""
        with self._database.reading() as connection:
            return set(connection.execute(select(runs.c.id).where(runs.c.id.in_(names))).scalars())

    def candidates(self, level: str, owner: str | None = None) -> Sequence[tuple[str, str]]:
        """Runs that may be made smaller to that level, those that ended first before others.

        Returns:
            Each run with what is left of its files so far.
        """
        states, before = _MAY_SHRINK[level]
        query = (
            select(jobs.c.run, runs.c.kept)
            .join(runs, runs.c.id == jobs.c.run)
            .where(jobs.c.kind == Kind.search, jobs.c.state.in_(states))
            .where(runs.c.kept.in_(before), runs.c.disk_bytes > 0)
            .order_by(jobs.c.ended_at)
        )
        if owner is not None:
            query = query.where(runs.c.owner == owner)
        with self._database.reading() as connection:
            return [(run, kept) for run, kept in connection.execute(query)]

    def shrink(self, run: str, level: str) -> bool:
        """Say that a run is smaller from now on, before its files are moved away.

        Whoever says so holds the run's lock until they are: a job that is claimed meanwhile waits.

        Returns:
            False when one of its jobs waits or runs by now: then nothing may be deleted.
        """
        states, before = _MAY_SHRINK[level]
        with self._database.writing() as connection:
            held = select(runs.c.id).where(runs.c.id == run).with_for_update(key_share=True)
            connection.execute(held)
            mine = select(jobs.c.id, jobs.c.kind, jobs.c.state, jobs.c.summary)
            mine = mine.where(jobs.c.run == run).order_by(jobs.c.id)
            rows = connection.execute(mine.with_for_update()).all()
            fits = all(State(row.state).ended for row in rows) and any(
                row.kind == Kind.search and State(row.state) in states for row in rows
            )
            if fits:
                connection.execute(
                    update(runs).where(runs.c.id == run, runs.c.kept.in_(before)).values(kept=level)
                )
                for row in rows if level == NOTHING else ():  # which are told anew
                    values = {"events_offset": 0, "summary": _begun_anew(row.summary)}
                    connection.execute(update(jobs).where(jobs.c.id == row.id).values(**values))
            return fits


def _begun_anew(summary: str) -> str:
    """The progress of a job without files, of which only the time is left that they have cost."""
    return summary_text(Summary(worked_s=Summary(**json.loads(summary)).worked_s))
