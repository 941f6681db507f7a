"""Whose turn it is to write to a SQLite database, among all threads and processes of a machine."""

from __future__ import annotations

import fcntl
import os
import threading
from types import TracebackType

SUFFIX = "-writers"  # of the file beside the database that is locked


class Turns:
    """A lock that is given in the order in which it was asked for.

    Threads wait for one of their process, and processes for each other in the system's queue for
    a file's lock, which is given up when its holder ends in whatever way. It keeps order and no
    more: what is written is safe by SQLite's own locks.

    Args:
        database: its file; None or ``:memory:`` for one that no other process sees.
    """

    def __init__(self, database: str | None) -> None:
        self._threads = threading.Lock()
        self._path = None if database in (None, "", ":memory:") else f"{database}{SUFFIX}"
        self._file: int | None = None

    def __enter__(self) -> None:
        self._threads.acquire()
        try:
            if self._path is not None:
                if self._file is None:
                    self._file = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
                fcntl.flock(self._file, fcntl.LOCK_EX)
        except BaseException:
            self._threads.release()
            raise

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if self._file is not None:
                fcntl.flock(self._file, fcntl.LOCK_UN)
        finally:
            self._threads.release()

    def close(self) -> None:
        """Let go of the file."""
        if self._file is not None:
            os.close(self._file)
            self._file = None
