"""Evaluates and times networks by workers of a Ray cluster."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from nas.executors.base import Executor, ExecutorSettings, Meter, Outcome, Source
from nas.executors.ray_cluster import RayCluster
from nas.run_folder import RunFolder
from search_spaces.architecture import Architecture
from search_spaces.errors import ExecutorError

if TYPE_CHECKING:
    from latency.device import DeviceFingerprint
    from nas.device_profile import CarriedProfile
    from nas.events import Event, Note
    from nas.spec import SearchSpec
    from nas.stages.base import Run
    from supernet.training.loop import EpochReport


class RayExecutor(Executor):
    """See the module.

    Attributes:
        cluster: the connection, for others who want to compute there; `release` before that, so
            that what evaluation holds is free.
    """

    def __init__(self, settings: ExecutorSettings, folder: RunFolder) -> None:
        super().__init__(settings)
        self._folder = folder
        threads = folder.spec.budget.threads or 1
        self.cpus_per_worker = settings.cpus_per_worker or threads
        self.cluster = RayCluster(settings, self.cpus_per_worker * (settings.workers or 1))

    def evaluate(self, source: Source, networks: Sequence[Architecture]) -> Iterator[Outcome]:
        """See `Executor.evaluate`."""
        raise ExecutorError("evaluation through Ray is being written")

    def train(self, run: Run) -> Iterator[EpochReport | Note]:
        """See `Executor.train`: by all workers together."""
        from nas.executors.ray_train import train_together  # imports torch

        self.release()
        self.cluster.connect()
        yield from train_together(run, self.settings, self.cpus_per_worker)

    def retrain(self, run: Run, ids: Sequence[str]) -> Iterator[Event]:
        """See `Executor.retrain`: side by side."""
        from nas.executors.ray_retrain import retrain_side_by_side  # imports torch

        self.release()
        self.cluster.connect()
        yield from retrain_side_by_side(run, ids, self.settings, self.cpus_per_worker)

    def check(self, spec: SearchSpec) -> None:
        """See `Executor.check`."""
        raise ExecutorError("evaluation through Ray is being written")

    def device(self, spec: SearchSpec) -> DeviceFingerprint | None:
        """See `Executor.device`."""
        raise ExecutorError("evaluation through Ray is being written")

    def meter(self, spec: SearchSpec, carried: CarriedProfile | None) -> Meter:
        """See `Executor.meter`."""
        raise ExecutorError("evaluation through Ray is being written")

    def memory_mb(self, spec: SearchSpec, network: Architecture) -> float:
        """See `Executor.memory_mb`."""
        raise ExecutorError("evaluation through Ray is being written")

    def release(self) -> None:
        """See `Executor.release`."""

    def close(self) -> None:
        """See `Executor.close`."""
        super().close()
        self.cluster.close()
