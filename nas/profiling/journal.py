"""The measurements of an unfinished profile, on disk."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from latency.acceptance import Reading
from nas.profiling.device_profile import MeasuredNetwork, Session
from nas.profiling.sessions import TimedSession, same_sessions
from search_spaces.errors import DataError, NasError, UsageError
from search_spaces.files import append_lines, read_lines, write_atomically
from search_spaces.json_text import UNREADABLE

SHORT = 60  # characters that both values of a difference may have to be told


class Journal:
    """Sessions on disk until the profile is written: a line for the request, one for each.

    Args:
        path: the file; taken up again where it is there.
        request: what it must belong to. Its ``samples`` may be others than there, as long as all
            sessions so far are those that this request begins with.

    Raises:
        UsageError: when it belongs to another request.
        DataError: when it is damaged or cannot be written.
    """

    def __init__(self, path: Path, request: Mapping[str, Any]) -> None:
        self._path = path
        self._sessions: dict[int, list[TimedSession]] = {}
        try:
            lines = read_lines(path)
        except OSError as error:
            raise DataError(f"cannot read {path}: {error.strerror}") from error
        if not lines:
            self._write({"request": dict(request)})
            return
        try:
            there = dict(json.loads(lines[0])["request"])
            for line in lines[1:]:
                data = json.loads(line)
                self._sessions.setdefault(int(data["workload"]), []).append(_session(data))
        except (*UNREADABLE, NasError) as error:
            raise DataError(f"{path} is damaged ({error}); delete it to time anew") from error
        if there != request:
            if not self._begins(there, request):
                raise _another(path, there, request)
            self._write({"request": dict(request)}, lines[1:])

    def sessions(self, workload: int) -> Sequence[TimedSession]:
        """What was timed of a workload, by its number."""
        return tuple(self._sessions.get(workload, ()))

    def add(self, workload: int, timed: TimedSession) -> None:
        """Keep a session, on disk before it returns."""
        self._write(
            {
                "workload": workload,
                "session": timed.session.to_json(),
                "networks": [network.to_json() for network in timed.networks],
                "calm": [reading.to_json() for reading in timed.calm],
            }
        )
        self._sessions.setdefault(workload, []).append(timed)

    def remove(self) -> None:
        """The profile has it all."""
        self._path.unlink(missing_ok=True)

    def _begins(self, there: Mapping[str, Any], here: Mapping[str, Any]) -> bool:
        """Whether only the number of networks differs, and not in what was timed so far."""
        old, new = there.get("samples"), here["samples"]
        if {**there, "samples": new} != here or not isinstance(old, int):
            return False
        if any(one.session.again for timed in self._sessions.values() for one in timed):
            return False
        sizes = [[len(one.networks) for one in timed] for timed in self._sessions.values()]
        return all(same_sessions(one, old, new) for one in sizes)

    def _write(self, line: Mapping[str, Any], others: Sequence[bytes] | None = None) -> None:
        """Add a line, or write it and the others in place of all that is there."""
        text = json.dumps(line, allow_nan=False)
        try:
            if others is None:
                append_lines(self._path, [text])
            else:
                lines = [text, *(other.decode() for other in others)]
                write_atomically(self._path, "".join(f"{one}\n" for one in lines))
        except OSError as error:
            raise DataError(
                f"cannot write {self._path}: {error.strerror}; choose another --out"
            ) from error


def refuse_another(path: Path, request: Mapping[str, Any]) -> None:
    """Refuse a journal whose request differs from this one in more than its number of networks.

    One that is damaged, and one that is not there, is passed over.

    Args:
        path: the journal.
        request: see `Journal`.

    Raises:
        UsageError: saying what differs.
    """
    try:
        there = dict(json.loads(read_lines(path)[0])["request"])
    except (*UNREADABLE, OSError):
        return
    if {**there, "samples": request["samples"]} != request:
        raise _another(path, there, request)


def _another(path: Path, there: Mapping[str, Any], here: Mapping[str, Any]) -> UsageError:
    return UsageError(
        f"{path} holds the measurements of another request, which differs in "
        f"{differences(there, here)}: repeat that one, delete the file, or choose another --out"
    )


def differences(there: Mapping[str, Any], here: Mapping[str, Any]) -> str:
    """The names of what differs between two requests, with both values where they are short."""
    found = []
    for name, value in here.items():
        old = there.get(name)
        if old != value:
            short = len(str(old)) + len(str(value)) <= SHORT
            found.append(f"{name} ({old} there, {value} here)" if short else name)
    return ", ".join(found)


def _session(data: Mapping[str, Any]) -> TimedSession:
    networks = tuple(MeasuredNetwork.from_json(one) for one in data["networks"])
    # Journals of earlier versions have none.
    calm = tuple(Reading.from_json(one) for one in data.get("calm", ()))
    return TimedSession(Session(**data["session"]), networks, calm)
