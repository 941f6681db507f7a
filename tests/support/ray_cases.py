"""A small Ray for tests, and workers that do as badly as a test wants."""

from __future__ import annotations

import math
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from latency import acceptance
from nas.executors.base import Source
from search_spaces.architecture import Architecture

# What may happen to a network: a word of `misbehave`, or a file's path for "die:PATH".
Poison = Mapping[str, str]


@contextmanager
def started(num_cpus: int = 2, **settings: object) -> Iterator[None]:
    """A Ray of our own, quiet and with little memory."""
    ray = pytest.importorskip("ray")
    from nas.executors.ray_cluster import QUIET, own_folder, own_signals, own_token

    os.environ |= QUIET
    folder = own_folder()
    with own_signals(), own_token():
        ray.init(
            address="local",
            _temp_dir=folder,
            num_cpus=num_cpus,
            resources={"nas_latency_cpu": 1},
            object_store_memory=100 * 2**20,
            # Ray's workers let everybody else go first, and tests beside them would never end.
            _system_config={"worker_niceness": 0},
            include_dashboard=False,
            log_to_driver=False,
            logging_level="ERROR",
            runtime_env={
                "env_vars": {
                    "PYTHONPATH": str(Path(__file__).parents[2]),
                    # Ray Train misses a worker soon, and starts no process that asks for others.
                    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.3",
                    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",
                },
                "worker_process_setup_hook": "tests.support.ray_cases.believe_every_timing",
            },
            **settings,
        )
    try:
        yield
    finally:
        ray.shutdown()
        shutil.rmtree(folder, ignore_errors=True)


def believe_every_timing() -> None:
    """What `tests.conftest` does for each test, for the processes of workers."""
    acceptance.TOLERANCES = acceptance.Tolerances(*[math.inf] * 8)


def deadly_box() -> type:
    """A class of mailboxes that kill a rank of Ray Train as they are told of an epoch.

    The third thing they take is a report of a group of one or two, who join before. The rank that
    tells it waits for the answer, so that it never begins another epoch.
    """
    from nas.executors.ray_mail import _Box

    class DeadlyBox(_Box):
        taken = 0

        def put(self, item: bytes) -> None:
            super().put(item)
            self.taken += 1
            if self.taken == 3:
                ours = ["pgrep", "-P", str(os.getppid()), "-f", "RayTrainWorker"]
                ranks = subprocess.run(ours, capture_output=True, text=True, check=True).stdout
                os.kill(int(ranks.split()[-1]), signal.SIGKILL)

    return DeadlyBox


def misbehave(how: str) -> dict[str, float]:
    """Do what a poisoned network does; `once:HOW:FILE` only as long as FILE is not there."""
    if how.startswith("once:"):
        _, how, file = how.split(":", 2)
        if Path(file).exists():
            return {}
        Path(file).touch()
    match how:
        case "raise":
            raise RuntimeError("a bad kernel\nand more lines")
        case "memory":
            raise MemoryError("no room")
        case "nan":
            return {"quality": float("nan")}
        case "die":
            os.kill(os.getpid(), signal.SIGKILL)
        case "hang":
            while True:
                signal.pause()
    raise AssertionError(how)


def poisoned_worker(poison: Poison) -> type:
    """A class of workers that misbehave with some networks."""
    from nas.executors.ray_worker import EvaluationWorker

    class PoisonedWorker(EvaluationWorker):
        def quality(self, network: Architecture) -> dict[str, float]:
            wrong = misbehave(poison[network.id]) if network.id in poison else {}
            return wrong or super().quality(network)

    return PoisonedWorker


class PoisonedSource:
    """A run some of whose networks misbehave."""

    def __init__(self, source: Source, poison: Poison) -> None:
        self._source, self._poison = source, poison

    def __getattr__(self, name: str) -> object:
        return getattr(self._source, name)

    def quality(self, network: Architecture) -> dict[str, float]:
        wrong = misbehave(self._poison[network.id]) if network.id in self._poison else {}
        return wrong or self._source.quality(network)
