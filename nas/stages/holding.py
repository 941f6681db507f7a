"""Times the networks of the front again where latency has a limit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from nas.objectives import LATENCY, UPPER_NAMES, objective
from nas.objectives.latency_limits import Held
from nas.run.events import ArchitectureMeasured, Event, Progress
from nas.run.layout import HOLDING_FILE
from nas.search.doubts import disturbances
from nas.search.front import FrontEntry, best_entries
from nas.stages.base import Run


def read_held(run: Run) -> dict[str, Held]:
    """What was timed in sessions so far, by architecture id."""
    return {
        one["id"]: Held(
            one["latency_ms"], one["latency_upper_ms"], one["sessions"], one.get("doubtful", "")
        )
        for line in run.folder.read_journal(HOLDING_FILE)
        for one in line["networks"]
    }


def with_held(run: Run, entries: Sequence[FrontEntry]) -> list[FrontEntry]:
    """The entries, with what the sessions said in place of the single measurement."""
    held = read_held(run)
    return [_with(entry, held.get(entry.id)) for entry in entries]


def hold_front(run: Run, measured: Callable[[], Sequence[FrontEntry]]) -> Iterator[Event]:
    """Time networks again until the latency of all of the front is sure to keep its limit.

    A network that turns out to break the limit, or to be slower than it seemed, makes room for
    others; so this goes on until all of the front has been timed in sessions. A network whose
    single measurement is doubtful gets its chance here.

    Args:
        run: with a limit on latency, or nothing is done.
        measured: everything measured so far.
    """
    if LATENCY not in run.spec.limits or run.elsewhere is not None:
        return
    objectives = [objective(name, run.spec.quality) for name in run.spec.objectives]
    while True:
        held = read_held(run)
        entries = [e if e.id in held else replace(e, doubtful={}) for e in measured()]
        front = best_entries(with_held(run, entries), objectives, run.spec.limits)
        unsure = [entry for entry in front if entry.id not in held]
        if not unsure:
            return
        yield Progress("verify", 0, len(unsure), "on the front, timed again")
        timed = run.meter().hold([entry.architecture for entry in unsure])
        yield from disturbances("verify", timed)
        # One line for all: which are timed next follows from whole rounds only.
        pairs = list(zip(unsure, timed.values, strict=True))
        line = {"networks": [value.to_json(entry.id) for entry, value in pairs]}
        run.folder.append(HOLDING_FILE, [line])
        for entry, value in pairs:
            times = {LATENCY: value.latency_ms, UPPER_NAMES[LATENCY]: value.upper_ms}
            yield ArchitectureMeasured("verify", entry.id, times)


def _with(entry: FrontEntry, held: Held | None) -> FrontEntry:
    if held is None:
        return entry
    times = {LATENCY: held.latency_ms, UPPER_NAMES[LATENCY]: held.upper_ms}
    doubtful = {LATENCY: held.doubtful} if held.doubtful else {}
    return replace(entry, measured=dict(entry.measured) | times, doubtful=doubtful)
