"""Bounds for a process that reads what strangers send; loads next to nothing itself."""

from __future__ import annotations

import math
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from service.settings import MIB

_STATM = Path("/proc/self/statm")


def mapped_bytes() -> int:
    """Address space of this process; 0 where the system does not tell."""
    if not _STATM.exists():
        return 0
    return int(_STATM.read_text().split()[0]) * resource.getpagesize()


def bytes_of(path: Path) -> int:
    """Of a file, or of all files in a folder; 0 where there is nothing."""
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files if file.is_file())


@contextmanager
def limited(cpu_s: int, memory_mb: int) -> Iterator[None]:
    """Use no more processor time and memory than that, where the system can tell."""
    mapped = mapped_bytes()
    wanted = {resource.RLIMIT_CPU: math.ceil(time.process_time()) + cpu_s}
    if mapped:
        wanted[resource.RLIMIT_AS] = mapped + memory_mb * MIB
    before = {what: resource.getrlimit(what) for what in wanted}
    for what, most in wanted.items():
        hard = before[what][1]
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(what, (most, hard))
    try:
        yield
    finally:
        for what, limits in before.items():
            resource.setrlimit(what, limits)
