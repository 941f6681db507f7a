"""The database of a service under siege, as an attacker with a session of its own sees it."""

from __future__ import annotations

import os
import secrets
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import psycopg

Run = Callable[[str], list[tuple[Any, ...]]]

# A job's events are numbered without gaps, so a job that lost one is found by counting.
_TORN = (
    "SELECT id FROM jobs WHERE last_seq <> (SELECT count(*) FROM events WHERE events.job = jobs.id)"
)
_ORPHANS = "SELECT job FROM events WHERE job NOT IN (SELECT id FROM jobs)"


@dataclass(frozen=True, slots=True)
class Database:
    """One database.

    Attributes:
        home: folder of the service; SQLite's file is there.
        url: of a PostgreSQL database; None for SQLite.
    """

    home: Path
    url: str | None = None

    @property
    def name(self) -> str:
        """What it is called."""
        return "SQLite" if self.url is None else "PostgreSQL"

    @property
    def environment(self) -> dict[str, str]:
        """The settings that lead a service to it."""
        return {} if self.url is None else {"NAS_DATABASE_URL": self.url}

    @contextmanager
    def session(self) -> Iterator[Run]:
        """A session in which each statement stands for itself, unless one begins a transaction."""
        if self.url is None:
            path = self.home / "service.db"
            with closing(sqlite3.connect(path, timeout=10, isolation_level=None)) as lite:
                yield lambda statement: lite.execute(statement).fetchall()
            return
        with psycopg.connect(self.url, autocommit=True, connect_timeout=10) as session:

            def run(statement: str) -> list[tuple[Any, ...]]:
                cursor = session.execute(statement.encode())
                return cursor.fetchall() if cursor.description else []

            yield run

    @contextmanager
    def locked(self, mode: str = "EXCLUSIVE") -> Iterator[None]:
        """Keep everybody else from writing; on PostgreSQL by a lock of that mode on the jobs."""
        with self.session() as run:
            if self.url is None:
                run("BEGIN IMMEDIATE")
            else:
                run("BEGIN")
                run(f"LOCK TABLE jobs IN {mode} MODE")
            try:
                yield
            finally:
                run("ROLLBACK")

    def megabytes(self) -> float:
        """How large it is."""
        if self.url is None:
            files = self.home.glob("service.db*")
            return sum(os.stat(file).st_size for file in files) / 1e6
        with self.session() as run:
            return float(run("SELECT pg_database_size(current_database())")[0][0]) / 1e6

    def wrong(self) -> list[str]:
        """What is not whole in it."""
        with self.session() as run:
            found = [f"the events of job {row[0]} have gaps" for row in run(_TORN)]
            found += [f"there are events of {row[0]}, which is no job" for row in run(_ORPHANS)]
            if self.url is None:
                told = [row[0] for row in run("PRAGMA integrity_check")]
                found += [f"SQLite: {line}" for line in told if line != "ok"]
        return found


@contextmanager
def fresh_postgres(server: str) -> Iterator[str]:
    """The address of an empty database on a server; it is dropped at the end."""
    name = f"nas_siege_{secrets.token_hex(4)}"
    with psycopg.connect(server, autocommit=True, connect_timeout=10) as session:
        session.execute(f"CREATE DATABASE {name}".encode())
        try:
            yield urlunsplit(urlsplit(server)._replace(path=f"/{name}"))
        finally:
            session.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())
