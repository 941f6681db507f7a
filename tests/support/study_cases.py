"""What the tests of the studies share."""

from __future__ import annotations

import io
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

from rich.console import Console, RenderableType


def printed(parts: Iterable[RenderableType]) -> str:
    """What a study shows, as text."""
    stream = io.StringIO()
    console = Console(file=stream, width=160)
    for part in parts:
        console.print(part, markup=False)
    return stream.getvalue()


def threads(workers: int) -> ThreadPoolExecutor:
    """In the place of a study's processes, which would not know what a test has replaced."""
    return ThreadPoolExecutor(workers)
