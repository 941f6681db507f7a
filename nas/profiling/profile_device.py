"""`nas profile`: times networks on this machine, journals them, and writes the profile.

One of the modules of `nas` that know torch.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch

from latency import acceptance
from latency.acceptance import Reading, SessionTimes, speed_sessions, unit_of
from latency.device import DeviceFingerprint, describe_device
from latency.timing import HostShare
from latency.turns import computing
from latency.workload import Workload
from latency.yardstick import SpeedRecord
from nas.objectives import MEMORY
from nas.profiling.device_profile import (
    DeviceProfile,
    MeasuredNetwork,
    Session,
    WorkloadProfile,
    genes_digest,
    settings_digest,
    write_device_profile,
)
from nas.profiling.files import claimed, journal_path
from nas.profiling.finished import finished_profile
from nas.profiling.journal import Journal
from nas.profiling.sessions import TimedSession, check_samples, num_networks, profile_workload
from nas.profiling.timed_work import (
    Maker,
    network_cost,
    network_host_share,
    num_sessions,
    session_rounds,
    time_session,
    time_until_accepted,
)
from nas.request.workloads import check_runtime, check_workload
from nas.search.uniform_networks import middle
from search_spaces.architecture import Architecture
from search_spaces.errors import UsageError
from search_spaces.space import Genotypes, SearchSpace

Runtime = Literal["torch", "onnxruntime"]

ROUNDS = 15  # interleaved timed runs of each network


@dataclass(frozen=True)
class ProfileRequest:
    """What to profile.

    Attributes:
        space: whose networks are timed.
        device: ``cpu`` or ``cuda``.
        name: what people call the device; None for its own name.
        workloads: what the networks do, at least one, all different.
        samples: networks timed for each workload; a smaller space is timed whole.
        seed: of what is random.
        threads: CPU threads; None leaves them to torch.
        runtime: what runs them. With ``onnxruntime`` they are exported first, and the device is
            one of its own.
    """

    space: SearchSpace
    device: str
    name: str | None
    workloads: tuple[Workload, ...]
    samples: int
    seed: int = 0
    threads: int | None = None
    runtime: Runtime = "torch"

    def check(self) -> None:
        """Refuse what cannot be done, before anything is.

        Raises:
            UsageError: in one sentence.
        """
        check_samples(self.space, self.samples)
        if len(set(self.workloads)) < len(self.workloads):
            raise UsageError("the same --workload is given twice; give each one once")
        for workload in self.workloads:
            check_workload(self.space, workload)
        if self.runtime == "onnxruntime":
            _check_onnxruntime(self)
            return
        for workload in self.workloads:
            check_runtime(workload, self.device)

    def describe(self) -> DeviceFingerprint:
        """The device with its runtime, as it is used now."""
        device = describe_device(self.device)
        if self.runtime == "torch":
            return device
        from nas.profiling.onnx_timing import runtime_name

        return replace(device, runtime=runtime_name())

    def ready(
        self, networks: Sequence[Architecture], workload: Workload
    ) -> AbstractContextManager[Maker | None]:
        """What makes the calls of these networks while it is open; None for torch's own."""
        if self.runtime == "torch":
            return nullcontext()
        from nas.profiling.onnx_timing import exported_calls

        return exported_calls(self.space, networks, workload, torch.get_num_threads())

    def to_json(self, device: DeviceFingerprint) -> dict[str, Any]:
        """What decides the content of the profile; the first line of the journal."""
        return {
            "device": device.to_json(),
            "space": genes_digest(self.space),
            "settings": settings_digest(self.space),
            "workloads": [workload.to_json() for workload in self.workloads],
            "samples": num_networks(self.space, self.samples, self.seed),
            "seed": self.seed,
            "rounds": ROUNDS,
        }


@dataclass(frozen=True)
class Profiled:
    """How far a profile is.

    Attributes:
        workload: being timed.
        done: its networks timed so far.
        wanted: its networks to time.
    """

    workload: Workload
    done: int
    wanted: int


def profile_device(request: ProfileRequest, out: Path) -> Iterator[Profiled | DeviceProfile]:
    """Time networks and write the profile.

    Measurements are journaled beside `out`. The same request goes on where it was stopped, and is
    not timed again where it was finished.

    Args:
        request: what to profile.
        out: the file to write; what is there must be the profile of the same request.

    Yields:
        How far it is after each session, and at last the profile.

    Raises:
        UsageError: for a request that cannot be met, or while another process makes the same file.
        DataError: when a file cannot be written or the journal is damaged.
    """
    request.check()
    if request.threads is not None:
        torch.set_num_threads(request.threads)
    device = request.describe()
    identity = request.to_json(device)
    wanted = {"name": request.name or device.label, **identity}
    made = finished_profile(out, wanted)
    if made is None:
        with claimed(out):
            made = finished_profile(out, wanted)  # another process may just have ended
            if made is None:
                with computing(request.device):
                    made = yield from _timed(request, device, identity, out)
    yield made


def _timed(
    request: ProfileRequest, device: DeviceFingerprint, identity: Mapping[str, Any], out: Path
) -> Generator[Profiled, None, DeviceProfile]:
    """Time what is not in the journal yet, and write the profile."""
    journal = Journal(journal_path(out), identity)
    workloads: list[WorkloadProfile] = []
    for number, workload in enumerate(request.workloads):
        timed = journal.sessions(number)
        timer = _SessionTimer(request, workload, device, timed)
        asked = (request.space, workload, request.samples, request.seed)
        done = {network.architecture.id for one in timed for network in one.networks}
        for step in profile_workload(*asked, timed, timer):
            if isinstance(step, WorkloadProfile):
                workloads.append(replace(step, host=_host(request, workload)))
                continue
            journal.add(number, step)
            done |= {network.architecture.id for network in step.networks}
            yield Profiled(workload, len(done), identity["samples"])
    profile = DeviceProfile(
        name=request.name or device.label,
        device=device,
        space_name=request.space.name,
        settings=settings_digest(request.space),
        genes=genes_digest(request.space),
        seed=request.seed,
        workloads=tuple(workloads),
    )
    write_device_profile(out, profile)
    journal.remove()
    return profile


class _SessionTimer:
    """Times some networks and the reference in one go.

    Args:
        request: of the profile.
        workload: what they do.
        device: with the request's runtime.
        timed: sessions of an earlier try.
    """

    def __init__(
        self,
        request: ProfileRequest,
        workload: Workload,
        device: DeviceFingerprint,
        timed: Sequence[TimedSession],
    ) -> None:
        self._request, self._workload, self._label = request, workload, device.label
        self._unit_ms = _first_unit_ms(timed)
        self._speed = SpeedRecord(replace(device, runtime=None), workload.dtype)
        self._calm = [reading for one in timed for reading in one.calm]
        self._reference = request.space.decode(middle(request.space))[0]

    def __call__(self, rows: Genotypes, number: int) -> TimedSession:
        request, reference = self._request, self._reference
        networks = request.space.decode(rows)
        others = [network for network in networks if network.id != reference.id]
        rounds = session_rounds(ROUNDS)
        with request.ready([reference, *others], self._workload) as make:

            def session(numbers: Sequence[int]) -> SessionTimes:
                asked = [others[number] for number in numbers]
                return time_session(
                    request.space, reference, asked, self._workload, request.device, rounds, make
                )

            settled = time_until_accepted(
                session,
                len(others),
                request.device,
                num_sessions(ROUNDS),
                self._unit_ms,
                self._speed.read(),
            )
        # As the journal keeps them, so that a profile that was stopped ends in the same bits.
        calm = tuple(Reading.from_json(one.to_json()) for one in settled.reference.calm)
        self._calm += calm
        speed = self._speed.add(speed_sessions(settled.reference.readings))
        undisturbed = unit_of(
            self._calm or settled.reference.readings, speed.quiet_ms, acceptance.TOLERANCES
        )
        unit_ms, last = settled.unit.own_ms, settled.reference.readings[-1]
        if self._unit_ms is None and settled.reference.doubt:
            settled = settled.doubting(f"the reference network: {settled.reference.doubt}")
        elif self._unit_ms is None:
            self._unit_ms = unit_ms
        verdicts = {one.id: verdict for one, verdict in zip(others, settled.calls, strict=True)}
        verdicts[reference.id] = settled.reference
        measured = []
        for network in networks:
            memory = network_cost(MEMORY, request.space, network, self._workload, request.device)
            latency = verdicts[network.id].measurement(unit_ms, self._label)
            measured.append(MeasuredNetwork(network, latency, round(memory, 6), number))
        summary = Session(
            unit_ms,
            last.state.clock_mhz,
            repeated=settled.repeated,
            waited_s=round(settled.waited_s, 1),
            unit_ms=undisturbed.ms,
            celsius=last.state.celsius,
            throttled=last.state.throttled,
        )
        return TimedSession(summary, tuple(measured), calm)


def _first_unit_ms(timed: Sequence[TimedSession]) -> float | None:
    """What the reference took in the first session in which it was sure; None before there is one.

    Where it was not, all networks that were timed beside it are doubtful.
    """
    sure = (
        one.session.reference_ms
        for one in timed
        if not all(network.latency.doubtful for network in one.networks)
    )
    return next(sure, None)


def _host(request: ProfileRequest, workload: Workload) -> HostShare | None:
    """How much of the reference's latency is the host's; None where that cannot be told."""
    if request.device == "cpu" or request.runtime != "torch":
        return None
    (reference,) = request.space.decode(middle(request.space))
    return network_host_share(request.space, reference, workload, request.device)


def _check_onnxruntime(request: ProfileRequest) -> None:
    """Refuse what onnxruntime cannot be asked for here."""
    if request.device != "cpu":
        raise UsageError(
            f"--runtime onnxruntime runs on the processor; leave out --device {request.device}"
        )
    for workload in request.workloads:
        if workload.dtype != "float32":
            raise UsageError(
                "the graphs of --runtime onnxruntime are in float32; "
                f"leave out dtype={workload.dtype}"
            )
        if workload.runtime is not None:
            raise UsageError(
                "the graphs of --runtime onnxruntime are run in one way; leave out "
                f"runtime={workload.runtime}"
            )
    try:
        import nas.profiling.onnx_timing  # noqa: F401
    except ModuleNotFoundError as error:
        raise UsageError(
            f"--runtime onnxruntime needs the package {error.name}: "
            "pip install 'nas-service[export]'"
        ) from error
