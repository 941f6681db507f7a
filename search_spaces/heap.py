"""The C library's heap, kept from giving memory back to the system between two calls.

What a network needs for a moment is freed at the end of a call. glibc gives such memory back to the
system when it lies at the top of the heap or is large, and has to fetch it again, page by page, in
the next call. Whether that happens depends on what else was allocated before and after, so that
one network takes 1.0 or 1.2 times its time for as long as a process lives (`digits`, embed_dim 48).
What is timed is the state without faults; a program that sets nothing may meet either. Training
holds the heap, too: faults took a tenth of an update of a small network (experiments/LOG.md,
2026-11-30).
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

# Of malloc.h.
M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD = -1, -2, -3
KEPT_BYTES = 2**30
PAD_BYTES = 2**26
LARGEST_BYTES = 2**25  # more is refused; above it every allocation is fetched, always


@contextmanager
def steady_heap() -> Iterator[None]:
    """Allocate without page faults as long as it is open; afterwards memory is given back.

    The thresholds stay as they are set: back at their first values glibc would not adapt them any
    more. With another C library nothing is changed.
    """
    library = _glibc()
    if library is None:
        yield
        return
    library.mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)
    library.mallopt(M_TOP_PAD, PAD_BYTES)
    library.mallopt(M_MMAP_THRESHOLD, LARGEST_BYTES)
    try:
        yield
    finally:
        library.mallopt(M_TOP_PAD, 0)
        library.malloc_trim(0)


@cache
def _glibc() -> ctypes.CDLL | None:
    library = ctypes.CDLL(None)
    known = all(hasattr(library, name) for name in ("mallopt", "malloc_trim"))
    return library if known else None
