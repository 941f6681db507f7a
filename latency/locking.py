"""The cache folder, and locks between the processes that share it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import platformdirs
from filelock import FileLock, Timeout

from search_spaces.errors import DataError, NasError
from search_spaces.turns import waiting

LOCK_TIMEOUT_S = 1800.0


def cache_dir() -> Path:
    """The environment variable ``NAS_CACHE_DIR``, or else the user's cache folder."""
    given = os.environ.get("NAS_CACHE_DIR")
    return Path(given or platformdirs.user_cache_dir("nas-service", appauthor=False))


def write_lock(path: Path) -> Path:
    """Held by who changes a file."""
    return path.with_name(path.name + ".lock")


@contextmanager
def file_lock(path: Path, timeout_s: float = LOCK_TIMEOUT_S) -> Iterator[None]:
    """Hold the lock file at `path` while the context is open.

    What this process computes on a device rests meanwhile: who has the lock may be timing there.

    Raises:
        NasError: when another process still holds it after `timeout_s` seconds.
        DataError: when the file cannot be made.
    """
    with waiting(), _acquired(path, timeout_s):
        yield


@contextmanager
def _acquired(path: Path, timeout_s: float) -> Iterator[None]:
    lock = FileLock(path, timeout=timeout_s)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except Timeout as error:
        raise NasError(
            f"another process has held {path} for {timeout_s:g} seconds; "
            "wait for it to end, or end it, and start again"
        ) from error
    except OSError as error:
        raise DataError(
            f"cannot write {path}: {error.strerror}; "
            "the environment variable NAS_CACHE_DIR names another cache folder"
        ) from error
    try:
        yield
    finally:
        lock.release()
