"""`nas cache`: what is kept on this machine for later searches: times, its speed, texts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import typer
from rich.text import Text

from latency.acceptance import Reading
from latency.locking import cache_dir, file_lock, write_lock
from latency.timings import (
    ENDING,
    SCHEMA,
    TimingJournal,
    read_timings,
    timing_lock,
    timings_dir,
    timings_id,
)
from latency.yardstick import read_speed, speeds_dir
from nas.console import options
from nas.console.formatting import NOTHING, compact
from nas.console.output import out, print_json, say
from nas.console.tables import table
from nas.run.prepared_texts import (
    PreparedTexts,
    prepared_texts_dir,
    read_prepared_texts,
    remove_prepared_texts,
)
from search_spaces.architecture import find_id
from search_spaces.errors import NasError, UsageError

USED, OLDER, DAMAGED = "used", "not used (older version)", "damaged"
LEAST_LETTERS = 4
LOCK_TIMEOUT_S = 5.0


@dataclass(frozen=True)
class CachedTimes:
    """What was timed on one device, of one workload of one space's networks.

    Attributes:
        id: how its files' names begin.
        files: all of them.
        size: of them together, in bytes.
        state: ``used``, ``not used (older version)`` or ``damaged``.
        problem: what is wrong with damaged ones.
        device: its label; None where it cannot be read, like the workload.
        workload: its label.
        networks: how many were timed.
        sessions: of the timer.
        disturbed: how many of them did not count.
        first: when the first one began, in seconds since 1970; None where that is not known.
        last: when the last one did.
    """

    id: str
    files: tuple[Path, ...]
    size: int
    state: str
    problem: str = ""
    device: str | None = None
    workload: str | None = None
    networks: int = 0
    sessions: int = 0
    disturbed: int = 0
    first: float | None = None
    last: float | None = None

    def to_json(self) -> dict[str, Any]:
        """What ``--json`` prints; times in UTC."""
        return {
            "kind": "times",
            "id": self.id,
            "state": self.state,
            "problem": self.problem or None,
            "device": self.device,
            "workload": self.workload,
            "networks": self.networks,
            "sessions": self.sessions,
            "disturbed_sessions": self.disturbed,
            "first": _utc(self.first),
            "last": _utc(self.last),
            "size": self.size,
            "files": [str(file) for file in self.files],
        }


@dataclass(frozen=True)
class CachedSpeed:
    """How fast a device has been, which sets what a millisecond is in all that is timed there.

    Attributes:
        id: how its file is named.
        file: that one.
        state: ``used`` or ``damaged``.
        problem: what is wrong with a damaged one.
        device: its label; None where it cannot be read, like the data type.
        dtype: in which the yardstick computes.
        sessions: calm ones of the timer.
        fastest_ms: the yardstick at its fastest; None before enough sessions agreed.
        last: when the last of the fastest sessions began, in seconds since 1970.
    """

    id: str
    file: Path
    state: str
    problem: str = ""
    device: str | None = None
    dtype: str | None = None
    sessions: int = 0
    fastest_ms: float | None = None
    last: float | None = None

    def to_json(self) -> dict[str, Any]:
        """What ``--json`` prints; times in UTC."""
        return {
            "kind": "speed",
            "id": self.id,
            "state": self.state,
            "problem": self.problem or None,
            "device": self.device,
            "dtype": self.dtype,
            "sessions": self.sessions,
            "fastest_ms": self.fastest_ms,
            "last": _utc(self.last),
            "files": [str(self.file)],
        }


Cached = CachedTimes | CachedSpeed | PreparedTexts


def list_cache(as_json: bool = options.JSON) -> None:
    """List what is kept for later searches.

    What was timed on this machine is not timed again, and texts that were prepared for a checkpoint
    are not prepared again. How fast a device has been tells later searches what a slow moment is.
    """
    found, speeds, texts = read_cache(), read_speeds(), read_prepared_texts()
    every: list[Cached] = [*found, *speeds, *texts]
    if as_json:
        print_json([one.to_json() for one in every])
        return
    if not found:
        say(f"nothing that was timed is kept in {timings_dir()}")
    else:
        _print_times(found)
    if speeds:
        _print_speeds(speeds)
    if texts:
        _print_texts(texts)
    for one in every:
        if one.problem:
            say(f"{one.id}: {one.problem}")


def _print_times(found: Sequence[CachedTimes]) -> None:
    numbers = ["networks", "sessions", "disturbed", "size"]
    columns = ["id", "device", "workload", *numbers[:3], "first timed", "last timed", "size", ""]
    spare = ["first timed", "sessions", "size", "workload"]
    made = table(f"Timed, in {timings_dir()}", columns, numbers, whole=["id"], spare=spare)
    for one in found:
        cells = [one.device or NOTHING, one.workload or NOTHING]
        counts = [NOTHING] * 3
        if one.state != DAMAGED:
            share = f"{one.disturbed / one.sessions:.0%}" if one.sessions else NOTHING
            counts = [str(one.networks), str(one.sessions or NOTHING), share]
        times = [_local(one.first), _local(one.last)]
        state = "" if one.state == USED else one.state
        row = [one.id, *cells, *counts, *times, _bytes(one.size), state]
        made.add_row(*map(Text, row))
    out().print(made)


def _print_speeds(found: Sequence[CachedSpeed]) -> None:
    columns, numbers = ["id", "device", "type", "sessions", "fastest", ""], ["sessions", "fastest"]
    title = f"How fast devices have been, by a small fixed network, in {speeds_dir()}"
    made = table(title, columns, numbers, whole=["id"])
    for one in found:
        fastest = NOTHING if one.fastest_ms is None else f"{one.fastest_ms:.3g} ms"
        cells = [one.device or NOTHING, one.dtype or NOTHING, str(one.sessions or NOTHING), fastest]
        made.add_row(*map(Text, [one.id, *cells, "" if one.state == USED else one.state]))
    out().print(made)


def _print_texts(found: Sequence[PreparedTexts]) -> None:
    columns, numbers = ["id", "task", "examples", "size", ""], ["examples", "size"]
    title = f"Texts prepared for checkpoints, in {prepared_texts_dir()}"
    made = table(title, columns, numbers, whole=["id"])
    for one in found:
        counts = [one.task or NOTHING, str(one.examples or NOTHING), _bytes(one.size)]
        made.add_row(*map(Text, [one.id, *counts, "" if one.state == USED else one.state]))
    out().print(made)


def clear(
    ids: list[str] = typer.Argument(
        None, metavar="[ID]...", help="Ids of nas cache list, or how they begin."
    ),
    everything: bool = typer.Option(False, "--all", help="Remove all there is."),
) -> None:
    """Remove what is kept: it is timed or prepared anew when it is needed.

    A search whose texts are removed goes on when it is asked for again, with the texts themselves.
    How fast a device has been is to be removed when it has become slower for good.
    """
    if bool(ids) == everything:
        raise UsageError("nas cache clear takes ids, which nas cache list shows, or --all")
    found: list[Cached] = [*read_cache(), *read_speeds(), *read_prepared_texts()]
    chosen = found if everything else [_named(given, found) for given in ids]
    if not chosen:
        say(f"nothing is kept in {cache_dir()}")
    for one in dict.fromkeys(chosen):
        if isinstance(one, PreparedTexts):
            remove_prepared_texts(one, LOCK_TIMEOUT_S)
        elif isinstance(one, CachedSpeed):
            with file_lock(write_lock(one.file), LOCK_TIMEOUT_S):
                one.file.unlink(missing_ok=True)
        else:
            _remove(one)
        say(f"removed {one.id}: {_description(one)}")


def read_cache() -> list[CachedTimes]:
    """All that is kept, by id."""
    groups: dict[str, list[Path]] = {}
    for file in sorted(timings_dir().glob(f"*{ENDING}")):
        groups.setdefault(timings_id(file), []).append(file)
    return [_read(name, files) for name, files in sorted(groups.items())]


def read_speeds() -> list[CachedSpeed]:
    """How fast each device has been, by id."""
    return [_read_speed(file) for file in sorted(speeds_dir().glob("*.json"))]


def _read_speed(file: Path) -> CachedSpeed:
    try:
        record, speed = read_speed(file)
    except NasError as error:
        return CachedSpeed(file.stem, file, DAMAGED, str(error))
    last = max((began for _, began in speed.fastest), default=None)
    return CachedSpeed(
        id=file.stem,
        file=file,
        state=USED,
        device=record.device.label,
        dtype=record.dtype,
        sessions=speed.sessions,
        fastest_ms=speed.quiet_ms,
        last=last,
    )


def _read(name: str, files: Sequence[Path]) -> CachedTimes:
    size = sum(file.stat().st_size for file in files)
    try:
        profiles = [read_timings(file) for file in files]
        older = any(_schema(file) != SCHEMA for file in files)
    except NasError as error:
        return CachedTimes(name, tuple(files), size, DAMAGED, str(error))
    header = profiles[0].header
    sessions = _sessions(profiles)
    return CachedTimes(
        id=name,
        files=tuple(files),
        size=size,
        state=OLDER if older else USED,
        device=header.device.label,
        workload=header.workload.label,
        networks=len({key for profile in profiles for key in profile.entries}),
        sessions=len(sessions),
        disturbed=sum(sessions.values()),
        first=min(sessions, default=None),
        last=max(sessions, default=None),
    )


def _schema(file: Path) -> Any:
    with file.open("rb") as stream:
        return json.loads(stream.readline())["schema"]


def _sessions(profiles: Sequence[TimingJournal]) -> dict[float, bool]:
    """When each session of the timer began → whether it was disturbed."""
    readings: list[Reading] = [
        reading
        for profile in profiles
        for key in profile.entries
        for reading in profile.readings(key)
    ]
    return {one.began: bool(one.disturbed) for one in readings}


def _named(given: str, found: Sequence[Cached]) -> Cached:
    """The only one of that id, or whose id begins so.

    Raises:
        UsageError: when there is none, or there are several.
    """
    ids = {one.id: one for one in found}
    if given not in ids and len(given) < LEAST_LETTERS:
        raise UsageError(
            f"{given!r} is too short: give {LEAST_LETTERS} characters of an id or more"
        )
    return ids[find_id(given, ids, f"entries in {cache_dir()}")]


def _remove(one: CachedTimes) -> None:
    """Remove the files while nobody times for them or writes them.

    Raises:
        NasError: when another process does so right now.
    """
    main = timings_dir() / f"{one.id}{ENDING}"
    locks = [timing_lock(main), *map(write_lock, one.files)]
    with ExitStack() as held:
        for lock in locks:
            held.enter_context(file_lock(lock, LOCK_TIMEOUT_S))
        for file in one.files:
            file.unlink(missing_ok=True)


def _description(one: Cached) -> str:
    if isinstance(one, CachedSpeed):
        return f"how fast {one.device} has been" if one.state == USED else one.state
    if one.state not in (USED, OLDER):
        return f"{one.state}, {_bytes(one.size)}"
    if isinstance(one, PreparedTexts):
        return f"{one.examples} texts for the task {one.task}; {_bytes(one.size)}"
    networks = "1 network" if one.networks == 1 else f"{one.networks} networks"
    return f"{networks} on {one.device}, {one.workload}; {_bytes(one.size)}"


def _bytes(count: int) -> str:
    text = compact(count)
    return f"{text}B" if " " in text else f"{text} B"


def _utc(seconds: float | None) -> str | None:
    if seconds is None:
        return None
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


def _local(seconds: float | None) -> str:
    return NOTHING if seconds is None else f"{datetime.fromtimestamp(seconds):%Y-%m-%d %H:%M}"
