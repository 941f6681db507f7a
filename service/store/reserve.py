"""Room on the disk that is given up when there is no other: one has to write to delete."""

from __future__ import annotations

import os
from pathlib import Path

SIZE = 2**21  # enough to forget some jobs
SUFFIX = "-reserve"  # of the file beside the database


class Reserve:
    """A file that takes room beside a SQLite database, which needs some even to forget a job.

    Args:
        database: its file; None or ``:memory:`` for one that is on no disk of ours.
    """

    def __init__(self, database: str | None) -> None:
        self._file = None if database in (None, "", ":memory:") else Path(f"{database}{SUFFIX}")

    def keep(self) -> None:
        """Take the room, unless it is taken or there is none."""
        if self._file is None or self._file.exists():
            return
        try:
            made = os.open(self._file, os.O_WRONLY | os.O_CREAT, 0o600)
            try:
                os.posix_fallocate(made, 0, SIZE)
            finally:
                os.close(made)
        except OSError:  # the disk is full now; whoever tidies tries again
            self._file.unlink(missing_ok=True)

    def free(self) -> None:
        """Give the room up."""
        if self._file is not None:
            self._file.unlink(missing_ok=True)
