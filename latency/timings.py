"""A device's measurements as one JSON Lines file that can be carried to another machine.

The first line says what device, workload and model settings the file belongs to; every other
line is one measured architecture: its value, and beside it all samples of all sessions of the timer
with what the machine did meanwhile. A network measured once is not timed again, which is what makes
two searches with the same seed agree although no two timings do; so nothing doubtful is kept in the
user's cache (see `latency.acceptance`).

Files of schema 1 held no samples. They can be read where a run keeps one, and are not used as a
cache: their timings were believed without proof. In files of schema 2 short calls were timed with
whatever the others left in the processor's caches, so that they are no cache either.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, Self, get_args

from latency.acceptance import Reading
from latency.device import DeviceFingerprint
from latency.locking import cache_dir, file_lock, write_lock
from latency.workload import Workload
from search_spaces.architecture import Architecture
from search_spaces.errors import DataError, NasError
from search_spaces.files import append_lines, whole_lines, write_atomically
from search_spaces.measurement import Measurement

SCHEMA = 3
READABLE = range(1, SCHEMA + 1)
METRIC = "latency_ms"
ENDING = ".jsonl"
# Beside the times of networks lie those of networks timed in many sessions, and of those whose
# times were confirmed.
Sibling = Literal["held", "confirmed"]
SIBLINGS: tuple[Sibling, ...] = get_args(Sibling)


@dataclass(frozen=True, slots=True)
class TimingHeader:
    """What the measurements of a profile have in common.

    Attributes:
        device: where they were taken.
        workload: what was timed.
        settings_digest: digest of the space's `ModelSettings`, which are part of every network.
    """

    device: DeviceFingerprint
    workload: Workload
    settings_digest: str

    @property
    def digest(self) -> str:
        """sha256 of the sorted JSON."""
        return hashlib.sha256(json.dumps(self.to_json(), sort_keys=True).encode()).hexdigest()

    def to_json(self) -> dict[str, Any]:
        """The first line of the file."""
        return {
            "schema": SCHEMA,
            "device": self.device.to_json(),
            "workload": self.workload.to_json(),
            "settings": self.settings_digest,
        }

    @classmethod
    def from_json(cls, data: object) -> Self:
        """Read the first line of a file.

        Raises:
            DataError: when it is not the header of a profile of this schema.
            UsageError: for a workload that is not valid.
        """
        if not isinstance(data, Mapping) or "schema" not in data:
            raise DataError("not the header of a device profile")
        if data["schema"] not in READABLE:
            raise DataError(f"schema {data['schema']!r}; this version reads 1 to {SCHEMA}")
        if set(data) != {"schema", "device", "workload", "settings"}:
            raise DataError(f"not the header of a device profile: keys {sorted(data)}")
        device = DeviceFingerprint.from_json(data["device"])
        return cls(device, Workload.from_json(data["workload"]), str(data["settings"]))

    def difference(self, other: TimingHeader) -> str | None:
        """The first thing in which two headers differ, in words; None for equal ones."""
        for name, mine in self.to_json().items():
            theirs = other.to_json()[name]
            if mine != theirs:
                return f"{name} {json.dumps(mine)} instead of {json.dumps(theirs)}"
        return None


class TimingJournal:
    """An open profile: the measurements known so far, and the file that new ones are added to.

    Several processes may hold the same file open; see `measure`. Made by `open_timings` and
    `read_timings`.

    Attributes:
        path: the file.
        header: its first line.
    """

    def __init__(self, path: Path, header: TimingHeader) -> None:
        self.path = path
        self.header = header
        self._entries: dict[str, tuple[Architecture, Measurement]] = {}
        self._readings: dict[str, tuple[Reading, ...]] = {}

    @property
    def entries(self) -> Mapping[str, tuple[Architecture, Measurement]]:
        """Architecture id → the architecture and its measurement, oldest first."""
        return MappingProxyType(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, architecture_id: str) -> Measurement | None:
        """The measurement of that architecture, or None."""
        entry = self._entries.get(architecture_id)
        return None if entry is None else entry[1]

    def readings(self, architecture_id: str) -> tuple[Reading, ...]:
        """Everything the timer said of that architecture; empty where nothing was kept."""
        return self._readings.get(architecture_id, ())

    def refresh(self) -> None:
        """Read what other processes have changed.

        Raises:
            DataError: for a damaged line, by its number, or a file replaced by another profile.
        """
        fresh = read_timings(self.path)
        _refuse_other(self.path, fresh.header, self.header)
        self._entries, self._readings = fresh._entries, fresh._readings

    def record(
        self,
        measured: Sequence[tuple[Architecture, Measurement]],
        readings: Mapping[str, Sequence[Reading]] | None = None,
    ) -> None:
        """Add measurements, on disk before it returns.

        An architecture the file already has keeps its value: the first one wins, also when it
        was another process's.

        Args:
            measured: the architectures with their values.
            readings: architecture id → what the timer said of it.

        Raises:
            DataError: for a value that is not a positive number of milliseconds.
        """
        for _, measurement in measured:
            _check_measurement(measurement)
        with self._changing():
            new: dict[str, tuple[Architecture, Measurement]] = {}
            for architecture, measurement in measured:
                if architecture.id not in self._entries:
                    new.setdefault(architecture.id, (architecture, measurement))
            for key in new:
                self._readings[key] = tuple((readings or {}).get(key, ()))
            self._entries.update(new)
            append_lines(self.path, [_line(self._line(key)) for key in new])

    def replace(
        self, changed: Sequence[tuple[Architecture, Measurement, Sequence[Reading]]]
    ) -> None:
        """Put other values in the place of those the file has; they keep their places."""
        for _, measurement, _ in changed:
            _check_measurement(measurement)
        with self._changing():
            for architecture, measurement, readings in changed:
                self._entries[architecture.id] = (architecture, measurement)
                self._readings[architecture.id] = tuple(readings)
            self._rewrite()

    def rescale(self, factor: float) -> None:
        """Multiply all times by a factor: the unit in which they are told has changed."""
        with self._changing():
            for key, (architecture, one) in self._entries.items():
                scaled = replace(one, value=one.value * factor, spread=one.spread * factor)
                self._entries[key] = (architecture, scaled)
            self._rewrite()

    def drop(self, architecture_ids: Iterable[str]) -> None:
        """Forget measurements, so that their networks are timed anew."""
        with self._changing():
            for key in architecture_ids:
                self._entries.pop(key, None)
                self._readings.pop(key, None)
            self._rewrite()

    @contextmanager
    def _changing(self) -> Iterator[None]:
        with file_lock(write_lock(self.path)):
            self.refresh()
            yield

    def _line(self, key: str) -> dict[str, Any]:
        architecture, measurement = self._entries[key]
        return {
            "id": architecture.id,
            "architecture": architecture.to_json(),
            "measurement": measurement.to_json(),
            "readings": [one.to_json() for one in self._readings.get(key, ())],
        }

    def _rewrite(self) -> None:
        lines = [self.header.to_json(), *map(self._line, self._entries)]
        write_atomically(self.path, "".join(f"{_line(line)}\n" for line in lines))

    @contextmanager
    def timing(self) -> Iterator[None]:
        """Let one process at a time measure for this file: another one waits, and finds its values.

        Raises:
            NasError: when the other one takes too long.
        """
        with file_lock(timing_lock(self.path)):
            self.refresh()
            yield


def open_timings(path: Path, header: TimingHeader) -> TimingJournal:
    """Open the profile at `path` for that device, workload and settings; make it if needed.

    Raises:
        DataError: when the file belongs to something else or is damaged; the message names what
            differs, or the line.
    """
    with file_lock(write_lock(path)):
        if not path.exists() or (path.is_file() and path.stat().st_size == 0):
            append_lines(path, [_line(header.to_json())])
    profile = read_timings(path)
    _refuse_other(path, profile.header, header)
    return profile


def read_timings(path: Path) -> TimingJournal:
    """Read a profile, for example one carried here from another machine.

    A last line that was cut while it was being written is dropped.

    Raises:
        DataError: when it cannot be read, is no profile, or has a damaged line.
    """
    try:
        lines = whole_lines(path.read_bytes()).splitlines()
    except OSError as error:
        raise DataError(f"cannot read the device profile {path}: {error.strerror}") from error
    profile: TimingJournal | None = None
    for number, line in enumerate(lines or [b""], start=1):
        if not line.strip() and number > 1:
            continue
        try:
            data = json.loads(line.decode())
            if profile is None:
                profile = TimingJournal(path, TimingHeader.from_json(data))
            else:
                architecture, measurement, readings = _entry(data)
                if architecture.id not in profile._entries:
                    profile._entries[architecture.id] = (architecture, measurement)
                    profile._readings[architecture.id] = readings
        except (ValueError, OverflowError, RecursionError, NasError) as error:
            what = "the file" if number == 1 else "that line"
            raise DataError(
                f"{path}, line {number}: {error}; delete {what} to measure anew"
            ) from error
    assert profile is not None
    return profile


def default_timings_path(header: TimingHeader) -> Path:
    """Where that profile lives when the user names no file: in the user's cache folder."""
    return timings_dir() / f"{header.digest[:16]}{ENDING}"


def timings_dir() -> Path:
    """The folder of all profiles in the user's cache."""
    return cache_dir() / "profiles"


def sibling(path: Path, kind: Sibling) -> Path:
    """The profile beside another one that holds what `SIBLINGS` says of the same networks."""
    return path.with_suffix(f".{kind}{ENDING}")


def timings_id(path: Path) -> str:
    """What the files of one device, workload and space have in common in their names."""
    name = path.name.removesuffix(ENDING)
    for kind in SIBLINGS:
        name = name.removesuffix(f".{kind}")
    return name


def timing_lock(path: Path) -> Path:
    """Held by who measures for a profile and those beside it."""
    return path.with_name(path.name + ".timing")


def _refuse_other(path: Path, found: TimingHeader, wanted: TimingHeader) -> None:
    difference = found.difference(wanted)
    if difference is not None:
        raise DataError(f"the device profile {path} has {difference}; name another file")


def _line(data: Mapping[str, Any]) -> str:
    return json.dumps(data, sort_keys=True, allow_nan=False)


def _entry(data: object) -> tuple[Architecture, Measurement, tuple[Reading, ...]]:
    names = {"id", "architecture", "measurement"}
    if not isinstance(data, Mapping) or set(data) - {"readings"} != names:
        raise DataError("not a measured architecture")
    architecture = Architecture.from_json(data["architecture"])
    measurement = Measurement.from_json(data["measurement"])
    _check_measurement(measurement)
    if data["id"] != architecture.id:
        raise DataError(f"the id {data['id']!r} is not that of its architecture, {architecture.id}")
    try:
        readings = tuple(Reading.from_json(one) for one in data.get("readings", ()))
    except (KeyError, TypeError) as error:
        raise DataError(f"damaged readings of {architecture.id}: {error!r}") from error
    return architecture, measurement, readings


def _check_measurement(measurement: Measurement) -> None:
    value = measurement.value
    if measurement.metric != METRIC or not (math.isfinite(value) and value > 0):
        raise DataError(
            f"a profile holds positive values of {METRIC}; given {measurement.metric} = {value!r}"
        )
