"""A run folder in the hands of one attempt at a job, which lets go when there is a newer one.

The run's lock keeps two processes from writing one folder at once. This is for the process that
holds it although its worker is gone, or frozen: each process leaves a mark of its attempt in the
folder before it asks for the lock, and whoever finds the mark of a newer attempt than its own ends.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self

from nas.run.events import Event
from nas.run.folder import RunFolder
from nas.run.layout import LOCK_FILE, SPEC_FILE
from search_spaces.errors import RunConflictError

MARKS = ".attempts"


class FencedFolder(RunFolder):
    """A run folder that only the newest attempt at a job writes to."""

    job: str
    attempt: int

    @classmethod
    def of(cls, path: Path, job: str, attempt: int) -> Self:
        """Open a run for an attempt at a job, and say so to earlier ones.

        Raises:
            RunConflictError: when the folder is just being moved away, or a newer attempt is there.
        """
        if not (path / SPEC_FILE).is_file():
            raise RunConflictError(f"{path} is not there any more")
        folder = cls(path, cls.open(path).spec)
        folder.job, folder.attempt = job, attempt
        marks = path / MARKS
        try:
            marks.mkdir(exist_ok=True)
            (marks / _mark(job, attempt)).touch()
        except FileNotFoundError:
            raise RunConflictError(f"{path} is not there any more") from None
        folder.check()
        return folder

    def check(self) -> None:
        """See that there is no newer attempt.

        Raises:
            RunConflictError: when there is.
        """
        newest = max(_attempts(self.path, self.job), default=0)
        if newest > self.attempt:
            raise RunConflictError(
                f"attempt {newest} at {self.job} goes on with this run; attempt {self.attempt} ends"
            )

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the run for this process and attempt.

        Raises:
            RunConflictError: when another process works on it, or a newer attempt is there, or it
                was moved away while the lock was asked for.
        """
        with super().locked():
            if not all((self.path / name).is_file() for name in (SPEC_FILE, LOCK_FILE)):
                raise RunConflictError(f"{self.path} is not there any more")
            self.check()
            for earlier in _attempts(self.path, self.job):
                if earlier < self.attempt:
                    (self.path / MARKS / _mark(self.job, earlier)).unlink(missing_ok=True)
            yield

    def append(self, name: str, values: Iterable[Mapping[str, Any]]) -> None:
        """As `RunFolder.append`, in the newest attempt alone."""
        self.check()
        super().append(name, values)

    def write_json(self, name: str, value: Any) -> None:
        """As `RunFolder.write_json`, in the newest attempt alone."""
        self.check()
        super().write_json(name, value)

    def begin(self, stage: str, digest: str) -> None:
        """As `RunFolder.begin`, in the newest attempt alone."""
        self.check()
        super().begin(stage, digest)

    def finish(self, stage: str, digest: str, outputs: Iterable[str], seconds: float) -> None:
        """As `RunFolder.finish`, in the newest attempt alone."""
        self.check()
        super().finish(stage, digest, outputs, seconds)

    def log(self, event: Event) -> None:
        """As `RunFolder.log`, in the newest attempt alone."""
        self.check()
        super().log(event)


def _mark(job: str, attempt: int) -> str:
    return f"{job}-{attempt}"


def _attempts(path: Path, job: str) -> list[int]:
    """The attempts at a job that have left a mark."""
    with suppress(FileNotFoundError):
        found = (name.rpartition("-") for name in os.listdir(path / MARKS))
        return [int(number) for one, _, number in found if one == job and number.isdecimal()]
    return []
