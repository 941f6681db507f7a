"""What the service counts and times, for Prometheus.

Several API processes of one `nas serve` add up what they count in files of a folder that they
share, which is the client library's own way: it is in use where ``PROMETHEUS_MULTIPROC_DIR`` names
that folder when the library is imported. Whichever process is asked then tells of all of them.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    generate_latest,
    multiprocess,
)

SHARED = "PROMETHEUS_MULTIPROC_DIR"

BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)


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
        self.jobs = self._latest("nas_jobs", "Jobs by state.", ["state"])
        self.workers = self._latest("nas_workers", "Workers that live.")
        self.disk = self._latest("nas_run_bytes", "Bytes of all runs.")
        self.streams = Gauge(
            "nas_event_streams",
            "Open event streams.",
            registry=registry,
            multiprocess_mode="livesum",
        )

    def _latest(self, name: str, text: str, labels: Sequence[str] = ()) -> Gauge:
        """A number that all processes read from the same place when they are asked."""
        return Gauge(name, text, labels, registry=self.registry, multiprocess_mode="mostrecent")

    def count(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count a request that was answered."""
        self.requests.labels(method, route, str(status)).inc()
        self.seconds.labels(method, route).observe(seconds)

    def text(self) -> bytes:
        """All numbers as Prometheus reads them."""
        if SHARED not in os.environ:
            return generate_latest(self.registry)
        together = CollectorRegistry()
        multiprocess.MultiProcessCollector(together)  # type: ignore[no-untyped-call]
        return generate_latest(together)


def forget_process(number: int) -> None:
    """Drop what a process that has ended counted of the present; its totals stay."""
    if SHARED in os.environ:
        multiprocess.mark_process_dead(number)  # type: ignore[no-untyped-call]
