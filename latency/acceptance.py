"""When a timing is believed, and what is done until it can be.

A session of the timer is a few interleaved rounds of some calls and of a reference that stands
before, between and after them. A session is *calm* when the reference did not drift in it, took as
long as in other sessions, and the machine had nothing else to do. A timing is *accepted* when
enough calm sessions agree on it. Whatever is not accepted is timed again, later, when the machine
is quiet; what is not accepted after all tries is *doubtful*: it has a value, and the reason why
that should not be believed.

Why sessions and not more rounds: what disturbs, other work or where a network's tensors lie in
memory, lasts for a whole session, so that the rounds of one agree with each other and are wrong
together.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np

from latency.machine import OTHERS, WAITED, MachineState, wait_for_quiet
from latency.timing import Timing
from search_spaces.errors import UsageError
from search_spaces.measurement import Measurement

CONFIRMING = 0.10  # relative, between two timings of one call that are to confirm each other

# Calm sessions that the reference needs to set the unit. A machine whose cores belong to others as
# well has slow spells that nothing on it tells of, for seconds or a minute (1.1 to 1.8 times). In
# windows of 10 s the median session lay up to 8 % too high, the mean of the three fastest of
# twelve, a second apart, within 2.5 %: that is the unit, what the reference takes undisturbed.
UNIT_SESSIONS = 12
UNIT_SPACING_S = 1.0
UNIT_FASTEST = 3
LONG_S = 15.0  # sessions that take so long together need be no more than
LEAST_UNIT_SESSIONS = 4

LEAST_SESSIONS = 3  # of two, neither is the middle one
LEAST_EXTRA = 3
PATIENCE_S = 60.0


@dataclass(frozen=True, slots=True)
class Tolerances:
    """What passes; all but the last two are relative differences.

    Attributes:
        drift: of the reference within a session.
        between: of the reference from the fastest calm session.
        from_unit: of the reference from what it took when the profile was begun.
        spread: interquartile range of the sessions of a call.
        unit_spread: the same of the reference where it sets the unit.
        waited: share of the time that a thread may wait for a core.
        others: cores that others may keep busy beyond those that are free.
    """

    drift: float = 0.10
    between: float = 0.15
    from_unit: float = 0.30
    spread: float = 0.05
    unit_spread: float = 0.10
    waited: float = WAITED
    others: float = OTHERS


TOLERANCES = Tolerances()


@dataclass(frozen=True, slots=True)
class SessionTimes:
    """A session of the timer.

    Attributes:
        reference: each sample the median of its copies in that round.
        drift: of the reference, see `reference_drift`.
        calls: in the same rounds.
        state: what the machine did meanwhile.
        began: seconds since 1970.
    """

    reference: Timing
    drift: float
    calls: tuple[Timing, ...]
    state: MachineState
    began: float


@dataclass(frozen=True, slots=True)
class Reading:
    """What one session said of one call.

    Attributes:
        samples_ms: a round each.
        reference_ms: of the reference in the same rounds.
        state: what the machine did meanwhile.
        began: seconds since 1970.
        disturbed: why the session does not count; empty for a calm one.
    """

    samples_ms: tuple[float, ...]
    reference_ms: tuple[float, ...]
    state: MachineState
    began: float
    disturbed: str = ""

    @property
    def ratio(self) -> float:
        """Of the call to the reference."""
        return Timing(self.samples_ms).ratio(Timing(self.reference_ms))

    def to_json(self) -> dict[str, Any]:
        """All fields by name."""
        return {
            "samples_ms": [round(ms, 6) for ms in self.samples_ms],
            "reference_ms": [round(ms, 6) for ms in self.reference_ms],
            "state": self.state.to_json(),
            "began": round(self.began, 3),
            "disturbed": self.disturbed,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Read what `to_json` wrote.

        Raises:
            KeyError, TypeError, ValueError: when it is something else.
        """
        return cls(
            tuple(float(ms) for ms in data["samples_ms"]),
            tuple(float(ms) for ms in data["reference_ms"]),
            MachineState.from_json(data["state"]),
            float(data["began"]),
            str(data["disturbed"]),
        )


@dataclass(frozen=True, slots=True)
class Verdict:
    """What all sessions together say of a call.

    Attributes:
        readings: one a session, in order, the disturbed ones included.
        doubt: why it is not accepted; empty where it is.
    """

    readings: tuple[Reading, ...]
    doubt: str = ""

    @property
    def counted(self) -> tuple[Reading, ...]:
        """The calm sessions; all of them where none was calm."""
        return tuple(one for one in self.readings if not one.disturbed) or self.readings

    @property
    def ratios(self) -> list[float]:
        """To the reference, one for each session that counts."""
        return [one.ratio for one in self.counted]

    def measurement(self, unit_ms: float, device: str) -> Measurement:
        """The latency, with the interquartile range of all samples that count as its spread.

        Args:
            unit_ms: what the reference takes.
            device: the label of the device's fingerprint.
        """
        pairs = [zip(one.samples_ms, one.reference_ms, strict=True) for one in self.counted]
        every = [unit_ms * mine / theirs for pair in pairs for mine, theirs in pair]
        low, high = np.quantile(every, [0.25, 0.75])
        value = float(np.median(self.ratios)) * unit_ms
        return Measurement(
            "latency_ms", value, float(high - low), len(every), "ms", device, doubtful=self.doubt
        )


@dataclass(frozen=True, slots=True)
class Settled:
    """Calls that were timed until they were accepted or given up.

    Attributes:
        reference: of itself: its ratio is 1, its samples are the times of the reference.
        calls: in order.
        sessions: of the timer.
        repeated: how many of them were disturbed.
        waited_s: for the machine to become quiet.
    """

    reference: Verdict
    calls: tuple[Verdict, ...]
    sessions: int
    repeated: int
    waited_s: float

    def doubting(self, doubt: str) -> Settled:
        """The same with no call accepted, for that reason."""
        calls = tuple(replace(one, doubt=one.doubt or doubt) for one in self.calls)
        return replace(self, calls=calls)

    @property
    def reference_ms(self) -> float:
        """What the reference takes undisturbed: in the fastest sessions that count."""
        times = sorted(float(np.median(one.reference_ms)) for one in self.reference.counted)
        return float(np.mean(times[:UNIT_FASTEST]))


def reference_drift(copies: Sequence[Timing]) -> float:
    """By how much the reference was slower or faster in a part of a session than in the whole.

    Its samples, each divided by the median of its copy, since a copy may lie badly in memory for
    as long as it lives, are cut into three parts in the order in which they were taken: before,
    between and after.

    Args:
        copies: of the reference, in the order of a round's first call; every other round is taken
            backwards, as `latency.timer.time_calls` does.

    Returns:
        The largest relative difference of a part's median from 1. With fewer than three rounds a
        copy has no median of its own, and that of all copies is taken.
    """
    times_CR = np.array([copy.samples_ms for copy in copies], dtype=np.float64)
    own = np.median(times_CR, axis=1, keepdims=True)
    relative_CR = times_CR / (own if times_CR.shape[1] >= 3 else np.median(times_CR))
    relative_CR[:, 1::2] = relative_CR[::-1, 1::2]
    parts = [part for part in np.array_split(relative_CR.T.ravel(), 3) if len(part)]
    return float(max(abs(np.median(part) - 1) for part in parts))


def patience_s() -> float:
    """How long a timing waits for a quiet machine: ``NAS_TIMING_PATIENCE_S``, or else a minute.

    Raises:
        UsageError: for a variable that is no number of seconds.
    """
    given = os.environ.get("NAS_TIMING_PATIENCE_S", "")
    try:
        seconds = float(given or PATIENCE_S)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise UsageError(
            f"NAS_TIMING_PATIENCE_S takes a number of seconds from 0 on; given {given!r}"
        )
    return seconds


@dataclass(frozen=True)
class Conditions:
    """What calls are timed under.

    Attributes:
        threads: of this process that compute.
        cores: that it may use.
        unit_ms: what the reference took when it was timed first; None where this is the first time.
        sessions: calm ones that are wanted, at least 3.
        patience_s: to wait at most for a quiet machine, in all.
        tolerances: what passes.
        wait: for a quiet machine, see `latency.machine.wait_for_quiet`.
        pause: waits so many seconds.
    """

    threads: int
    cores: int
    unit_ms: float | None
    sessions: int
    patience_s: float
    tolerances: Tolerances = field(default_factory=lambda: TOLERANCES)
    wait: Callable[[float, int, int], float] = field(default=wait_for_quiet)
    pause: Callable[[float], None] = field(default=time.sleep)

    @property
    def wanted(self) -> int:
        """Calm sessions that a timing needs."""
        return max(LEAST_SESSIONS, self.sessions)

    @property
    def most(self) -> int:
        """Sessions after which a timing is given up; disturbed ones count without patience."""
        return self.wanted + max(LEAST_EXTRA, self.wanted)

    @property
    def most_with_unit(self) -> int:
        """The same where the reference has to set the unit."""
        return self.most if self.unit_ms is not None else max(self.most, 2 * UNIT_SESSIONS)


def settle(
    time_some: Callable[[Sequence[int]], SessionTimes], count: int, conditions: Conditions
) -> Settled:
    """Time calls in sessions until all are accepted or given up.

    Args:
        time_some: a session with the calls of these numbers, and the reference.
        count: of the calls; may be 0 where the reference alone is to be timed.
        conditions: see there.
    """
    sessions: list[tuple[SessionTimes, list[int]]] = []
    waited_s, tries = 0.0, 0
    while tries < conditions.most_with_unit:
        so_far = _judged(sessions, count, conditions)
        open_calls = [i for i, one in enumerate(so_far.calls) if one.doubt]
        open_calls = open_calls if tries < conditions.most else []
        sets_unit = conditions.unit_ms is None and bool(so_far.reference.doubt)
        if not open_calls and not sets_unit:
            break
        if sessions and conditions.unit_ms is None and conditions.patience_s:
            conditions.pause(UNIT_SPACING_S)
        left = conditions.patience_s - waited_s
        if sessions and so_far.reference.readings[-1].disturbed and left > 0:
            # What disturbed it may last. As long as there is patience it costs no try.
            waited_s += conditions.wait(left, conditions.threads, conditions.cores)
            tries -= 1
        sessions.append((time_some(open_calls), open_calls))
        tries += 1
    return replace(_judged(sessions, count, conditions), waited_s=waited_s)


def _judged(
    sessions: Sequence[tuple[SessionTimes, Sequence[int]]], count: int, conditions: Conditions
) -> Settled:
    """All sessions so far, each held against the fastest calm one."""
    first = [_disturbed(one, conditions) for one, _ in sessions]
    calm = [
        one.reference.median_ms for (one, _), why in zip(sessions, first, strict=True) if not why
    ]
    whys = [
        why or _slower(one, min(calm), conditions.tolerances.between)
        for (one, _), why in zip(sessions, first, strict=True)
    ]
    reference: list[Reading] = []
    calls: list[list[Reading]] = [[] for _ in range(count)]
    for (session, numbers), why in zip(sessions, whys, strict=True):
        reference.append(_reading(session, session.reference, why))
        for number, timing in zip(numbers, session.calls, strict=True):
            calls[number].append(_reading(session, timing, why))
    return Settled(
        reference=_verdict(reference, conditions, alone=True),
        calls=tuple(_verdict(one, conditions) for one in calls),
        sessions=len(sessions),
        repeated=sum(bool(why) for why in whys),
        waited_s=0.0,
    )


def _reading(session: SessionTimes, timing: Timing, why: str) -> Reading:
    return Reading(
        timing.samples_ms, session.reference.samples_ms, session.state, session.began, why
    )


def _disturbed(session: SessionTimes, conditions: Conditions) -> str:
    """What speaks against a session by itself."""
    allowed, threads, cores = conditions.tolerances, conditions.threads, conditions.cores
    if why := session.state.disturbed(threads, cores, allowed.waited, allowed.others):
        return why
    if session.drift > allowed.drift:
        return f"the reference network drifted by {session.drift:.0%} in it"
    unit_ms, here_ms = conditions.unit_ms, session.reference.median_ms
    if unit_ms is not None and abs(here_ms / unit_ms - 1) > allowed.from_unit:
        return (
            f"the reference network took {here_ms:.3g} ms in place of the {unit_ms:.3g} ms of the "
            "first time; where that stays so, --retime times everything anew"
        )
    return ""


def _slower(session: SessionTimes, fastest_ms: float, most: float) -> str:
    """What speaks against a session beside others."""
    slower = session.reference.median_ms / fastest_ms - 1
    if slower <= most:
        return ""
    return f"the reference network took {slower:.0%} longer than in the fastest session"


def _verdict(readings: Sequence[Reading], conditions: Conditions, alone: bool = False) -> Verdict:
    """Whether enough calm sessions agree.

    Args:
        readings: of all sessions.
        conditions: say how many are enough.
        alone: whether these are the reference's own, whose times are held against each other.
    """
    calm = [one for one in readings if not one.disturbed]
    made = Verdict(tuple(readings))
    if len(calm) < (_wanted_for_unit(calm) if alone else conditions.wanted):
        last = next((one.disturbed for one in reversed(readings) if one.disturbed), "")
        why = f"only {len(calm)} of {len(readings)} sessions were calm"
        return replace(made, doubt=f"{why}: {last}" if last else why)
    values = [float(np.median(one.reference_ms)) for one in calm] if alone else made.ratios
    spread, allowed = relative_range(values), conditions.tolerances
    if spread > (allowed.unit_spread if alone else allowed.spread):
        return replace(made, doubt=f"its calm sessions differ by {spread:.0%}")
    return made


def agree(one_ms: float, other_ms: float) -> bool:
    """Whether a timing confirms another one."""
    return abs(other_ms / one_ms - 1) <= CONFIRMING


def _wanted_for_unit(calm: Sequence[Reading]) -> int:
    """Calm sessions of the reference that are enough to set the unit."""
    span_s = calm[-1].began - calm[0].began if calm else 0.0
    return LEAST_UNIT_SESSIONS if span_s >= LONG_S else UNIT_SESSIONS


def relative_range(values: Sequence[float]) -> float:
    """Interquartile range divided by the median; of two values half of their distance."""
    low, middle, high = np.quantile(values, [0.25, 0.5, 0.75])
    return float((high - low) / middle)
