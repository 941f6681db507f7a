"""Which process wrote which file, as the kernel tells it, and whether it still should have.

Linux's fanotify tells of each file that is closed after writing, with the process that did it, on
any host made of namespaces. It needs root.
"""

from __future__ import annotations

import ctypes
import os
import select
import struct
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from search_spaces.errors import ExecutorError

# linux/fanotify.h
_CLOEXEC, _UNLIMITED_QUEUE = 0x1, 0x10
_MARK_ADD, _MARK_FILESYSTEM = 0x1, 0x100
_CLOSE_WRITE = 0x8
_AT_FDCWD = -100
_EVENT = struct.Struct("=IBBHQii")  # length, version, reserved, its length, mask, file, process
_LOOK_EVERY_MS = 200


@dataclass(frozen=True)
class Write:
    """A file that was closed after writing.

    Attributes:
        at: seconds since 1970.
        file: its path below the watched folder; the final one of a file that was renamed at once.
        pid: the process, as this one numbers it.
        net: which network namespace it is in; None where it was gone already.
        born: when it began, in seconds since 1970; None likewise.
    """

    at: float
    file: str
    pid: int
    net: int | None
    born: float | None


class Watch:
    """Keeps all writes below a folder, while it is entered.

    Args:
        folder: whose name no other folder on the way to a file has.

    Attributes:
        writes: in order.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.writes: list[Write] = []
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._read, daemon=True)

    def __enter__(self) -> Self:
        library = ctypes.CDLL(None, use_errno=True)
        self._door: int = library.fanotify_init(_CLOEXEC | _UNLIMITED_QUEUE, os.O_RDONLY)
        marked = self._door >= 0 and not library.fanotify_mark(
            self._door,
            _MARK_ADD | _MARK_FILESYSTEM,
            ctypes.c_uint64(_CLOSE_WRITE),
            _AT_FDCWD,
            os.fsencode(self._folder),
        )
        if not marked:
            reason = os.strerror(ctypes.get_errno())
            raise ExecutorError(f"writes cannot be watched on this machine (fanotify: {reason})")
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._thread.join()
        os.close(self._door)

    def _read(self) -> None:
        poll = select.poll()
        poll.register(self._door, select.POLLIN)
        while True:
            if not poll.poll(_LOOK_EVERY_MS):
                if self._ending.is_set():
                    return
                continue
            data = memoryview(os.read(self._door, 2**16))
            while data:
                length, *_, file, pid = _EVENT.unpack(data[: _EVENT.size])
                if file >= 0:  # else the kernel could not open it for us
                    self._note(file, pid)
                data = data[length:]

    def _note(self, file: int, pid: int) -> None:
        try:
            path = os.readlink(f"/proc/self/fd/{file}")
        finally:
            os.close(file)
        # A host may see the folder elsewhere in its tree; its name is the same.
        _, found, below = path.partition(f"/{self._folder.name}/")
        if found and pid != os.getpid():
            name = below.removesuffix(" (deleted)")
            self.writes.append(Write(time.time(), final(name), pid, _net(pid), _born(pid)))


def final(name: str) -> str:
    """The path that a file gets which is written beside it first (`search_spaces.files`)."""
    folder, _, last = name.rpartition("/")
    if last.startswith(".") and last.endswith(".tmp"):
        last = last[1:].removesuffix(".tmp").rpartition(".")[0]
    return f"{folder}/{last}" if folder else last


def _net(pid: int) -> int | None:
    with suppress(OSError):
        return os.stat(f"/proc/{pid}/ns/net").st_ino
    return None


def _born(pid: int) -> float | None:
    with suppress(OSError):
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - int(words[19]) / os.sysconf("SC_CLK_TCK")
        return time.time() - age
    return None


def late_writes(
    writes: Sequence[Write], since: float, given_up: Callable[[Write], bool]
) -> list[str]:
    """Files that a process wrote which had been given up, after another one had taken them over.

    Args:
        writes: in order.
        since: from when on others take over, in seconds since 1970.
        given_up: whether a write is by a process that has been given up.
    """
    taken: set[str] = set()
    late: set[str] = set()
    for one in writes:
        if one.at < since:
            continue
        if not given_up(one):
            taken.add(one.file)
        elif one.file in taken:
            late.add(one.file)
    return sorted(late)
