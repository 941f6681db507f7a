"""The lock files of the devices of a machine; see `search_spaces.turns` for what they mean."""

from __future__ import annotations

import fcntl
import os
import stat
import tempfile
from pathlib import Path

from search_spaces.errors import DataError


def lock_dir() -> Path:
    """The folder of the lock files: ``NAS_LOCK_DIR``, or else one of this machine and user.

    Raises:
        DataError: when it cannot be made, or belongs to somebody else.
    """
    given = os.environ.get("NAS_LOCK_DIR")
    path = Path(given or Path(tempfile.gettempdir(), f"nas-{os.getuid()}"))
    try:
        path.mkdir(mode=0o700, parents=bool(given), exist_ok=True)
        about = path.lstat()
    except OSError as error:
        raise _unusable(path, error) from error
    mine = stat.S_ISDIR(about.st_mode) and about.st_uid == os.getuid()
    if not given and (not mine or about.st_mode & 0o022):
        raise DataError(
            f"{path}, where the locks of this machine lie, is no folder that only you may write "
            "to; remove it, or name another with the environment variable NAS_LOCK_DIR"
        )
    return path


class LockFiles:
    """The queue, the gate and the lock of one device, opened by one thread.

    Attributes:
        queue, gate, lock: file descriptors, for `try_lock` and `unlock`.
    """

    def __init__(self, folder: Path, name: str) -> None:
        kinds = ("queue", "gate", "lock")
        self.queue, self.gate, self.lock = (_opened(folder / f"{name}.{one}") for one in kinds)

    def free(self) -> bool:
        """Whether nobody times, or wants to."""
        free = try_lock(self.gate, fcntl.LOCK_SH)
        if free:
            unlock(self.gate)
        return free

    def join(self) -> bool:
        """Hold the lock with others, unless somebody times or wants to."""
        if not try_lock(self.gate, fcntl.LOCK_SH):
            return False
        joined = try_lock(self.lock, fcntl.LOCK_SH)
        unlock(self.gate)
        return joined

    def close(self) -> None:
        """Let go of everything."""
        os.close(self.queue)
        os.close(self.gate)
        os.close(self.lock)


def _opened(path: Path) -> int:
    try:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        os.utime(file)  # what tidies a folder of temporary files takes the old ones
    except OSError as error:
        raise _unusable(path, error) from error
    return file


def try_lock(file: int, how: int) -> bool:
    """Take a lock, ``LOCK_SH`` or ``LOCK_EX`` of `fcntl`, if it can be had now."""
    try:
        fcntl.flock(file, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def unlock(file: int) -> None:
    """Let go of a lock, held or not."""
    fcntl.flock(file, fcntl.LOCK_UN)


def _unusable(path: Path, error: OSError) -> DataError:
    return DataError(
        f"cannot write {path}: {error.strerror}; the environment variable NAS_LOCK_DIR names "
        "another folder for the locks of this machine"
    )
