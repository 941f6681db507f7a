"""`nas profile`: times networks on this machine, journals them, and writes the profile.

One of the modules of `nas` that know torch.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch

from latency.device import DeviceFingerprint, clock_mhz, describe_device
from latency.locking import machine_lock
from latency.workload import Workload
from nas.kinds import middle
from nas.profiling.device_profile import (
    CarriedProfile,
    MeasuredNetwork,
    Session,
    WorkloadProfile,
    genes_digest,
    settings_digest,
    write_device_profile,
)
from nas.profiling.latency_meter import relative
from nas.profiling.sessions import TimedSession, check_samples, profile_workload
from nas.profiling.timed_work import Maker, check_workload, network_memory_mb, time_networks
from search_spaces.architecture import Architecture
from search_spaces.errors import DataError, NasError, UsageError
from search_spaces.space import Genotypes, SearchSpace

Runtime = Literal["torch", "onnxruntime"]

ROUNDS = 15


@dataclass(frozen=True)
class ProfileRequest:
    """What to profile.

    Attributes:
        space: whose networks are timed.
        device: ``cpu`` or ``cuda``.
        name: what people call the device; None for its own name.
        workloads: what the networks do, at least one, all different.
        samples: networks timed for each workload.
        seed: of what is random.
        threads: CPU threads; None leaves them to torch.
        rounds: interleaved timed runs of each network.
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
    rounds: int = ROUNDS
    runtime: Runtime = "torch"

    def check(self) -> None:
        """Refuse what cannot be done, before anything is.

        Raises:
            UsageError: in one sentence.
        """
        check_samples(self.samples)
        if len(set(self.workloads)) < len(self.workloads):
            raise UsageError("the same --workload is given twice; give each one once")
        for workload in self.workloads:
            check_workload(self.space, workload)
        if self.runtime == "onnxruntime":
            _check_onnxruntime(self)

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
            "samples": self.samples,
            "seed": self.seed,
            "rounds": self.rounds,
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


def journal_path(out: Path) -> Path:
    """Where the measurements are kept until the profile is written."""
    return out.with_name(f"{out.name}.journal")


def profile_device(request: ProfileRequest, out: Path) -> Iterator[Profiled | CarriedProfile]:
    """Time networks and write the profile.

    Measurements are journaled beside `out`. The same request goes on where it was stopped.

    Args:
        request: what to profile.
        out: the file to write; it must not be there.

    Yields:
        How far it is after each session, and at last the profile.

    Raises:
        UsageError: for a request that cannot be met.
        DataError: when a file cannot be written or the journal is damaged.
    """
    request.check()
    if request.threads is not None:
        torch.set_num_threads(request.threads)
    device = request.describe()
    _refuse_existing(out)
    journal = Journal(journal_path(out), request.to_json(device))
    workloads: list[WorkloadProfile] = []
    for number, workload in enumerate(request.workloads):
        timer = _SessionTimer(request, workload, device.label)
        steps = profile_workload(
            request.space,
            workload,
            request.samples,
            request.seed,
            journal.sessions(number),
            timer,
        )
        done = sum(len(one.networks) for one in journal.sessions(number))
        for step in steps:
            if isinstance(step, WorkloadProfile):
                workloads.append(step)
                continue
            journal.add(number, step)
            done += len(step.networks)
            yield Profiled(workload, done, request.samples)
    profile = CarriedProfile(
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
    yield profile


class _SessionTimer:
    """Times some networks and the reference in one go."""

    def __init__(self, request: ProfileRequest, workload: Workload, label: str) -> None:
        self._request, self._workload, self._label = request, workload, label
        self._reference = request.space.decode(middle(request.space))[0]

    def __call__(self, rows: Genotypes, number: int) -> TimedSession:
        request, reference = self._request, self._reference
        networks = request.space.decode(rows)
        others = [network for network in networks if network.id != reference.id]
        job = (request.space, reference, others, self._workload, request.device, request.rounds)
        with request.ready([reference, *others], self._workload) as make, machine_lock():
            clock = clock_mhz(request.device)
            beside, timings = time_networks(*job, make)
        times = {one.id: timing for one, timing in zip(others, timings, strict=True)}
        times[reference.id] = beside
        measured = []
        for network in networks:
            memory = network_memory_mb(request.space, network, self._workload, request.device)
            latency = relative(times[network.id], beside, beside.median_ms, self._label)
            measured.append(MeasuredNetwork(network, latency, round(memory, 6), number))
        return TimedSession(Session(beside.median_ms, clock), tuple(measured))


class Journal:
    """Sessions on disk until the profile is written: a line for the request, one for each.

    Args:
        path: the file; taken up again where it is there.
        request: what it must belong to.

    Raises:
        UsageError: when it belongs to another request.
        DataError: when it is damaged or cannot be written.
    """

    def __init__(self, path: Path, request: Mapping[str, Any]) -> None:
        self._path = path
        self._sessions: dict[int, list[TimedSession]] = {}
        lines = _whole_lines(path)
        if not lines:
            self._write({"request": dict(request)}, "wb")
            return
        try:
            there = json.loads(lines[0])["request"]
            for line in lines[1:]:
                data = json.loads(line)
                self._sessions.setdefault(int(data["workload"]), []).append(_session(data))
        except (ValueError, KeyError, TypeError, NasError) as error:
            raise DataError(f"{path} is damaged ({error}); delete it to time anew") from error
        if there != request:
            names = [name for name in request if there.get(name) != request[name]]
            raise UsageError(
                f"{path} holds the measurements of another request, which differs in "
                f"{', '.join(names)}: repeat that one, delete the file, or choose another --out"
            )

    def sessions(self, workload: int) -> Sequence[TimedSession]:
        """What was timed of a workload, by its number."""
        return tuple(self._sessions.get(workload, ()))

    def add(self, workload: int, timed: TimedSession) -> None:
        """Keep a session, on disk before it returns."""
        self._write(
            {
                "workload": workload,
                "session": asdict(timed.session),
                "networks": [network.to_json() for network in timed.networks],
            },
            "ab",
        )
        self._sessions.setdefault(workload, []).append(timed)

    def remove(self) -> None:
        """The profile has it all."""
        self._path.unlink(missing_ok=True)

    def _write(self, line: Mapping[str, Any], mode: str) -> None:
        try:
            with self._path.open(mode) as stream:
                stream.write(json.dumps(line, allow_nan=False).encode() + b"\n")
                stream.flush()
                os.fsync(stream.fileno())
        except OSError as error:
            raise DataError(
                f"cannot write {self._path}: {error.strerror}; choose another --out"
            ) from error


def _whole_lines(path: Path) -> list[bytes]:
    """The lines of a journal; a last one that was cut off is removed from the file."""
    if not path.exists():
        return []
    try:
        data = path.read_bytes()
        whole = data[: data.rfind(b"\n") + 1]
        if len(whole) < len(data):
            with path.open("rb+") as stream:
                stream.truncate(len(whole))
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from error
    return whole.splitlines()


def _session(data: Mapping[str, Any]) -> TimedSession:
    networks = tuple(MeasuredNetwork.from_json(one) for one in data["networks"])
    return TimedSession(Session(**data["session"]), networks)


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
    try:
        import nas.profiling.onnx_timing  # noqa: F401
    except ModuleNotFoundError as error:
        raise UsageError(
            f"--runtime onnxruntime needs the package {error.name}: "
            "pip install 'nas-service[export]'"
        ) from error


def _refuse_existing(out: Path) -> None:
    if out.is_dir() or out.exists():
        what = "is a folder" if out.is_dir() else "is there already"
        raise UsageError(f"--out {out} {what}: name a file to be written, or delete that one")
    if not out.parent.is_dir():
        raise UsageError(f"--out {out}: there is no folder {out.parent}; make it first")
