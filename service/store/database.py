"""Connections and transactions, and the little in which the two databases differ."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from sqlalchemy import Connection, Double, Engine, cast, create_engine, event, func, select, text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError, OperationalError
from sqlalchemy.sql.elements import ColumnElement

from search_spaces.errors import NasError, UsageError
from service.store.turns import Turns

BUSY_MS = 30_000
_sync = getattr(os, "fdatasync", os.fsync)  # not on every system
POOL_SIZE, POOL_OVERFLOW = 10, 20
CLAIMING = 7_321_001  # any number that nothing else in the database locks on


class DatabaseAwayError(NasError):
    """The database does not answer; it may in a moment."""


class Database:
    """One database.

    On SQLite a writing transaction takes the lock at its start, since one that begins by reading
    can find at its first write that it has to be done all over. Writers wait for each other here,
    in order, rather than in SQLite, where they look again after ever longer naps and who waits
    longest may starve.
    """

    def __init__(self, url: str) -> None:
        self.engine = _engine(url)
        self.is_sqlite = self.engine.dialect.name == "sqlite"
        self._writers: AbstractContextManager[Any] = nullcontext()
        if self.is_sqlite:
            self._writers = Turns(self.engine.url.database)
        # Each statement of a reader stands for itself, so a transaction around it is only a cost:
        # two more round trips to PostgreSQL. SQLite's are begun in `_sqlite`, by writers alone.
        self._reader = self.engine
        if not self.is_sqlite:
            self._reader = self.engine.execution_options(isolation_level="AUTOCOMMIT")

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """A connection that only reads; each statement sees what is there at its time.

        Raises:
            DatabaseAwayError: when the database does not answer.
        """
        with _answering(), self._reader.connect() as connection:
            yield connection

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """A transaction that writes; all of it is kept or nothing, and is on the disk at the end.

        Raises:
            DatabaseAwayError: when the database does not answer.
        """
        with (
            _answering(),
            self.engine.connect().execution_options(writes=True) as connection,
            self._writers,
            connection.begin(),
        ):
            yield connection
        self._reach_the_disk()  # after others may write: they need not wait for this

    @contextmanager
    def claiming(self) -> Iterator[Connection]:
        """A writing transaction of which there is one at a time in the whole service."""
        with self.writing() as connection:
            if not self.is_sqlite:
                connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": CLAIMING})
            yield connection

    def _reach_the_disk(self) -> None:
        """See what was committed to SQLite's log onto the disk.

        With ``synchronous = FULL`` SQLite does the same before it lets the next writer in. Whoever
        builds on what is not there yet writes behind it into the same log, so that after a loss of
        power either both are there, or neither.

        Raises:
            DatabaseAwayError: when the disk refuses.
        """
        name = self.engine.url.database
        if not self.is_sqlite or name in (None, "", ":memory:"):
            return
        try:
            log = os.open(f"{name}-wal", os.O_RDWR)
            try:
                _sync(log)
            finally:
                os.close(log)
        except OSError as error:
            raise DatabaseAwayError(f"the disk does not take the log: {error}") from error

    def now(self) -> ColumnElement[float]:
        """The database's own clock, so that those of machines need not agree.

        SQLite's is this machine's, and its own functions tell it in milliseconds only, in which
        two jobs can be made.
        """
        if self.is_sqlite:
            return func.seconds_now(type_=Double)
        return cast(func.extract("epoch", func.clock_timestamp()), Double)

    def moment(self, connection: Connection) -> float:
        """What that clock says, without asking SQLite."""
        if self.is_sqlite:
            return time.time()
        return float(connection.execute(select(self.now())).scalar_one())

    def contains(self, column: ColumnElement[str], text: ColumnElement[str]) -> ColumnElement[bool]:
        """Whether a text is part of a column's, which may hold any character."""
        place = func.instr if self.is_sqlite else func.strpos
        return place(column, text) > 0

    def ping(self) -> None:
        """Ask for nothing, to see whether the database answers and has our tables.

        Raises:
            DatabaseAwayError: when it does not.
        """
        with self.reading() as connection:
            connection.execute(text("SELECT count(*) FROM jobs WHERE id = ''"))

    def close(self) -> None:
        """Give all connections back."""
        self.engine.dispose()
        if isinstance(self._writers, Turns):
            self._writers.close()


@contextmanager
def _answering() -> Iterator[None]:
    """Tell that the database did not answer apart from what we asked wrong."""
    try:
        yield
    except DBAPIError as error:
        if error.connection_invalidated or isinstance(error, OperationalError):
            raise DatabaseAwayError(f"the database does not answer: {error.orig}") from error
        raise


def _engine(url: str) -> Engine:
    try:
        name = make_url(url).get_backend_name()
        if name == "sqlite":
            return _sqlite(url)
        if name == "postgresql":
            return create_engine(
                url, pool_size=POOL_SIZE, max_overflow=POOL_OVERFLOW, pool_pre_ping=True
            )
    except (ArgumentError, NoSuchModuleError):
        name = "that"
    raise UsageError(
        f"{name} is no database this service can use; give postgresql://USER:PASSWORD@HOST/NAME "
        "or sqlite:///FILE"
    )


def _sqlite(url: str) -> Engine:
    engine = create_engine(
        url,
        pool_size=POOL_SIZE,
        max_overflow=POOL_OVERFLOW,
        pool_use_lifo=True,  # the connection that was used last has the most in its cache
        connect_args={"timeout": BUSY_MS / 1000, "check_same_thread": False},
    )

    @event.listens_for(engine, "connect")
    def _prepare(connection: Any, _: Any) -> None:
        connection.isolation_level = None  # we say ourselves where a transaction begins
        connection.create_function("seconds_now", 0, time.time)
        connection.execute(f"PRAGMA busy_timeout = {BUSY_MS}")
        (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
        if mode not in ("wal", "memory"):
            raise UsageError(f"SQLite cannot keep a write-ahead log at {url}; choose a local disk")
        connection.execute("PRAGMA synchronous = NORMAL")  # see `Database._reach_the_disk`
        connection.execute("PRAGMA foreign_keys = ON")

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        if connection.get_execution_options().get("writes"):
            connection.exec_driver_sql("BEGIN IMMEDIATE")

    return engine
