"""A device's measurements as one JSON Lines file that can be carried to another machine.

The first line says what device, workload and model settings the file belongs to; every other
line is one measured architecture. A network measured once is never timed again, which is what
makes two searches with the same seed agree although no two timings do.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

from latency.device import DeviceFingerprint
from latency.locking import cache_dir, file_lock
from latency.workload import Workload
from search_spaces.architecture import Architecture
from search_spaces.errors import DataError, NasError
from search_spaces.files import write_atomically
from search_spaces.measurement import Measurement

SCHEMA = 1
METRIC = "latency_ms"


@dataclass(frozen=True, slots=True)
class ProfileHeader:
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
        if data["schema"] != SCHEMA:
            raise DataError(f"schema {data['schema']!r}; this version reads schema {SCHEMA}")
        if set(data) != {"schema", "device", "workload", "settings"}:
            raise DataError(f"not the header of a device profile: keys {sorted(data)}")
        device = DeviceFingerprint.from_json(data["device"])
        return cls(device, Workload.from_json(data["workload"]), str(data["settings"]))

    def difference(self, other: ProfileHeader) -> str | None:
        """The first thing in which two headers differ, in words; None for equal ones."""
        for name, mine in self.to_json().items():
            theirs = other.to_json()[name]
            if mine != theirs:
                return f"{name} {json.dumps(mine)} instead of {json.dumps(theirs)}"
        return None


class DeviceProfile:
    """An open profile: the measurements known so far, and the file that new ones are added to.

    Several processes may hold the same file open; see `measure`. Made by `open_profile` and
    `read_profile`.

    Attributes:
        path: the file.
        header: its first line.
    """

    def __init__(self, path: Path, header: ProfileHeader) -> None:
        self.path = path
        self.header = header
        self._entries: dict[str, tuple[Architecture, Measurement]] = {}

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

    def refresh(self) -> None:
        """Read what other processes have added.

        Raises:
            DataError: for a damaged line, by its number, or a file replaced by another profile.
        """
        fresh = read_profile(self.path)
        _refuse_other(self.path, fresh.header, self.header)
        self._entries = fresh._entries

    def record(self, measured: Sequence[tuple[Architecture, Measurement]]) -> None:
        """Add measurements, on disk before it returns.

        An architecture the file already has keeps its value: the first one wins, also when it
        was another process's.

        Raises:
            DataError: for a value that is not a positive number of milliseconds.
        """
        for _, measurement in measured:
            _check_measurement(measurement)
        with file_lock(_beside(self.path)):
            self.refresh()
            new: dict[str, tuple[Architecture, Measurement]] = {}
            for architecture, measurement in measured:
                if architecture.id not in self._entries:
                    new.setdefault(architecture.id, (architecture, measurement))
            _append(self.path, [_entry_json(*entry) for entry in new.values()])
            self._entries.update(new)

    def measure(
        self,
        architectures: Sequence[Architecture],
        time_them: Callable[[list[Architecture]], Sequence[Measurement]],
    ) -> list[Measurement]:
        """Measurements of all the architectures, timing only those the file does not have.

        One process at a time does so: a second one waits, and then finds the values of the first.

        Args:
            architectures: any number, repeats allowed.
            time_them: times the distinct missing ones together; called at most once.

        Returns:
            One measurement per architecture, in order.
        """
        distinct = {architecture.id: architecture for architecture in architectures}
        if not distinct.keys() <= self._entries.keys():
            with file_lock(self.path.with_name(self.path.name + ".timing")):
                self.refresh()
                missing = [one for key, one in distinct.items() if key not in self._entries]
                timed = time_them(missing) if missing else []
                self.record(list(zip(missing, timed, strict=True)))
        return [self._entries[architecture.id][1] for architecture in architectures]


def open_profile(path: Path, header: ProfileHeader) -> DeviceProfile:
    """Open the profile at `path` for that device, workload and settings; make it if needed.

    Raises:
        DataError: when the file belongs to something else or is damaged; the message names what
            differs, or the line.
    """
    with file_lock(_beside(path)):
        if not path.exists() or (path.is_file() and path.stat().st_size == 0):
            write_atomically(path, _line(header.to_json()))
    profile = read_profile(path)
    _refuse_other(path, profile.header, header)
    return profile


def read_profile(path: Path) -> DeviceProfile:
    """Read a profile, for example one carried here from another machine.

    A last line that was cut while it was being written is dropped.

    Raises:
        DataError: when it cannot be read, is no profile, or has a damaged line.
    """
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise DataError(f"cannot read the device profile {path}: {error.strerror}") from error
    profile: DeviceProfile | None = None
    for number, line in enumerate(lines, start=1):
        if not line.strip() and number > 1:
            continue
        try:
            data = json.loads(line.decode())
            if profile is None:
                profile = DeviceProfile(path, ProfileHeader.from_json(data))
            else:
                architecture, measurement = _entry(data)
                profile._entries.setdefault(architecture.id, (architecture, measurement))
        except (ValueError, OverflowError, RecursionError, NasError) as error:
            unfinished = number == len(lines) and number > 1 and isinstance(error, ValueError)
            if not unfinished:
                what = "the file" if number == 1 else "that line"
                raise DataError(
                    f"{path}, line {number}: {error}; delete {what} to measure anew"
                ) from error
    assert profile is not None
    return profile


def default_profile_path(header: ProfileHeader) -> Path:
    """Where that profile lives when the user names no file: in the user's cache folder."""
    return cache_dir() / "profiles" / f"{header.digest[:16]}.jsonl"


def _beside(path: Path) -> Path:
    return path.with_name(path.name + ".lock")


def _refuse_other(path: Path, found: ProfileHeader, wanted: ProfileHeader) -> None:
    difference = found.difference(wanted)
    if difference is not None:
        raise DataError(f"the device profile {path} has {difference}; name another file")


def _append(path: Path, lines: Sequence[Mapping[str, Any]]) -> None:
    """Add lines in one write, after mending a last line that has no line end."""
    with path.open("r+b") as file:
        content = file.read()
        whole = content.rfind(b"\n") + 1
        if _is_json(content[whole:]):
            file.write(b"\n")
        else:
            file.seek(whole)
            file.truncate()
        file.write("".join(map(_line, lines)).encode())
        file.flush()
        os.fsync(file.fileno())


def _line(data: Mapping[str, Any]) -> str:
    return json.dumps(data, sort_keys=True, allow_nan=False) + "\n"


def _is_json(text: bytes) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def _entry_json(architecture: Architecture, measurement: Measurement) -> dict[str, Any]:
    return {
        "id": architecture.id,
        "architecture": architecture.to_json(),
        "measurement": measurement.to_json(),
    }


def _entry(data: object) -> tuple[Architecture, Measurement]:
    if not isinstance(data, Mapping) or set(data) != {"id", "architecture", "measurement"}:
        raise DataError("not a measured architecture")
    architecture = Architecture.from_json(data["architecture"])
    measurement = Measurement.from_json(data["measurement"])
    _check_measurement(measurement)
    if data["id"] != architecture.id:
        raise DataError(f"the id {data['id']!r} is not that of its architecture, {architecture.id}")
    return architecture, measurement


def _check_measurement(measurement: Measurement) -> None:
    value = measurement.value
    if measurement.metric != METRIC or not (math.isfinite(value) and value > 0):
        raise DataError(
            f"a profile holds positive values of {METRIC}; given {measurement.metric} = {value!r}"
        )
