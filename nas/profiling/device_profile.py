"""A device's measurements and predictors as one JSON file that another machine can search with.

`latency.timings` keeps single measurements of one workload in the user's cache; this file holds
one or several workloads with everything a search needs of them, and is written once, whole.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from latency.device import DeviceFingerprint
from latency.machine import CARD_FIELDS, without_unknown
from latency.predictor import LatencyPredictor
from latency.timing import HostShare
from latency.timings import TimingHeader
from latency.workload import BEHIND_CONTEXT, Workload
from nas.objectives import MEMORY, timed_workload
from nas.request.resolve import AttachedProfile
from search_spaces.architecture import Architecture
from search_spaces.errors import DataError, NasError, UsageError
from search_spaces.files import write_atomically
from search_spaces.json_text import UNREADABLE
from search_spaces.measurement import Measurement
from search_spaces.space import SearchSpace
from search_spaces.wording import mark

SCHEMA = 1
KIND = "nas device profile"
LEAST_TRUST = 0.1

Floats = NDArray[np.float64]


def settings_digest(space: SearchSpace) -> str:
    """sha256 of what all networks of a space share and timings depend on."""
    return _digest([space.task, space.model.stated()])


def genes_digest(space: SearchSpace) -> str:
    """sha256 of the choices of a space, which are the columns of its features."""
    return _digest([[slot.name, list(slot.choices)] for slot in space.slots])


@dataclass(frozen=True)
class MeasuredNetwork:
    """One network at its work.

    Attributes:
        architecture: the network.
        latency: median milliseconds, drift divided out, with the interquartile range as spread.
        peak_memory_mb: the most memory it needed, see `latency.memory`.
        session: number of the session it was timed in, from 0.
    """

    architecture: Architecture
    latency: Measurement
    peak_memory_mb: float
    session: int

    def cost(self, name: str) -> float:
        """What was measured of it for an objective that is not timed.

        Raises:
            DataError: when a profile has nothing of that.
        """
        if name != MEMORY:
            raise DataError(f"a device profile holds no {name}; search without one")
        return self.peak_memory_mb

    def to_json(self) -> dict[str, Any]:
        """The JSON form."""
        return {
            "id": self.architecture.id,
            "architecture": self.architecture.to_json(),
            "latency": self.latency.to_json(),
            "peak_memory_mb": self.peak_memory_mb,
            "session": self.session,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Read the JSON form.

        Raises:
            DataError: when the id is not the architecture's or a number is not one.
        """
        architecture = Architecture.from_json(data["architecture"])
        if data["id"] != architecture.id:
            raise DataError(f"the id {data['id']!r} is not that of its architecture")
        latency = Measurement.from_json(data["latency"])
        memory = float(data["peak_memory_mb"])
        if not (latency.value > 0 and 0 < memory < np.inf):
            raise DataError(f"the network {architecture.id} has no positive time and memory")
        return cls(architecture, latency, memory, int(data["session"]))


@dataclass(frozen=True)
class Session:
    """A spell of timing without a break.

    Attributes:
        reference_ms: median of the reference network, as it was; by how much it differs between
            sessions is how much the device's speed did, and is divided out.
        clock_mhz: clock frequency after it, None where it cannot be read.
        celsius: temperature of a graphics card after it, likewise.
        throttled: why a graphics card was slower then than it is as a rule, likewise; empty where
            nothing slowed it down.
        again: whether networks were timed in it that had been timed before.
        repeated: how often the timer was disturbed in it and began anew.
        waited_s: for the machine to become quiet.
        unit_ms: what the reference takes undisturbed, as far as all sessions up to this one and
            what is known of the machine tell; None in older profiles.
    """

    reference_ms: float
    clock_mhz: float | None
    again: bool = False
    repeated: int = 0
    waited_s: float = 0.0
    unit_ms: float | None = None
    celsius: float | None = None
    throttled: str | None = None

    def to_json(self) -> dict[str, Any]:
        """All fields by name; what is known of graphics cards alone, where it is known."""
        return without_unknown(asdict(self), *CARD_FIELDS)


@dataclass(frozen=True, eq=False)
class WorkloadProfile:
    """Everything known of one workload.

    Attributes:
        workload: what was timed.
        measured: the networks, the reference first.
        sessions: in order.
        latency: predicts milliseconds.
        memory: predicts megabytes.
        report: error and rank correlation by number of samples, see `nas.profiling.report`.
        host: how much of the reference's latency is the host's; None on a processor, for runtimes
            other than torch and in older profiles.
    """

    workload: Workload
    measured: tuple[MeasuredNetwork, ...]
    sessions: tuple[Session, ...]
    latency: LatencyPredictor
    memory: LatencyPredictor
    report: Mapping[str, Any]
    host: HostShare | None = None

    def predictor(self, name: str) -> LatencyPredictor:
        """What predicts such an objective; see `MeasuredNetwork.cost`."""
        self.measured[0].cost(name)
        return self.memory

    def to_json(self) -> dict[str, Any]:
        """The JSON form."""
        host = {} if self.host is None else {"host": self.host.to_json()}
        return {
            "workload": self.workload.to_json(),
            "measured": [one.to_json() for one in self.measured],
            "sessions": [session.to_json() for session in self.sessions],
            "predictors": {
                "latency_ms": self.latency.to_json(),
                "peak_memory_mb": self.memory.to_json(),
            },
            "report": dict(self.report),
            **host,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Read the JSON form; the predictors are fitted again."""
        measured = tuple(MeasuredNetwork.from_json(one) for one in data["measured"])
        if not measured:
            raise DataError("a workload has no measured network")
        return cls(
            workload=Workload.from_json(data["workload"]),
            measured=measured,
            sessions=tuple(Session(**one) for one in data["sessions"]),
            latency=LatencyPredictor.from_json(data["predictors"]["latency_ms"]),
            memory=LatencyPredictor.from_json(data["predictors"]["peak_memory_mb"]),
            report=dict(data["report"]),
            host=HostShare.from_json(data["host"]) if "host" in data else None,
        )


@dataclass(frozen=True, eq=False)
class DeviceProfile:
    """What one device does with the networks of one space, to be carried to another machine.

    Attributes:
        name: what people call the device.
        device: its fingerprint.
        space_name: of the space that was profiled.
        settings: `settings_digest` of that space.
        genes: `genes_digest` of that space.
        seed: of what was random in it.
        workloads: at least one.
    """

    name: str
    device: DeviceFingerprint
    space_name: str
    settings: str
    genes: str
    seed: int
    workloads: tuple[WorkloadProfile, ...]

    @cached_property
    def digest(self) -> str:
        """sha256 of the JSON form."""
        return _digest(self.to_json())

    def header(self, workload: Workload) -> TimingHeader:
        """What single measurements of a workload have in common, for `latency.timings`."""
        return TimingHeader(self.device, workload, self.settings)

    def to_json(self) -> dict[str, Any]:
        """The JSON form."""
        return {
            "kind": KIND,
            "schema": SCHEMA,
            "name": self.name,
            "device": self.device.to_json(),
            "space": {"name": self.space_name, "settings": self.settings, "genes": self.genes},
            "seed": self.seed,
            "workloads": [one.to_json() for one in self.workloads],
        }

    @classmethod
    def from_json(cls, data: Any) -> Self:
        """Read the JSON form.

        Raises:
            DataError: for something else, another schema or damaged content.
        """
        if not isinstance(data, Mapping) or data.get("kind") != KIND:
            raise DataError("it is no device profile made by nas profile")
        if data.get("schema") != SCHEMA:
            raise DataError(f"it has schema {data.get('schema')!r}; this version reads {SCHEMA}")
        try:
            workloads = tuple(WorkloadProfile.from_json(one) for one in data["workloads"])
            if not workloads:
                raise DataError("it holds no workload")
            return cls(
                name=str(data["name"]),
                device=DeviceFingerprint.from_json(data["device"]),
                space_name=str(data["space"]["name"]),
                settings=str(data["space"]["settings"]),
                genes=str(data["space"]["genes"]),
                seed=int(data["seed"]),
                workloads=workloads,
            )
        except KeyError as error:
            raise DataError(f"it is damaged: {error} is missing") from error
        except (*UNREADABLE, NasError) as error:
            raise DataError(f"it is damaged: {error}") from error

    # -- for a search ---------------------------------------------------------------------------

    def check_space(self, space: SearchSpace, again: str) -> None:
        """Refuse a space whose networks the profile knows nothing of.

        Args:
            space: to be searched.
            again: how a profile of it is made, in words.

        Raises:
            UsageError: saying what differs.
        """
        if settings_digest(space) != self.settings:
            raise UsageError(
                f"the device profile of {self.name} was made for the space {self.space_name}, "
                f"whose task or [model] settings are not those of {space.name}: {again}"
            )
        if genes_digest(space) != self.genes:
            raise UsageError(
                f"the device profile of {self.name} was made for the space {self.space_name}, "
                f"which offers other choices than {space.name}: {again}"
            )

    def of(self, workload: Workload) -> WorkloadProfile:
        """What is known of a workload.

        Raises:
            UsageError: when that is nothing.
        """
        for one in self.workloads:
            if one.workload == workload:
                return one
        there = ", or ".join(one.workload.option for one in self.workloads)
        raise UsageError(
            f"the device profile of {self.name} holds no workload {workload.option}: choose "
            f"{mark('workload')} {there}"
        )

    def choose(self, wanted: Workload | None, space: SearchSpace) -> Workload:
        """The workload to search for, of which the profile holds at least one timing.

        Args:
            wanted: as asked for; None where nothing was.
            space: to be searched; its own workload is taken where the profile holds it.

        Raises:
            UsageError: when there is none such, or it is not clear which; lists what there is.
        """
        usual = Workload.from_mapping(space.workload) if space.workload else None
        sought = wanted or usual
        if sought is not None and self._timed_of(sought, space):
            return sought
        offered = dict.fromkeys(_searched(one.workload, sought) for one in self.workloads)
        if wanted is None and len(offered) == 1:
            return next(iter(offered))
        there = ", or ".join(one.option for one in offered)
        asked = "several workloads" if sought is None else f"no workload {sought.option}"
        raise UsageError(
            f"the device profile of {self.name} holds {asked}: choose {mark('workload')} {there}"
        )

    def _timed_of(self, workload: Workload, space: SearchSpace) -> tuple[WorkloadProfile, ...]:
        """What the profile holds of a workload, in any mode that an objective is timed in."""
        modes = (None, *BEHIND_CONTEXT)
        wanted = dict.fromkeys(timed_workload(space, mode, workload) for mode in modes)
        return tuple(one for timed in wanted for one in self.workloads if one.workload == timed)

    def attached(self, space: SearchSpace, again: str, wanted: Workload | None) -> AttachedProfile:
        """The part that a search is for.

        Args:
            space: to be searched.
            again: how a profile of it is made, in words.
            wanted: the workload asked for; None where nothing was.

        Raises:
            UsageError: as `check_space` and `choose`.
        """
        self.check_space(space, again)
        chosen = self.choose(wanted, space)
        part = self.only(self._timed_of(chosen, space))
        workloads = tuple(one.workload for one in part.workloads)
        return AttachedProfile(chosen, workloads, part.digest, dumped(part))

    def only(self, workloads: tuple[WorkloadProfile, ...]) -> DeviceProfile:
        """The same with these workloads alone."""
        return replace(self, workloads=workloads)


def read_device_profile(path: Path) -> DeviceProfile:
    """Read a file made by `nas profile`.

    Raises:
        UsageError: when there is no such file.
        DataError: when it cannot be read, is damaged or something else.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UsageError(
            f"there is no device profile {path}: make one with nas profile --out {path}"
        ) from None
    except OSError as error:
        raise DataError(f"cannot read the device profile {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise DataError(
            f"the device profile {path} cannot be used: it is damaged or no JSON ({error})"
        ) from error
    try:
        return DeviceProfile.from_json(data)
    except DataError as error:
        raise DataError(f"the device profile {path} cannot be used: {error}") from error


def write_device_profile(path: Path, profile: DeviceProfile) -> None:
    """Write the file, in full or not at all."""
    write_atomically(path, dumped(profile))


def dumped(profile: DeviceProfile) -> str:
    """The content of the file."""
    return json.dumps(profile.to_json(), allow_nan=False) + "\n"


def trust(measured: Sequence[MeasuredNetwork]) -> Floats:
    """How far each time is trusted, ``(N,)`` in (0, 1]: one that scattered more counts less.

    The weight is 1 up to the usual relative spread, then falls in proportion to it, to a tenth,
    which is also that of a doubtful one.
    """
    spread_N = np.array([one.latency.spread / one.latency.value for one in measured])
    usual = float(np.median(spread_N))
    weights_N = np.ones(len(spread_N))
    if usual > 0:
        weights_N = np.clip(usual / np.maximum(spread_N, usual), LEAST_TRUST, 1.0)
    weights_N[[bool(one.latency.doubtful) for one in measured]] = LEAST_TRUST
    return np.asarray(weights_N, dtype=np.float64)


def _searched(timed: Workload, sought: Workload | None) -> Workload:
    """The workload of a search that a timing is for.

    A timing behind a context says nothing of the source, by which FLOPs are counted and texts are
    cut into segments: that stays as it is sought, unless nothing else tells a length.
    """
    if timed.mode not in BEHIND_CONTEXT:
        return timed
    told = {"batch": timed.batch, "dtype": timed.dtype, "context": timed.source_length}
    source = {"source": timed.source_length} if sought is None else sought.to_json()
    return Workload.from_mapping({**source, **told, "runtime": timed.runtime})


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
