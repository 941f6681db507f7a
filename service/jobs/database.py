"""Connections and transactions, and the little in which the two databases differ.

Nobody waits for ever: whoever is paused or cut off in the middle of a transaction delays others by
the database's time-out at most. PostgreSQL then ends the transaction and gives its locks away.
SQLite cannot, so there others are told that the database is away until the paused process goes on
or ends; its transactions are short, and nothing is waited for inside them.
"""

from __future__ import annotations

import math
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import JSON, Connection, Double, Engine, cast, create_engine, event, func, text
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import (
    ArgumentError,
    DBAPIError,
    NoSuchModuleError,
    OperationalError,
    TimeoutError,
)
from sqlalchemy.sql.elements import ColumnElement

from search_spaces.errors import NasError, UsageError

T = TypeVar("T")

TIMEOUT_S = 5.0  # as `Settings.database_timeout_s`
POOL_SIZE, POOL_OVERFLOW = 10, 20
DISK_FULL = "53100"  # PostgreSQL's word for it
RESERVE_BYTES = 2**21  # enough to forget some jobs
RESERVE_SUFFIX = "-reserve"  # of the file beside the database


class DatabaseAwayError(NasError):
    """The database does not answer; it may in a moment."""


class DatabaseFullError(DatabaseAwayError):
    """The database has no room on its disk to write anything."""


def full_disk(whose: str) -> str:
    """What is said of a full disk to whoever wants something kept on it."""
    return f"the disk of {whose} is full; delete jobs, or make room"


class Database:
    """One database.

    On SQLite a writing transaction takes the lock at its start, since one that begins by reading
    can find at its first write that it has to be done all over. Threads of one process wait for
    each other here rather than there, where they look again after ever longer naps.

    Args:
        url: SQLAlchemy's.
        timeout_s: for which a lock, a statement, a connection or a pause within a transaction may
            take at most; then the database counts as away.
    """

    def __init__(self, url: str, timeout_s: float = TIMEOUT_S) -> None:
        self.engine = _engine(url, timeout_s)
        self.is_sqlite = self.engine.dialect.name == "sqlite"
        self._timeout_s = timeout_s
        self.reserve = Reserve(self.engine.url.database if self.is_sqlite else None)
        self._one_writer = threading.Lock()
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
            DatabaseAwayError: when the database does not answer in time.
        """
        with (
            _answering(),
            self._turn(),
            self.engine.connect().execution_options(writes=True) as connection,
            connection.begin(),
        ):
            yield connection

    def even_when_full(self, call: Callable[[], T]) -> T:
        """Do what makes room, or leads to it, with the room that is kept for that.

        Raises:
            DatabaseFullError: when that is not enough.
        """
        try:
            return call()
        except DatabaseFullError:
            self.reserve.free()
        done = call()
        self.reserve.keep()
        return done

    @contextmanager
    def _turn(self) -> Iterator[None]:
        if not self.is_sqlite:
            yield
            return
        if not self._one_writer.acquire(timeout=self._timeout_s):
            raise DatabaseAwayError("others have been writing to the database for too long")
        try:
            yield
        finally:
            self._one_writer.release()

    def now(self) -> ColumnElement[float]:
        """The database's own clock, so that those of machines need not agree.

        SQLite's is this machine's, and its own functions tell it in milliseconds only, in which
        two jobs can be made.
        """
        if self.is_sqlite:
            return func.seconds_now(type_=Double)
        return cast(func.extract("epoch", func.clock_timestamp()), Double)

    def contains(self, column: ColumnElement[str], text: ColumnElement[str]) -> ColumnElement[bool]:
        """Whether a text is part of a column's, which may hold any character."""
        place = func.instr if self.is_sqlite else func.strpos
        return place(column, text) > 0

    def number_in(self, column: ColumnElement[str], name: str) -> ColumnElement[float]:
        """A number of a JSON object that is kept as text; -1 where there is none."""
        if self.is_sqlite:
            return func.coalesce(func.json_extract(column, f"$.{name}", type_=Double), -1.0)
        return func.coalesce(cast(cast(column, JSON)[name].as_string(), Double), -1.0)

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


@contextmanager
def _answering() -> Iterator[None]:
    """Tell that the database did not answer apart from what we asked wrong."""
    try:
        yield
    except DBAPIError as error:
        if _is_full(error.orig):
            raise DatabaseFullError(f"the database's disk is full: {error.orig}") from error
        if error.connection_invalidated or isinstance(error, OperationalError):
            raise DatabaseAwayError(f"the database does not answer: {error.orig}") from error
        raise
    except TimeoutError as error:
        raise DatabaseAwayError("all connections to the database are in use") from error


def _is_full(error: BaseException | None) -> bool:
    if isinstance(error, sqlite3.Error):
        return getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL
    return getattr(error, "sqlstate", None) == DISK_FULL


def _engine(url: str, timeout_s: float) -> Engine:
    try:
        parts = make_url(url)
        name = parts.get_backend_name()
        if name == "sqlite":
            return _sqlite(url, timeout_s)
        if name == "postgresql":
            return create_engine(
                parts,
                pool_size=POOL_SIZE,
                max_overflow=POOL_OVERFLOW,
                pool_timeout=timeout_s,
                pool_pre_ping=True,
                connect_args=_patience(parts, timeout_s),
            )
    except (ArgumentError, NoSuchModuleError):
        name = "that"
    raise UsageError(
        f"{name} is no database this service can use; give postgresql://USER:PASSWORD@HOST/NAME "
        "or sqlite:///FILE"
    )


def _patience(url: URL, timeout_s: float) -> dict[str, Any]:
    """How long PostgreSQL and the network between may keep us waiting, as libpq wants it.

    A lock is waited for half as long as its statement may take, so that the reason is told. Who
    pauses inside a transaction loses it, with its locks, after the whole time.
    """
    ms, seconds = math.ceil(timeout_s * 1000), math.ceil(timeout_s)
    limits = {
        "lock_timeout": math.ceil(ms / 2),
        "statement_timeout": ms,
        "idle_in_transaction_session_timeout": ms,
    }
    given = url.query.get("options", "")
    options = [given] if isinstance(given, str) else list(given)
    return {
        "connect_timeout": max(2, seconds),  # libpq takes 1 for 2
        "tcp_user_timeout": ms,
        "keepalives": 1,
        "keepalives_idle": seconds,
        "keepalives_interval": 1,
        "keepalives_count": 3,
        "client_encoding": "utf8",  # also of a database in none, SQL_ASCII: bytes otherwise
        "options": " ".join([*(f"-c {name}={value}" for name, value in limits.items()), *options]),
    }


def _close_files(name: str | None) -> None:
    """Let nobody else read the files of a database, which SQLite makes as open as the first."""
    if name in (None, "", ":memory:") or Path(name).is_dir():
        return
    with suppress(FileNotFoundError, PermissionError):  # SQLite tells better what is wrong
        os.close(os.open(name, os.O_RDWR | os.O_CREAT, 0o600))
    for file in (name, f"{name}-wal", f"{name}-shm"):
        with suppress(FileNotFoundError, PermissionError):  # of somebody else, who closes it
            os.chmod(file, 0o600)


def _sqlite(url: str, timeout_s: float) -> Engine:
    _close_files(make_url(url).database)
    engine = create_engine(
        url,
        pool_size=POOL_SIZE,
        max_overflow=POOL_OVERFLOW,
        pool_timeout=timeout_s,
        pool_use_lifo=True,  # the connection that was used last has the most in its cache
        connect_args={"timeout": timeout_s, "check_same_thread": False},
    )

    @event.listens_for(engine, "connect")
    def _prepare(connection: Any, _: Any) -> None:
        connection.isolation_level = None  # we say ourselves where a transaction begins
        connection.create_function("seconds_now", 0, time.time)
        (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
        if mode not in ("wal", "memory"):
            raise UsageError(f"SQLite cannot keep a write-ahead log at {url}; choose a local disk")
        connection.execute("PRAGMA synchronous = FULL")  # a commit is on the disk
        connection.execute("PRAGMA foreign_keys = ON")

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        if connection.get_execution_options().get("writes"):
            connection.exec_driver_sql("BEGIN IMMEDIATE")

    return engine


class Reserve:
    """A file that takes room beside a SQLite database, which needs some even to forget a job.

    Args:
        database: its file; None or ``:memory:`` for one that is on no disk of ours.
    """

    def __init__(self, database: str | None) -> None:
        self._file = (
            None if database in (None, "", ":memory:") else Path(f"{database}{RESERVE_SUFFIX}")
        )

    def keep(self) -> None:
        """Take the room, unless it is taken or there is none."""
        if self._file is None or self._file.exists():
            return
        try:
            made = os.open(self._file, os.O_WRONLY | os.O_CREAT, 0o600)
            try:
                os.posix_fallocate(made, 0, RESERVE_BYTES)
            finally:
                os.close(made)
        except OSError:  # the disk is full now; whoever tidies tries again
            self._file.unlink(missing_ok=True)

    def free(self) -> None:
        """Give the room up."""
        if self._file is not None:
            self._file.unlink(missing_ok=True)
