"""How many threads of the CPU torch computes with."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch

T = TypeVar("T")


@contextmanager
def cpu_threads(threads: int | None) -> Iterator[None]:
    """In it torch computes with so many threads; with as many as before, where that is None."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def each_with(threads: int | None, items: Iterable[T]) -> Iterator[T]:
    """All items, each worked out with so many threads; who reads them computes with his own."""
    stream = iter(items)
    while True:
        with cpu_threads(threads):
            try:
                item = next(stream)
            except StopIteration:
                return
        yield item
