"""What runs in the workers of a Ray cluster: classes that evaluate networks, and one that times.

Workers know the run by what they are sent; they neither read nor write its folder. The data, or the
evaluator that knows the networks, they open themselves, once, as the request names it.
"""

from __future__ import annotations

import logging
import os
import platform
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ray
import torch

from latency.device import DeviceFingerprint, describe_device
from latency.timings import TimingHeader
from latency.turns import computing
from latency.workload import Mode
from nas.executors.asking import told
from nas.executors.attempts import attempt, sentence, time_limit, tried
from nas.executors.base import Failure, Outcome
from nas.objectives import timed_workload
from nas.objectives.latency_limits import ConfirmedLatency, Timed
from nas.profiling.device_profile import DeviceProfile
from nas.profiling.latency_meter import LatencyMeter
from nas.profiling.timed_work import network_cost
from nas.request.spec import SearchSpec, build_spec
from nas.run.evaluator import Evaluator, open_evaluator
from nas.run.evaluators import Question, version_of
from nas.run.evaluators.opening import EvaluatorName
from search_spaces.architecture import Architecture
from search_spaces.errors import DataError
from search_spaces.genes import GeneSpace
from search_spaces.measurement import Measurement


@dataclass(frozen=True)
class WorkOrder:
    """What a worker has to know of a run.

    Attributes:
        spec: the request, as JSON values.
        data_digest: of the data that the run began with.
        threads: of torch, as in the process that works on the run.
        environment: variables that are set before anything is loaded.
    """

    spec: Mapping[str, Any]
    data_digest: str
    threads: int
    environment: Mapping[str, str]

    def open(self) -> SearchSpec:
        """Set this process up; the request."""
        os.environ |= dict(self.environment)
        torch.set_num_threads(self.threads)
        return build_spec(**self.spec)


@dataclass(frozen=True)
class Place:
    """Where a worker is: its machine's name, its process, its node's id, and seconds to start."""

    host: str
    pid: int
    node: str
    seconds: float


@dataclass(frozen=True)
class Answer:
    """An outcome, the seconds it took, and what was logged meanwhile."""

    outcome: Outcome
    seconds: float
    lines: Sequence[str]


class EvaluationWorker:
    """Holds the supernet, if there is one, and evaluates one network after the other."""

    def __init__(self) -> None:
        self._evaluator: Evaluator | None = None
        self._lines = _Lines()

    def prepare(self, order: WorkOrder, weights: bytes | None) -> Place:
        """Load everything.

        Raises:
            DataError: when the data are not here, or not those of the run.
        """
        started = time.perf_counter()
        spec = order.open()
        with computing(spec.device):
            self._evaluator = open_evaluator(spec, order.data_digest, weights)
        self._device = spec.device
        return _place(time.perf_counter() - started)

    def evaluate(self, network: Mapping[str, Any], tries: int) -> Answer:
        """Evaluate a network, given in its JSON form, for the `tries`-th time."""
        started = time.perf_counter()
        with computing(self._device):
            outcome = attempt(self.quality, Architecture.from_json(network), tries)
        return Answer(outcome, time.perf_counter() - started, self._lines.take())

    def quality(self, network: Architecture) -> dict[str, float]:
        """What a network is worth; see `Evaluator`."""
        assert self._evaluator is not None
        return self._evaluator.quality(network)


class AskingWorker:
    """Holds the evaluator that knows the networks, and asks it for one after the other.

    It works in the folder where the command was given, as in one process. What takes too long is
    stopped here, so that a command which an evaluator has started ends as well; only a call that
    does not listen is ended from outside, with the worker.

    Args:
        folder: where the command was given.
        timeout_s: of opening the evaluator, and of an evaluation.
    """

    def __init__(self, folder: str, timeout_s: float) -> None:
        self._folder, self._timeout_s = folder, timeout_s
        self._lines = _Lines()

    def prepare(self, order: WorkOrder, weights: None) -> Place:
        """Open the evaluator.

        Raises:
            DataError: when this machine has no such folder, or the evaluator is another one here.
            NasError: when it is not there, or is none.
        """
        del weights
        started = time.perf_counter()
        spec = order.open()
        name, space = spec.evaluator, spec.domain
        assert name is not None and isinstance(space, GeneSpace)
        try:
            os.chdir(self._folder)
        except OSError as error:
            raise DataError(
                f"{platform.node()} has no folder {self._folder}, where the evaluator works "
                f"({error.strerror}): work on the run in a folder that all machines see"
            ) from error
        self._wanted = spec.costs
        with time_limit(self._timeout_s):
            self._evaluator = EvaluatorName.read(name).open(space, self._wanted)
        if str(version_of(getattr(self._evaluator, "digest", None))) != order.data_digest:
            raise DataError(
                f"the evaluator {name} on {platform.node()} is not that of the machine "
                "that works on the run: its digest is another one; copy it there"
            )
        return _place(time.perf_counter() - started)

    def evaluate(self, question: Mapping[str, Any], tries: int) -> Answer:
        """Ask for a network, see `Question`, for the `tries`-th time."""
        started = time.perf_counter()
        one = Question("", **question)
        try:
            with time_limit(self._timeout_s):
                (outcome,) = told(self._evaluator, [one], self._wanted)
        except TimeoutError as error:
            outcome = Failure("timeout", sentence(error), tries)
        return Answer(tried(outcome, tries), time.perf_counter() - started, self._lines.take())


class DeviceWorker:
    """Times networks on its device, which nobody else uses meanwhile."""

    def prepare(self, order: WorkOrder) -> Place:
        """Set up."""
        started = time.perf_counter()
        self._spec = order.open()
        return _place(time.perf_counter() - started)

    def device(self) -> DeviceFingerprint:
        """What is timed here."""
        return describe_device(self._spec.device)

    def header(self, device_profile: DeviceProfile | None, mode: Mode | None) -> TimingHeader:
        """Device and workload."""
        return self._meter(device_profile, mode).header

    def known(
        self, device_profile: DeviceProfile | None, mode: Mode | None, network: Architecture
    ) -> bool:
        """See `Meter.known`."""
        return self._meter(device_profile, mode).known(network)

    def measure(
        self,
        device_profile: DeviceProfile | None,
        mode: Mode | None,
        networks: Sequence[Architecture],
    ) -> Timed[Measurement]:
        """See `Meter.measure`."""
        return self._meter(device_profile, mode).measure(networks)

    def confirm(
        self,
        device_profile: DeviceProfile | None,
        mode: Mode | None,
        networks: Sequence[Architecture],
    ) -> Timed[Measurement]:
        """See `Meter.confirm`."""
        return self._meter(device_profile, mode).confirm(networks)

    def in_sessions(
        self,
        device_profile: DeviceProfile | None,
        mode: Mode | None,
        networks: Sequence[Architecture],
    ) -> Timed[ConfirmedLatency]:
        """See `Meter.in_sessions`."""
        return self._meter(device_profile, mode).in_sessions(networks)

    def forget(self, device_profile: DeviceProfile | None, mode: Mode | None) -> None:
        """See `Meter.forget`."""
        self._meter(device_profile, mode).forget()

    def _meter(self, device_profile: DeviceProfile | None, mode: Mode | None) -> LatencyMeter:
        return LatencyMeter(self._spec, device_profile, mode)

    def cost(self, name: str, network: Architecture) -> float:
        """See `Executor.measure`."""
        workload = timed_workload(self._spec.space, None)
        return network_cost(name, self._spec.space, network, workload, self._spec.device)


def _place(seconds: float) -> Place:
    node = ray.get_runtime_context().get_node_id()
    return Place(platform.node(), os.getpid(), node, seconds)


class _Lines(logging.Handler):
    """Keeps what is logged or warned of until somebody takes it."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self._kept: list[str] = []
        logging.captureWarnings(True)
        logging.getLogger().addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a record."""
        self._kept.append(f"{record.levelname.lower()}: {record.getMessage()}")

    def take(self) -> list[str]:
        """What was kept since the last time."""
        kept, self._kept = self._kept, []
        return kept
