"""When a timing is believed, and what is done until it can be.

A session of the timer is a few interleaved rounds of some calls and of a reference that stands
before, between and after them. A session is *calm* when the reference did not drift in it and the
machine had nothing else to do. A timing is *accepted* when enough calm sessions agree on its ratio
to the reference. Whatever is not accepted is timed again, later, when the machine is quiet; what is
not accepted after all tries is *doubtful*: it has a value, and the reason why that should not be
believed.

A session in which everything is slower by the same factor is calm: ratios to the reference held
within 3.5 % while a machine that is shared with others took between 1.0 and 2.1 times its shortest
time, so what such a session says of a call can be believed. What the reference takes undisturbed
is told by its own fastest sessions and by what is known of the machine's speed (`unit_of`).

Why sessions and not more rounds: what disturbs, other work or where a network's tensors lie in
memory, lasts for a whole session, so that the rounds of one agree with each other and are wrong
together.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np

from latency.machine import OTHERS, WAITED, MachineState, wait_for_quiet
from latency.timing import Timing
from latency.yardstick import Speed
from search_spaces.errors import UsageError
from search_spaces.measurement import Measurement

CONFIRMING = 0.10  # relative, between two timings of one call that are to confirm each other

# The *unit* is what the reference takes undisturbed, see `unit_of`. Sessions are a second apart.
# Twelve are enough where half of them come near it, or where a machine that is known tells it. A
# machine whose cores belong to others as well has spells that nothing on it tells of, in which
# everything takes 1.1 to 2 times as long, for a second or most of the time: there it takes up to a
# minute until three sessions fell into fast moments. Where of twelve not one was calm, other work
# keeps the machine busy, and more are not tried. Whoever keeps a unit sets it anew when later
# sessions are faster.
UNIT_SESSIONS = 12
MOST_UNIT_SESSIONS = 60
UNIT_SPACING_S = 1.0
UNIT_FASTEST = 3
REACH = (0.1, 0.9)  # quantiles of the yardstick between which it has shown its ratio to hold
LONG_S = 15.0  # sessions that take so long together need be no more than
LEAST_UNIT_SESSIONS = 4
MOST_UNIT_S = 60.0

LEAST_SESSIONS = 3  # of two, neither is the middle one
LEAST_EXTRA = 3
PATIENCE_S = 60.0


@dataclass(frozen=True, slots=True)
class Tolerances:
    """What passes; all but the last two are relative differences, at least 0.

    Attributes:
        drift: of the reference within a session.
        slower: of the reference than the unit.
        spread: interquartile range of the sessions of a call, and of the yardstick.
        unit_spread: between the sessions that set the unit.
        near: of the median session from the unit, where twelve are enough.
        gain: of later sessions on the unit, for which it is set anew.
        waited: share of the time that a thread may wait for a core.
        others: cores that others may keep busy beyond those that are free.
    """

    drift: float = 0.10
    slower: float = 1.5
    spread: float = 0.05
    unit_spread: float = 0.10
    near: float = 0.05
    gain: float = 0.02
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
        yardstick: as the reference, see `latency.yardstick`; None where none was timed.
    """

    reference: Timing
    drift: float
    calls: tuple[Timing, ...]
    state: MachineState
    began: float
    yardstick: Timing | None = None


@dataclass(frozen=True, slots=True)
class Reading:
    """What one session said of one call.

    Attributes:
        samples_ms: a round each.
        reference_ms: of the reference in the same rounds.
        state: what the machine did meanwhile.
        began: seconds since 1970.
        disturbed: why the session does not count; empty for a calm one.
        yardstick_ms: of the yardstick in the same rounds, where the call is the reference; empty
            for other calls, and where none was timed.
    """

    samples_ms: tuple[float, ...]
    reference_ms: tuple[float, ...]
    state: MachineState
    began: float
    disturbed: str = ""
    yardstick_ms: tuple[float, ...] = ()

    @property
    def took_ms(self) -> float:
        """The reference's median."""
        return float(np.median(self.reference_ms))

    @property
    def yardstick_took_ms(self) -> float:
        """The yardstick's median; only where it was timed."""
        return float(np.median(self.yardstick_ms))

    @property
    def ratio(self) -> float:
        """Of the call to the reference."""
        return Timing(self.samples_ms).ratio(Timing(self.reference_ms))

    @property
    def yardsticks(self) -> float:
        """What the reference takes, in yardsticks; only where one was timed."""
        return Timing(self.reference_ms).ratio(Timing(self.yardstick_ms))

    def to_json(self) -> dict[str, Any]:
        """All fields by name."""
        told = {
            "samples_ms": [round(ms, 6) for ms in self.samples_ms],
            "reference_ms": [round(ms, 6) for ms in self.reference_ms],
            "state": self.state.to_json(),
            "began": round(self.began, 3),
            "disturbed": self.disturbed,
        }
        if self.yardstick_ms:
            told["yardstick_ms"] = [round(ms, 6) for ms in self.yardstick_ms]
        return told

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
            tuple(float(ms) for ms in data.get("yardstick_ms", ())),
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
    def calm(self) -> tuple[Reading, ...]:
        """The sessions that nothing disturbed."""
        return calm_ones(self.readings)

    @property
    def counted(self) -> tuple[Reading, ...]:
        """The calm sessions; all of them where none was calm."""
        return self.calm or self.readings

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
        unit: what the reference takes undisturbed, as far as these sessions and what is known of
            the machine tell.
        calls: in order.
        sessions: of the timer.
        repeated: how many of them were disturbed.
        waited_s: for the machine to become quiet.
    """

    reference: Verdict
    unit: Unit
    calls: tuple[Verdict, ...]
    sessions: int
    repeated: int
    waited_s: float

    def doubting(self, doubt: str) -> Settled:
        """The same with no call accepted, for that reason."""
        calls = tuple(replace(one, doubt=one.doubt or doubt) for one in self.calls)
        return replace(self, calls=calls)


@dataclass(frozen=True, slots=True)
class Unit:
    """What a reference takes undisturbed.

    Attributes:
        ms: the least that is well founded.
        own_ms: by its own fastest sessions alone.
        told_ms: by the yardstick, however far beyond the sessions; None where that tells nothing.
    """

    ms: float
    own_ms: float
    told_ms: float | None = None

    @property
    def told(self) -> bool:
        """Whether what the yardstick tells is well founded."""
        return self.told_ms is not None and self.told_ms >= self.ms


def unit_of(readings: Sequence[Reading], quiet_ms: float | None, tolerances: Tolerances) -> Unit:
    """What the reference takes undisturbed: its own fastest sessions, or fewer yardsticks.

    Its own fastest sessions may all lie in a slow spell of the machine. What it takes in
    yardsticks, times what a yardstick has taken at its fastest on this machine, on whatever day,
    does not know of spells, as long as both are slowed alike. That they are has to be seen: their
    ratio agrees over enough sessions, and it is believed as far beyond these as they lie apart. A
    network that waits for memory where the yardstick computes is left with its own sessions. The
    ratio is that of the faster half of the sessions, which are nearer to what is asked for.

    Args:
        readings: of the reference, at least one.
        quiet_ms: what the yardstick takes undisturbed; None where that is not known.
        tolerances: what passes.
    """
    own_ms = undisturbed_ms(readings)
    beside = [one for one in readings if one.yardstick_ms]
    if quiet_ms is None or not _enough(beside):
        return Unit(own_ms, own_ms)
    # By both times: by one of them, what is measured by mistake would decide on which side it is.
    beside.sort(key=lambda one: one.took_ms * one.yardstick_took_ms)
    ratios = [one.yardsticks for one in beside]
    if relative_range(ratios) > tolerances.spread:
        return Unit(own_ms, own_ms)
    told_ms = float(np.median(ratios[: -(-len(ratios) // 2)])) * quiet_ms
    low, high = np.quantile([one.yardstick_took_ms for one in beside], REACH)
    least_ms = own_ms * float(low / high)
    return Unit(min(own_ms, max(told_ms, least_ms)), own_ms, told_ms)


def _enough(readings: Sequence[Reading]) -> bool:
    """Whether so many sessions tell of a unit; fewer of long ones."""
    span_s = readings[-1].began - readings[0].began if readings else 0.0
    return len(readings) >= (LEAST_UNIT_SESSIONS if span_s >= LONG_S else UNIT_SESSIONS)


def speed_sessions(readings: Iterable[Reading]) -> list[tuple[float, float]]:
    """What the calm sessions of a reference tell of the machine, see `latency.yardstick.Speed`."""
    return [(one.yardstick_took_ms, one.began) for one in calm_ones(readings) if one.yardstick_ms]


def calm_ones(readings: Iterable[Reading]) -> tuple[Reading, ...]:
    """Those that nothing disturbed."""
    return tuple(one for one in readings if not one.disturbed)


def undisturbed_ms(readings: Sequence[Reading]) -> float:
    """What the reference takes undisturbed: the mean of its fastest sessions, at least one."""
    return float(np.mean(_fastest_ms(readings)))


def _fastest_ms(readings: Sequence[Reading]) -> list[float]:
    return sorted(one.took_ms for one in readings)[:UNIT_FASTEST]


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


def wanted_sessions(sessions: int) -> int:
    """Calm sessions that a timing needs where so many are asked for."""
    return max(LEAST_SESSIONS, sessions)


def most_sessions(sessions: int) -> int:
    """Sessions after which such a timing is given up; disturbed ones count without patience."""
    wanted = wanted_sessions(sessions)
    return wanted + max(LEAST_EXTRA, wanted)


@dataclass(frozen=True)
class Conditions:
    """What calls are timed under.

    Attributes:
        threads: of this process that compute.
        cores: that it may use.
        unit_ms: what the reference takes undisturbed; None where that is to be found.
        sessions: calm ones that are wanted, at least 3.
        patience_s: to wait at most for a quiet machine, in all.
        tolerances: what passes.
        wait: for a quiet machine, see `latency.machine.wait_for_quiet`.
        pause: waits so many seconds.
        speed: what is known of the machine.
    """

    threads: int
    cores: int
    unit_ms: float | None
    sessions: int
    patience_s: float
    tolerances: Tolerances = field(default_factory=lambda: TOLERANCES)
    wait: Callable[[float, int, int], float] = field(default=wait_for_quiet)
    pause: Callable[[float], None] = field(default=time.sleep)
    speed: Speed = field(default_factory=Speed)

    @property
    def wanted(self) -> int:
        """Calm sessions that a timing needs."""
        return wanted_sessions(self.sessions)

    @property
    def most(self) -> int:
        """Sessions after which it is given up."""
        return most_sessions(self.sessions)

    @property
    def most_with_unit(self) -> int:
        """The same where the reference has to set the unit."""
        return self.most if self.unit_ms is not None else max(self.most, MOST_UNIT_SESSIONS)


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
    waited_s, tries, given_back = 0.0, 0, 0
    while tries < conditions.most_with_unit:
        so_far = _judged(sessions, count, conditions)
        open_calls = [i for i, one in enumerate(so_far.calls) if one.doubt]
        open_calls = open_calls if tries < conditions.most else []
        sets_unit = conditions.unit_ms is None and not _unit_settled(so_far, conditions)
        if not open_calls and not sets_unit:
            break
        if sessions and conditions.unit_ms is None and conditions.patience_s:
            conditions.pause(UNIT_SPACING_S)
        left = conditions.patience_s - waited_s
        if sessions and so_far.reference.readings[-1].disturbed and left > 0:
            # What disturbed it may last. As long as there is patience it costs no try, unless
            # sessions are disturbed again and again on a machine that is quiet before each.
            waited_s += conditions.wait(left, conditions.threads, conditions.cores)
            if given_back < conditions.most:
                tries, given_back = tries - 1, given_back + 1
        sessions.append((time_some(open_calls), open_calls))
        tries += 1
    return replace(_judged(sessions, count, conditions), waited_s=waited_s)


def _judged(
    sessions: Sequence[tuple[SessionTimes, Sequence[int]]], count: int, conditions: Conditions
) -> Settled:
    """What all sessions so far say."""
    whys = [_disturbed(one, conditions) for one, _ in sessions]
    reference: list[Reading] = []
    calls: list[list[Reading]] = [[] for _ in range(count)]
    for (session, numbers), why in zip(sessions, whys, strict=True):
        yardstick = () if session.yardstick is None else session.yardstick.samples_ms
        own = _reading(session, session.reference, why)
        reference.append(replace(own, yardstick_ms=yardstick))
        for number, timing in zip(numbers, session.calls, strict=True):
            calls[number].append(_reading(session, timing, why))
    speed = conditions.speed.plus(speed_sessions(reference))
    verdict = Verdict(tuple(reference))
    unit = (
        unit_of(verdict.counted, speed.quiet_ms, conditions.tolerances)
        if reference
        else Unit(math.nan, math.nan)
    )
    return Settled(
        reference=_unit_verdict(verdict, unit, conditions.tolerances),
        unit=unit,
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
    if unit_ms is not None and here_ms / unit_ms - 1 > allowed.slower:
        return (
            f"the reference network took {here_ms:.3g} ms in place of {unit_ms:.3g} ms; where that "
            "stays so, forget how fast this machine has been (nas cache list, nas cache clear) and "
            "time everything anew with nas resume RUN --retime"
        )
    return ""


def _verdict(readings: Sequence[Reading], conditions: Conditions) -> Verdict:
    """Whether enough calm sessions agree on a call."""
    made = Verdict(tuple(readings))
    if len(made.calm) < conditions.wanted:
        return _too_few(made)
    if (spread := relative_range(made.ratios)) > conditions.tolerances.spread:
        return replace(made, doubt=f"its calm sessions differ by {spread:.0%}")
    return made


def _unit_verdict(made: Verdict, unit: Unit, tolerances: Tolerances) -> Verdict:
    """Whether the reference's sessions set the unit."""
    calm = made.calm
    if not _enough(calm):
        return _too_few(made)
    fastest = _fastest_ms(calm)
    spread = fastest[-1] / fastest[0] - 1
    if spread > tolerances.unit_spread and not unit.told:
        return replace(made, doubt=f"its fastest sessions differ by {spread:.0%}")
    return made


def _unit_settled(so_far: Settled, conditions: Conditions) -> bool:
    """Whether more sessions of the reference would hardly find a faster one, or a calm one."""
    calm = so_far.reference.calm
    if not calm:
        return len(so_far.reference.readings) >= UNIT_SESSIONS
    if so_far.reference.doubt:
        return False
    if so_far.unit.told and conditions.speed.known:
        return True
    usual = float(np.median([one.took_ms for one in calm]))
    span_s = calm[-1].began - calm[0].began
    # Sessions of one spell are near each other; the yardstick tells a slow one.
    least_ms = min(so_far.unit.ms, so_far.unit.told_ms or math.inf)
    return usual <= (1 + conditions.tolerances.near) * least_ms or span_s >= MOST_UNIT_S


def _too_few(made: Verdict) -> Verdict:
    last = next((one.disturbed for one in reversed(made.readings) if one.disturbed), "")
    why = f"only {len(made.calm)} of {len(made.readings)} sessions were calm"
    return replace(made, doubt=f"{why}: {last}" if last else why)


def agree(one_ms: float, other_ms: float) -> bool:
    """Whether a timing confirms another one."""
    return abs(other_ms / one_ms - 1) <= CONFIRMING


def relative_range(values: Sequence[float]) -> float:
    """Interquartile range divided by the median; of two values half of their distance."""
    low, middle, high = np.quantile(values, [0.25, 0.5, 0.75])
    return float((high - low) / middle)
