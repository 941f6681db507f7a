"""Evaluates and times networks by workers of a Ray cluster."""

from __future__ import annotations

import itertools
import os
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import ray
import torch

from latency.turns import waiting
from nas.executors.attempts import is_final
from nas.executors.base import (
    Answered,
    Executor,
    ExecutorSettings,
    ExternalSource,
    Failure,
    Meter,
    Outcome,
    Source,
    in_order,
)
from nas.executors.board import Board
from nas.executors.ray_cluster import RayCluster
from nas.executors.ray_device import Device, RayMeter
from nas.executors.ray_jobs import JobRoom
from nas.executors.ray_nodes import Nodes
from nas.executors.ray_pool import Asked, Pool
from nas.executors.ray_worker import AskingWorker, EvaluationWorker, WorkOrder
from nas.run.evaluator import use_threads
from nas.run.folder import RunFolder
from search_spaces.architecture import Architecture
from search_spaces.errors import UsageError
from search_spaces.genotypes import Network
from search_spaces.wording import mark

if TYPE_CHECKING:
    from latency.device import DeviceFingerprint
    from latency.workload import Mode
    from nas.profiling.device_profile import DeviceProfile
    from nas.request.spec import SearchSpec
    from nas.run.events import Event, Note
    from nas.run.opened import OpenedRun
    from supernet.inheritance.local import LocalReport
    from supernet.training.loop import EpochReport

ItemT = TypeVar("ItemT")

# Where measurements and locks are kept, if the user names a place.
PASSED_ON = ("NAS_CACHE_DIR", "NAS_LOCK_DIR")
# So much longer than it may take an evaluator is waited for before its worker is ended.
GRACE_S = 2.0


class RayExecutor(Executor):
    """See the module.

    Args:
        settings: which cluster, and how wide.
        folder: the run.
        worker: the class whose objects evaluate; that of the run's kind if not given.

    Attributes:
        cluster: the connection, for others who want to compute there; `release` before that, so
            that what evaluation holds is free.
        cpus_per_worker: CPUs that are reserved for each worker.
    """

    def __init__(
        self,
        settings: ExecutorSettings,
        folder: RunFolder,
        worker: type[EvaluationWorker] | None = None,
    ) -> None:
        super().__init__(settings)
        self._folder, self._spec = folder, folder.spec
        self._asks = self._spec.evaluator is not None
        self._worker: type[Any] = worker or (AskingWorker if self._asks else EvaluationWorker)
        use_threads(self._spec)
        alone = self._asks or self._spec.device != "cpu"
        threads = 1 if alone else torch.get_num_threads()
        self.cpus_per_worker = settings.cpus_per_worker or threads
        self.cluster = RayCluster(settings, self.cpus_per_worker * (settings.workers or 1))
        self._board = Board(folder.path)
        # One for the whole run: what leaves while nobody looks is told by the next who does.
        self._nodes = Nodes(self.cpus_per_worker, self._gpus)
        self._pool: Pool | None = None
        self._device = Device(self.cluster, self._order, self._board)
        self._weights: Any = None

    # -- evaluating ---------------------------------------------------------------------------

    def evaluate(self, source: Source, networks: Sequence[Architecture]) -> Iterator[Outcome | str]:
        """See `Executor.evaluate`."""
        yield from in_order(self._answers(source, networks))

    def ask(
        self, source: ExternalSource, networks: Sequence[Network]
    ) -> Iterator[list[Answered] | str]:
        """See `Executor.ask`: each worker asks an evaluator of its own for one after the other."""
        for item in self._answers(source, source.questions(networks)):
            yield item if isinstance(item, str) else [item]

    def _answers(self, source: Source, networks: Sequence[Asked]) -> Iterator[Answered | str]:
        if not networks:
            return
        self._device.release()
        self.cluster.connect()
        pool = self._pool = self._pool or self._new_pool(source)
        yield from _others_work(pool.run(networks, self.width))

    def _new_pool(self, source: Source) -> Pool:
        worker = ray.remote(self._worker).options(
            num_cpus=self.cpus_per_worker, num_gpus=self._gpus, max_restarts=0
        )
        given = (os.getcwd(), self.settings.timeout_s) if self._asks else ()
        order = ray.put(self._order(source.data_digest))
        self._weights = ray.put(source.weights())

        def start() -> tuple[Any, Any, Any]:
            actor: Any = worker.remote(*given)
            there = actor.__ray_ready__.remote()  # calls are answered one after the other
            return actor, there, actor.prepare.remote(order, self._weights)

        pool = partial(Pool, start, self._board, self.settings.timeout_s, self._nodes)
        return pool(answered, GRACE_S) if self._asks else pool(is_final)

    def _order(self, data_digest: str = "") -> WorkOrder:
        environment = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
        spec = self._spec.model_dump(mode="json")
        threads = self.cpus_per_worker if self._asks else torch.get_num_threads()
        return WorkOrder(spec, data_digest, threads, environment)

    @property
    def width(self) -> int:
        """How many workers there may be; at least one, for which the cluster may have to grow."""
        if self.settings.workers is not None:
            return self.settings.workers
        self.cluster.connect()
        offers = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        return max(1, sum(self._room(offer) for offer in offers))

    def _room(self, offer: dict[str, float]) -> int:
        room = int(offer.get("CPU", 0) // self.cpus_per_worker)
        return min(room, int(offer.get("GPU", 0))) if self._gpus else room

    @property
    def _gpus(self) -> int:
        return 0 if self._spec.device == "cpu" else 1

    # -- timing -------------------------------------------------------------------------------

    def check(self, spec: SearchSpec) -> None:
        """See `Executor.check`."""
        self.cluster.connect()
        if self._gpus and not ray.cluster_resources().get("GPU") and not self.settings.workers:
            raise UsageError(
                f"the Ray cluster has no GPU at present: use {mark('device')} cpu, or, with a "
                f"cluster that grows on demand, say with {mark('workers')} how many to ask for"
            )

    def computes_on(self, spec: SearchSpec) -> str:
        """See `Executor.computes_on`: what is left for this process needs no graphics card."""
        return "cpu"

    def device(self, spec: SearchSpec) -> DeviceFingerprint | None:
        """See `Executor.device`."""
        if not self._device.offered(spec.device):
            return None
        self._release_pool()
        found: DeviceFingerprint = self._device.call(spec.device, "device")
        return found

    def meter(
        self, spec: SearchSpec, device_profile: DeviceProfile | None, mode: Mode | None = None
    ) -> Meter:
        """See `Executor.meter`."""
        self._release_pool()
        return RayMeter(self._device, spec.device, device_profile, mode)

    def measure(self, spec: SearchSpec, name: str, network: Architecture) -> float:
        """See `Executor.measure`."""
        self._release_pool()
        value: float = self._device.call(spec.device, "cost", name, network)
        return value

    # -- training ---------------------------------------------------------------------------

    def train(self, run: OpenedRun) -> Iterator[EpochReport | Note]:
        """See `Executor.train`: by all workers together."""
        self.release()
        self.cluster.connect()
        from nas.executors.ray_group import GroupRoom  # imports Ray Train
        from nas.executors.ray_train import train_together

        workers = self.settings.train_workers or self.width
        room = GroupRoom(workers, self.cpus_per_worker, self._gpus)
        yield from _others_work(train_together(run, room, self._board, self._nodes))

    def distil(self, run: OpenedRun) -> Iterator[LocalReport | Note]:
        """See `Executor.distil`: layers side by side."""
        from nas.executors.ray_distil import distil_side_by_side  # imports torch

        self.release()
        self.cluster.connect()
        reports = distil_side_by_side(run, self.width, self._job_room, self._board, self._nodes)
        yield from _others_work(reports)

    def retrain(
        self, run: OpenedRun, ids: Sequence[str], share: float | None = None
    ) -> Iterator[Event]:
        """See `Executor.retrain`: side by side."""
        from nas.executors.ray_retrain import retrain_side_by_side  # imports torch

        self.release()
        self.cluster.connect()
        events = retrain_side_by_side(run, ids, self._job_room, self._board, self._nodes, share)
        yield from _others_work(events)

    @property
    def _job_room(self) -> JobRoom:
        return JobRoom(self.settings.workers, self.cpus_per_worker, self._gpus)

    # -- ending -------------------------------------------------------------------------------

    def release(self) -> None:
        """See `Executor.release`."""
        self._release_pool()
        self._device.release()

    def _release_pool(self) -> None:
        if self._pool is not None:
            self._pool.close()
            self._pool = self._weights = None

    def close(self) -> None:
        """See `Executor.close`."""
        try:
            super().close()
        finally:
            self.cluster.close()
            self._board.clear()


def answered(outcome: Outcome) -> bool:
    """Whether an evaluator has told something, be it why it cannot: it is not asked again.

    A process that ended, or for which memory did not suffice, may have done so for others' sake.
    """
    return not (isinstance(outcome, Failure) and outcome.kind in ("worker died", "memory"))


def _others_work(items: Generator[ItemT, None, None]) -> Iterator[ItemT]:
    """The same items; while they are waited for, this process does not count as computing."""
    with closing(items):
        while True:
            with waiting():
                found = list(itertools.islice(items, 1))
            if not found:
                return
            yield from found
