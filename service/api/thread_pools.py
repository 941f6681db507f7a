"""Threads for each kind of work, so that who waits for one thing keeps nobody from another.

A route that is no coroutine runs in one of the few threads that read. Whatever changes something
may have to wait for others who write, and what strangers send may take long to check: each has
threads of its own, and only so many requests may wait for them, only so long.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import anyio
import anyio.to_thread
from anyio import CapacityLimiter
from fastapi.routing import APIRoute

from service.api.problems import ProblemError

READING = 6  # more only take the interpreter from each other
AGAIN_S = 2
SAFE = frozenset({"GET", "HEAD", "OPTIONS"})

T = TypeVar("T")


class ThreadPool:
    """Threads for one kind of work.

    Args:
        threads: how many work at once.
        waiting: how many requests may wait for one.
        wait_s: how long each may.
    """

    def __init__(self, threads: int, waiting: int, wait_s: float) -> None:
        self._threads = CapacityLimiter(threads)
        self._others = CapacityLimiter(math.inf)  # the threads themselves are counted above
        self._waiting = waiting
        self._wait_s = wait_s

    async def run(self, work: Callable[[], T]) -> T:
        """Do something in one of the threads.

        Raises:
            ProblemError: 503 when none is to be had.
        """
        if self._threads.statistics().tasks_waiting >= self._waiting:
            raise _busy()
        place = object()
        try:
            with anyio.fail_after(self._wait_s):
                await self._threads.acquire_on_behalf_of(place)
        except TimeoutError:
            raise _busy() from None
        try:
            return await anyio.to_thread.run_sync(work, limiter=self._others)
        finally:
            self._threads.release_on_behalf_of(place)


def _busy() -> ProblemError:
    return ProblemError(
        503,
        "the service is busy with other requests of this kind; try again in a moment",
        headers={"Retry-After": str(AGAIN_S)},
    )


@dataclass(frozen=True)
class ThreadPools:
    """The threads of an application, beside those that read.

    Attributes:
        changes: for whatever writes; submissions mostly wait for each other's transactions.
        spaces: for checking spaces that requests bring along, which other processes do.
        trials: for asking trained networks, which other processes do.
        uploads: for writing files that come.
        finishing: for reading checkpoints that have come, which other processes do, for minutes.
        tokens: for looking tokens up, so that guessing takes no thread from anybody who was let in.
    """

    changes: ThreadPool = field(default_factory=lambda: ThreadPool(16, 200, 10.0))
    spaces: ThreadPool = field(default_factory=lambda: ThreadPool(2, 16, 10.0))
    trials: ThreadPool = field(default_factory=lambda: ThreadPool(2, 8, 10.0))
    uploads: ThreadPool = field(default_factory=lambda: ThreadPool(4, 64, 30.0))
    finishing: ThreadPool = field(default_factory=lambda: ThreadPool(2, 8, 100.0))
    tokens: ThreadPool = field(default_factory=lambda: ThreadPool(2, 2000, 10.0))


class Route(APIRoute):
    """A route; if it changes something and is no coroutine, it runs in the pool for changes."""

    def __init__(self, path: str, endpoint: Callable[..., Any], **values: Any) -> None:
        changes = not SAFE.issuperset(values.get("methods") or SAFE)
        if changes and not inspect.iscoroutinefunction(endpoint):
            endpoint = _in_pool(endpoint)
        super().__init__(path, endpoint, **values)


def _in_pool(endpoint: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(endpoint)
    async def waiting(**given: Any) -> Any:
        thread_pools: ThreadPools = given["context"].thread_pools
        return await thread_pools.changes.run(functools.partial(endpoint, **given))

    return waiting
