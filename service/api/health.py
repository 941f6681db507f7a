"""Whether the service can take requests, and what it counts and times for Prometheus."""

from __future__ import annotations

import asyncio
import logging
import os
from dataclasses import dataclass

import anyio.to_thread
from anyio import CapacityLimiter
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from service.jobs.database import DatabaseAwayError, full_disk
from service.jobs.store import Store
from service.settings import Settings

ANSWER_S = 2.0
BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
LEAST_FREE = 16 * 2**20  # bytes

log = logging.getLogger("service.api.health")


@dataclass(frozen=True, slots=True)
class Look:
    """What was found.

    Attributes:
        problem: why no requests can be taken; None when they can.
        workers: that gave a sign of life lately.
    """

    problem: str | None
    workers: int = 0


class Readiness:
    """Looks whether requests can be taken: asks the database and the disk.

    One look at a time, in a thread of its own: however many ask, and however long the database
    takes, nobody else waits for a thread because of it. Whoever has asked has an answer after
    `ANSWER_S`.

    Args:
        store: that has to answer.
        settings: of the service.
    """

    def __init__(self, store: Store, settings: Settings) -> None:
        self._store = store
        self._settings = settings
        self._answer_s = ANSWER_S
        self._thread = CapacityLimiter(1)
        self._looking: asyncio.Task[Look] | None = None

    async def look(self) -> Look:
        """What there is to say; joins a look that has begun."""
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._begin())
        task = self._looking
        await asyncio.wait({task}, timeout=self._answer_s)
        if not task.done():
            return Look(f"the database has not answered for {self._answer_s:g} s")
        return task.result()

    async def _begin(self) -> Look:
        try:
            return await anyio.to_thread.run_sync(
                self._look, limiter=self._thread, abandon_on_cancel=True
            )
        except DatabaseAwayError as error:
            log.error("the database does not answer", extra={"error": str(error)[:200]})
            return Look("the database does not answer")

    def _look(self) -> Look:
        problem = self._disk_problem()
        if problem is not None:
            return Look(problem)
        self._store.database.ping()
        return Look(None, len(self._store.workers.alive(self._settings.stale_s)))

    def _disk_problem(self) -> str | None:
        """Why nothing can be written to the home folder."""
        try:
            disk = os.statvfs(self._settings.home)
        except OSError as error:
            return f"the home folder cannot be read: {error.strerror}"
        if disk.f_flag & os.ST_RDONLY or not os.access(self._settings.home, os.W_OK):
            return "the home folder cannot be written to"
        if disk.f_bavail * disk.f_frsize < LEAST_FREE or (disk.f_files and not disk.f_favail):
            return full_disk("the home folder")
        return None


class Metrics:
    """One application's numbers; a registry of its own keeps two of them apart.

    Attributes:
        registry: holds them all.
        requests: answered requests, by method, route and status.
        seconds: how long they took, by method and route.
        jobs: jobs by state.
        workers: workers that gave a sign of life lately.
        streams: open event streams.
        disk: bytes of all runs.
    """

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self.requests = Counter(
            "nas_requests", "Requests.", ["method", "route", "status"], registry=registry
        )
        self.seconds = Histogram(
            "nas_request_seconds",
            "Seconds until a response began.",
            ["method", "route"],
            buckets=BUCKETS_S,
            registry=registry,
        )
        self.jobs = Gauge("nas_jobs", "Jobs by state.", ["state"], registry=registry)
        self.workers = Gauge("nas_workers", "Workers that live.", registry=registry)
        self.disk = Gauge("nas_run_bytes", "Bytes of all runs.", registry=registry)
        self.streams = Gauge("nas_event_streams", "Open event streams.", registry=registry)

    def count(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count a request that was answered."""
        self.requests.labels(method, route, str(status)).inc()
        self.seconds.labels(method, route).observe(seconds)

    def text(self) -> bytes:
        """All numbers as Prometheus reads them."""
        return generate_latest(self.registry)
