"""What else a machine did while something was timed on it: the work of others, waiting, the clock.

Readings that cost microseconds (of a graphics card, milliseconds), each None where the system does
not tell. What one of them misses another one sees: others' work on a sibling of our core takes
nothing from us that a scheduler would count, and in a container ``/proc/stat`` may speak of more
cores than are ours.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from latency.device import card_state, clock_mhz
from search_spaces.json_text import read_as

PROC = Path("/proc")
# Places of the columns of a line of /proc/stat that are no work: idle and iowait. Those behind the
# eighth, of guests, are contained in the first two.
_IDLE = (3, 4)
_COLUMNS = 8

TICK_S = 1 / os.sysconf("SC_CLK_TCK")

WAITED = 0.05  # of the time, for each thread
OTHERS = 0.2  # cores, beyond those that are free

QUIET_SLICE_S = 0.25
QUIET_SLICES = 2


CARD_FIELDS = ("celsius", "throttled")


def without_unknown(values: Mapping[str, Any], *optional: str) -> dict[str, Any]:
    """The values without those of these names that are None."""
    return {key: one for key, one in values.items() if one is not None or key not in optional}


@dataclass(frozen=True, slots=True)
class MachineState:
    """What a machine did during a session of the timer.

    Attributes:
        seconds: how long it was watched.
        others: cores that were kept busy by others than this process, on average, of those that
            it may use; what a hypervisor took away counts as theirs. Below 0 only by what the
            clocks disagree.
        waited: share of the time in which this process had work and no core for it, at least 0,
            all threads added up.
        clock_mhz: clock frequency at the end.
        celsius: temperature of a graphics card at the end.
        throttled: why a graphics card was slower then than it is as a rule, see
            `latency.device.CardState`; empty where nothing slowed it down.
    """

    seconds: float = 0.0
    others: float | None = None
    waited: float | None = None
    clock_mhz: float | None = None
    celsius: float | None = None
    throttled: str | None = None

    def to_json(self) -> dict[str, Any]:
        """All fields by name; what is known of graphics cards alone, where it is known."""
        return without_unknown(asdict(self), *CARD_FIELDS)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Read what `to_json` wrote."""
        return read_as(cls, data)

    def disturbed(
        self, threads: int, cores: int, waited: float = WAITED, others: float = OTHERS
    ) -> str | None:
        """Why what was timed meanwhile cannot be believed; None where nothing speaks against it.

        Args:
            threads: of this process that compute.
            cores: that it may use.
            waited: share of the time that a thread may have waited for a core.
            others: cores that others may have kept busy beyond those that were free.
        """
        if self.throttled:
            return f"the graphics card throttled ({self.throttled})"
        if self.waited is not None and self.waited > waited * threads:
            return f"this process waited for a core for {self.waited:.0%} of the time"
        # The kernel counts others' work in ticks, of which each core may be one wrong at each end.
        doubt = others + 2 * cores * TICK_S / max(self.seconds, TICK_S)
        room = max(0, cores - threads)
        if self.others is not None and self.others > room + doubt:
            return self._others_text(cores)
        return None

    def why_busy(self, threads: int, cores: int) -> str | None:
        """The same of a machine, for people: by its other work, as far as the system tells that."""
        why = self.disturbed(threads, cores)
        told = why is not None and self.others is not None and self.others > OTHERS
        return self._others_text(cores) if told else why

    def _others_text(self, cores: int) -> str:
        return f"other work kept {self.others:.1f} of {cores} cores busy"


@dataclass(frozen=True)
class Watch:
    """Watches a machine from the moment it is made.

    Attributes:
        device: whose clock is read at the end.
        proc: the kernel's tables.
    """

    device: str = "cpu"
    proc: Path = PROC
    _started: tuple[float, float, float | None, dict[str, int]] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_started", self._read())

    def state(self) -> MachineState:
        """What the machine did since then."""
        (since, mine, busy, waits), (now, mine_now, busy_now, waits_now) = (
            self._started,
            self._read(),
        )
        seconds = max(now - since, 1e-9)
        others = None
        if busy is not None and busy_now is not None:
            others = round((busy_now - busy - (mine_now - mine)) / seconds, 4)
        waited = None
        if waits_now:
            # A thread that has come since then began at 0; one that has gone tells no more.
            total = sum(waits_now[key] - waits.get(key, 0) for key in waits_now)
            waited = round(max(0, total) / 1e9 / seconds, 4)
        clock, card = clock_mhz(self.device), card_state(self.device)
        return MachineState(round(seconds, 4), others, waited, clock, card.celsius, card.throttled)

    def _read(self) -> tuple[float, float, float | None, dict[str, int]]:
        return time.perf_counter(), time.process_time(), self._busy_s(), self._waits_ns()

    def _busy_s(self) -> float | None:
        """Seconds of work of the cores that this process may use, since the machine started.

        Where the kernel does not tell them apart it is that of all cores.
        """
        try:
            lines = (self.proc / "stat").read_text("ascii").splitlines()
        except (OSError, ValueError):
            return None
        cores = (one.partition(" ") for one in lines if one.startswith("cpu"))
        told = {name: _busy_ticks(columns) for name, _, columns in cores}
        numbers = self._own_cores()
        own = [ticks for n in numbers if (ticks := told.get(f"cpu{n}")) is not None]
        ticks = sum(own) if own and len(own) == len(numbers) else told.get("cpu")
        return None if ticks is None else ticks * TICK_S

    def _own_cores(self) -> set[int]:
        """Numbers of the cores that this process's threads may use, which differ once bound."""
        if not hasattr(os, "sched_getaffinity"):
            return set()
        found = set(os.sched_getaffinity(0))
        for thread in self._threads():
            with suppress(OSError, ValueError):  # it has just ended
                found |= os.sched_getaffinity(int(thread))
        return found

    def _threads(self) -> list[str]:
        try:
            return os.listdir(self.proc / "self" / "task")
        except OSError:
            return []

    def _waits_ns(self) -> dict[str, int]:
        """Nanoseconds for which each thread of this process had to wait for a core so far."""
        found: dict[str, int] = {}
        for thread in self._threads():
            try:
                words = (self.proc / "self" / "task" / thread / "schedstat").read_text().split()
                found[thread] = int(words[1])
            except (OSError, ValueError, IndexError):  # the thread has just ended, or no such file
                continue
        return found


def _busy_ticks(columns: str) -> int | None:
    """Ticks of work in a line of /proc/stat without its name; None where it tells nothing."""
    words = columns.split()[:_COLUMNS]
    if len(words) < _COLUMNS or not all(word.isdecimal() for word in words):
        return None
    ticks = [int(word) for word in words]
    return sum(ticks) - sum(ticks[place] for place in _IDLE) if any(ticks) else None


def wait_for_quiet(
    most_s: float,
    threads: int,
    cores: int,
    *,
    watch: Callable[[], Watch] = Watch,
    pause: Callable[[float], None] = time.sleep,
) -> float:
    """Wait until others leave enough of the machine to time something on it.

    Args:
        most_s: seconds to wait at most.
        threads: that what is timed needs.
        cores: that this process may use.
        watch: begins to watch the machine.
        pause: waits so many seconds.

    Returns:
        Seconds waited.
    """
    waited, quiet = 0.0, 0
    while quiet < QUIET_SLICES and waited < most_s:
        seen = watch()
        pause(QUIET_SLICE_S)
        waited += QUIET_SLICE_S
        quiet = quiet + 1 if seen.state().disturbed(threads, cores) is None else 0
    return waited


def why_busy(
    watch: Watch, threads: int, cores: int, *, pause: Callable[[float], None] = time.sleep
) -> str | None:
    """Why nothing could be timed now, so that it can be believed; None on a machine at rest.

    Args:
        watch: of the machine; where it is too short to tell, it goes on for a moment.
        threads: that what is timed needs.
        cores: that this process may use.
        pause: waits so many seconds.
    """
    state = watch.state()
    if (short_s := QUIET_SLICES * QUIET_SLICE_S - state.seconds) > 0:
        pause(short_s)
        state = watch.state()
    return state.why_busy(threads, cores)
