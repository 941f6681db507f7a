"""What every executor promises: evaluate networks and time them, wherever that is done.

An executor is no part of the request. Which one works on a run, with how many workers, decides how
long the run takes and nothing else: outcomes come back in the order in which networks were asked
for, and each is computed with the run's own number of threads. So a run may be begun by one
executor and resumed by another.

A network that cannot be evaluated is no reason to end a search. It is tried `TRIES` times and then
comes back as a `Failure`, which says why. What an evaluator of others says of it counts at once.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self, TypeVar, get_args

from search_spaces.errors import UsageError

if TYPE_CHECKING:
    from latency.device import DeviceFingerprint
    from latency.timings import TimingHeader
    from latency.workload import Mode
    from nas.objectives.latency_limits import ConfirmedLatency, Timed
    from nas.profiling.device_profile import DeviceProfile
    from nas.request.spec import SearchSpec
    from nas.run.evaluators import Evaluator, Question
    from nas.run.events import Event, Note
    from nas.run.opened import OpenedRun
    from search_spaces.architecture import Architecture
    from search_spaces.genotypes import Network
    from search_spaces.measurement import Measurement
    from supernet.inheritance.local import LocalReport
    from supernet.training.loop import EpochReport

ToldT = TypeVar("ToldT")
ExecutorKind = Literal["local", "ray"]
FailureKind = Literal["error", "memory", "timeout", "worker died", "not finite"]

TRIES = 2
EVALUATION_TIMEOUT_S = 3600.0
# A node that may time networks offers one of these: ray start --resources='{"nas_latency_cpu": 1}'.
LATENCY_PREFIX = "nas_latency_"


def latency_resource(device: str) -> str:
    """The resource that reserves a device for timing, for ``cpu``, ``cuda`` or ``cuda:N``."""
    return LATENCY_PREFIX + device.partition(":")[0]


@dataclass(frozen=True)
class ExecutorSettings:
    """Where and how wide a run is worked on.

    Attributes:
        kind: ``local`` in this process, or ``ray``.
        ray_address: ``auto`` for the cluster this machine belongs to, ``HOST:PORT`` of a cluster's
            head, or None for a Ray of its own on this machine, which ends with the run.
        cpus_per_worker: CPUs that are reserved for a worker; None for as many as the run has
            threads, or 1 for a worker with a GPU or an evaluator. Threads are those of the run in
            any case, but of an evaluator as many as its worker's CPUs.
        workers: most workers at once; None for as many as the cluster has room for.
        timeout_s: seconds after which an evaluation is given up.
        train_workers: processes that train the supernet together; None for as many as `workers`.
            Their gradients are added up in another order than one process does it, so that
            weights differ in their last bits with this number, and with nothing else here.
    """

    kind: ExecutorKind = "local"
    ray_address: str | None = None
    cpus_per_worker: int | None = None
    workers: int | None = None
    timeout_s: float = EVALUATION_TIMEOUT_S
    train_workers: int | None = None

    def __post_init__(self) -> None:
        if self.kind not in get_args(ExecutorKind):
            raise UsageError(f"--executor takes local or ray; given {self.kind!r}")
        for name, number in self._numbers.items():
            if number is not None and number < 1:
                raise UsageError(f"{name} takes a number of at least 1; given {number}")
        if not (math.isfinite(self.timeout_s) and self.timeout_s > 0):
            raise UsageError(
                f"--evaluation-timeout takes a number of seconds above 0; given {self.timeout_s:g}"
            )
        self._check_kind()

    @property
    def _numbers(self) -> dict[str, int | None]:
        return {
            "--cpus-per-worker": self.cpus_per_worker,
            "--workers": self.workers,
            "--train-workers": self.train_workers,
        }

    def _check_kind(self) -> None:
        given = {"--ray-address": self.ray_address, **self._numbers}
        wrong = [name for name, value in given.items() if value is not None]
        if self.kind == "local" and wrong:
            raise UsageError(f"{wrong[0]} is for --executor ray; add that, or leave it out")
        if self.ray_address is not None and not _is_address(self.ray_address):
            raise UsageError(
                "--ray-address takes auto, for the cluster this machine belongs to, or HOST:PORT "
                f"of the cluster's head, for example 10.0.0.1:6379; given {self.ray_address!r}"
            )


def _is_address(text: str) -> bool:
    host, colon, port = text.rpartition(":")
    given = bool(host and colon) and port.isdecimal() and 0 < int(port) < 65536
    return text == "auto" or (given and "/" not in host)


@dataclass(frozen=True)
class Failure:
    """Why a network could not be evaluated.

    Attributes:
        kind: what happened.
        reason: one sentence.
        tries: how often it was tried.
    """

    kind: FailureKind
    reason: str
    tries: int

    def to_json(self) -> dict[str, Any]:
        """As it stands in a journal under ``failed``."""
        return {"kind": self.kind, "reason": self.reason, "tries": self.tries}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """What `to_json` gave."""
        return cls(data["kind"], data["reason"], data["tries"])


# What a network is worth, with ``quality`` among it, every value finite; or why that is unknown.
Outcome = Mapping[str, float] | Failure


# The place of a network among those asked for, and its outcome.
Answered = tuple[int, Outcome]


class Source(Protocol):
    """What an executor has to know of a run to evaluate its networks; an `OpenedRun` is one."""

    @property
    def spec(self) -> SearchSpec:
        """The request."""

    @property
    def data_digest(self) -> str:
        """Digest of the data that the run began with."""

    def weights(self) -> bytes | None:
        """The supernet's weights, as a checkpoint; None in a run without one."""

    def prepare(self) -> None:
        """Load what evaluating in this process needs: what is wrong with that is no network's."""

    def quality(self, network: Architecture) -> dict[str, float]:
        """Evaluate a network in this process; values may be infinite or no numbers."""


class ExternalSource(Source, Protocol):
    """The same of a run whose networks an evaluator of others knows; a `Run` is one."""

    @property
    def evaluator(self) -> Evaluator | None:
        """The evaluator, in this process."""

    def questions(self, networks: Sequence[Network]) -> list[Question]:
        """What it is asked of networks, with the costs that it tells without evaluating."""


class Meter(Protocol):
    """Times networks of a run on its device; `nas.profiling.latency_meter.LatencyMeter` is one."""

    @property
    def header(self) -> TimingHeader:
        """Device and workload."""

    def known(self, architecture: Architecture) -> bool:
        """Whether a network needs no timing."""

    def measure(self, architectures: Sequence[Architecture]) -> Timed[Measurement]:
        """Milliseconds of each network."""

    def confirm(self, architectures: Sequence[Architecture]) -> Timed[Measurement]:
        """Time networks again whose values were not expected."""

    def in_sessions(self, architectures: Sequence[Architecture]) -> Timed[ConfirmedLatency]:
        """Time each network in several sessions."""

    def forget(self) -> None:
        """Time everything anew from now on."""


class Executor(ABC):
    """Works for one run; a context that gives back everything it took.

    Nothing is started before it is needed.
    """

    def __init__(self, settings: ExecutorSettings) -> None:
        self.settings = settings

    @abstractmethod
    def evaluate(self, source: Source, networks: Sequence[Architecture]) -> Iterator[Outcome | str]:
        """Evaluate networks, with inherited weights or after a short training of their own.

        Args:
            source: the run, the same at every call.
            networks: any number, all different.

        Yields:
            One outcome for each network, in their order, as soon as those before it are known; and
            sentences for the user on what was lost meanwhile, at the time they come.

        Raises:
            ExecutorError: when there is nothing to evaluate on, or no longer.
        """

    @abstractmethod
    def ask(
        self, source: ExternalSource, networks: Sequence[Network]
    ) -> Iterator[list[Answered] | str]:
        """Ask the run's evaluator for networks.

        Args:
            source: the run, the same at every call.
            networks: any number, all different.

        Yields:
            Outcomes as soon as they are known, those together that became known together; and
            sentences as `evaluate` does.

        Raises:
            ExecutorError: when there is nothing to ask on, or no longer.
        """

    @abstractmethod
    def train(self, run: OpenedRun) -> Iterator[EpochReport | Note]:
        """Train a run's supernet, from the last checkpoint where there is one.

        Checkpoints lie in the run folder when it ends, the last and the best.

        Yields:
            A report for each epoch, and notes on what went wrong and was mended.

        Raises:
            NasError: see `supernet.training.loop.Trainer.run`.
            ExecutorError: when there is nothing to train on, or no longer.
        """

    @abstractmethod
    def distil(self, run: OpenedRun) -> Iterator[LocalReport | Note]:
        """Teach the kinds of attention of all layers that have not learnt yet.

        What they have learnt lies in the run folder when it ends, see
        `nas.run.layer_distillation.taught`.

        Yields:
            A report for each update that all of them have done, and notes on what was lost.

        Raises:
            NasError: the first that ended a part of it; the others are finished before.
        """

    @abstractmethod
    def retrain(
        self, run: OpenedRun, ids: Sequence[str], share: float | None = None
    ) -> Iterator[Event]:
        """Train networks of the front from scratch, or go on with it; see `retraining.stage`.

        The events are in the run's log when they come.

        Args:
            run: the run.
            ids: of the networks.
            share: of the training, from which on each stops at its next check and tells its loss,
                see `retraining.stage.train_part`; None for all of it.

        Raises:
            NasError: the first that ended one of them; the others are finished before.
        """

    @abstractmethod
    def check(self, spec: SearchSpec) -> None:
        """Refuse a request for a device that is not there.

        Raises:
            UsageError: saying which are.
        """

    @abstractmethod
    def device(self, spec: SearchSpec) -> DeviceFingerprint | None:
        """What networks of the run are timed on; None where nothing can be timed."""

    @property
    def width(self) -> int:
        """How many networks are worked on at once."""
        return 1

    def computes_on(self, spec: SearchSpec) -> str:
        """The device that the process which works on the run computes on itself."""
        return spec.device

    @abstractmethod
    def meter(
        self, spec: SearchSpec, device_profile: DeviceProfile | None, mode: Mode | None = None
    ) -> Meter:
        """What times networks, on a device of the run's kind that does nothing else meanwhile.

        Args:
            spec: the request.
            device_profile: the device profile that the search was given, if any.
            mode: of the workload that they are timed on; None for the workload's own.

        Raises:
            ExecutorError: when there is no such device.
        """

    @abstractmethod
    def measure(self, spec: SearchSpec, name: str, network: Architecture) -> float:
        """The value of an objective that is measured, of a network at its work on the run's device.

        Raises:
            ExecutorError: when there is no such device.
        """

    @abstractmethod
    def release(self) -> None:
        """Give back what evaluating and timing hold, so that others can have it; it may go on."""

    def close(self) -> None:
        """Give back everything."""
        self.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def in_order(items: Iterable[Answered | ToldT]) -> Iterator[Outcome | ToldT]:
    """Outcomes in the order of their places, each as soon as those before it are known.

    What is no outcome is given on when it comes.
    """
    known: dict[int, Outcome] = {}
    place = 0
    for item in items:
        if not isinstance(item, tuple):
            yield item
            continue
        known[item[0]] = item[1]
        while place in known:
            yield known.pop(place)
            place += 1


def check_finite(values: Mapping[str, float]) -> Outcome:
    """The values, or a failure where one of them is no finite number."""
    for name, value in values.items():
        if not math.isfinite(value):
            return Failure("not finite", f"its {name} is {value:g}", 1)
    return values
