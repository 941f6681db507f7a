"""What the service counts and times, for Prometheus."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

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
