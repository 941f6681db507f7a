"""The jobs of a study on the workers of a Ray cluster."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import ray

from nas.executors.base import ExecutorSettings
from nas.executors.ray_cluster import RayCluster

Job = TypeVar("Job")
Done = TypeVar("Done")


def done_by_ray(
    work: Callable[[Job], Done], jobs: Sequence[Job], workers: int, address: str | None = None
) -> Iterator[tuple[Job, Done]]:
    """Each job with its result, as they end; at most `workers` at a time, a core each.

    A job whose worker or node is lost is done again by another one.

    Args:
        work: a function of a module that the nodes have too.
        jobs: in the order in which they are begun.
        workers: most jobs at a time.
        address: of the cluster; a Ray of one's own if not given.

    Raises:
        ExecutorError: when there is no such cluster.
    """
    cluster = RayCluster(ExecutorSettings("ray", address), workers)
    cluster.connect()
    try:
        remote = ray.remote(num_cpus=1, max_retries=-1)(_of_module(work))
        left, running = list(jobs), dict[ray.ObjectRef[Done], Job]()
        while left or running:
            while left and len(running) < workers:
                job = left.pop(0)
                running[remote.remote(job)] = job
            (ended,), _ = ray.wait(list(running), num_returns=1)
            yield running.pop(ended), ray.get(ended)
    finally:
        cluster.close()


def _of_module(work: Callable[[Job], Done]) -> Callable[[Job], Done]:
    """The function as nodes import it, where its module is the command that runs here."""
    spec = getattr(sys.modules[work.__module__], "__spec__", None)
    if work.__module__ != "__main__" or spec is None:
        return work
    found: Callable[[Job], Done] = getattr(importlib.import_module(spec.name), work.__name__)
    return found
