"""How many threads of the CPU torch computes with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def cpu_threads(threads: int | None) -> Iterator[None]:
    """In it torch computes with so many threads; with as many as before, where that is None."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)
