"""The files that `nas profile` writes: which may be written, and by whom."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from search_spaces.errors import DataError, UsageError


def journal_path(out: Path) -> Path:
    """Where the measurements are kept until the profile is written."""
    return Path(f"{out}.journal")


def lock_path(out: Path) -> Path:
    """What tells others that a profile is being made."""
    return Path(f"{out}.lock")


def check_new_file(option: str, path: Path) -> None:
    """Refuse a file that is there already or cannot be made.

    Args:
        option: that names it, for the message.
        path: the file.

    Raises:
        UsageError: saying what is wrong with it.
    """
    if path.is_dir():
        raise UsageError(f"{option} {path} is a folder: name a file to be written")
    if path.exists():
        raise UsageError(
            f"{option} {path} is there already: name a file to be written, or delete that one"
        )
    if not path.parent.is_dir():
        raise UsageError(f"{option} {path}: there is no folder {path.parent}; make it first")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise UsageError(
            f"{option} {path}: nothing can be written to the folder {path.parent}; name another"
        )


def check_report(report: Path, out: Path) -> None:
    """Refuse a page that would take the place of another file, the profile's own among them.

    Args:
        report: the page to be written.
        out: the profile.

    Raises:
        UsageError: saying what is wrong with it.
    """
    own = {one.resolve() for one in (out, journal_path(out), lock_path(out))}
    if report.resolve() in own:
        raise UsageError(
            f"--report {report} and --out {out} would write the same file: name another file for "
            f"the page, such as {out}.html"
        )
    check_new_file("--report", report)


@contextmanager
def claimed(out: Path) -> Iterator[None]:
    """Keep other processes from making the same profile while the context is open.

    Raises:
        UsageError: at once, when another process makes it.
        DataError: when the lock beside it cannot be made.
    """
    file = lock_path(out)
    lock = FileLock(file)
    try:
        lock.acquire(timeout=0)
    except Timeout as error:
        raise UsageError(
            f"another nas profile is making {out}: wait for it to end, or choose another --out"
        ) from error
    except OSError as error:
        raise DataError(f"cannot write {file}: {error.strerror}; choose another --out") from error
    try:
        yield
    finally:
        # Before it is let go: a process that opened it meanwhile finds it gone, and makes its own.
        file.unlink(missing_ok=True)
        lock.release()
