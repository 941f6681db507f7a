"""What the siege looks at: memory of processes (on Linux, from ``/proc``), and the database."""

from __future__ import annotations

import os
import secrets
import sqlite3
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import psycopg

PROC = Path("/proc")
LOOK_S = 0.25


def parents() -> dict[int, int]:
    """Process → the process that started it."""
    found = {}
    for folder in PROC.iterdir():
        if folder.name.isdecimal():
            with suppress(OSError):
                text = (folder / "stat").read_text(errors="replace")
                found[int(folder.name)] = int(text.rpartition(")")[2].split()[1])
    return found


def descendants(roots: Collection[int]) -> set[int]:
    """The processes and all that they have started."""
    found, known = set(roots), parents()
    while more := {one for one, parent in known.items() if parent in found} - found:
        found |= more
    return found


def command_of(process: int) -> str:
    """Its command line; empty for one that is gone."""
    with suppress(OSError):
        return (PROC / str(process) / "cmdline").read_bytes().replace(b"\0", b" ").decode()
    return ""


def megabytes(processes: Collection[int]) -> float:
    """Memory of all of them; what several share counts once."""
    return sum(_shares(processes)) / 1000


def _shares(processes: Collection[int]) -> Iterator[int]:
    for process in processes:
        with suppress(OSError):
            text = (PROC / str(process) / "smaps_rollup").read_text()
            yield from (int(line.split()[1]) for line in text.splitlines() if line[:4] == "Pss:")


class Watch:
    """Looks at the memory of processes again and again, and remembers the most.

    Args:
        roots: tells whose memory, with that of all processes they start.
    """

    def __init__(self, roots: Callable[[], Collection[int]]) -> None:
        self._roots = roots
        self._ending = threading.Event()
        self._peak = 0.0
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def begin(self) -> None:
        """Forget what was seen so far."""
        self._peak = 0.0

    @property
    def peak_mb(self) -> float:
        """The most since `begin`."""
        return max(self._peak, megabytes(descendants(self._roots())))

    def close(self) -> None:
        """Look no longer."""
        self._ending.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._ending.wait(LOOK_S):
            self._peak = max(self._peak, megabytes(descendants(self._roots())))


# -- the database, as an attacker with a session of its own sees it -----------------------------

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
                checked = [row[0] for row in run("PRAGMA integrity_check")]
                found += [f"SQLite: {line}" for line in checked if line != "ok"]
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
