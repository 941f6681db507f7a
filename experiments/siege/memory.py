"""How much memory a service's processes take (on Linux, from ``/proc``)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from pathlib import Path

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
