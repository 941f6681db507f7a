"""A timing is believed when calm sessions agree; what disturbs is noticed, repeated, and told."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from latency.acceptance import (
    LEAST_UNIT_SESSIONS,
    MOST_UNIT_SESSIONS,
    UNIT_FASTEST,
    UNIT_SESSIONS,
    Conditions,
    Reading,
    SessionTimes,
    Settled,
    Tolerances,
    agree,
    patience_s,
    reference_drift,
    relative_range,
    settle,
)
from latency.machine import MachineState
from latency.timing import Timing
from latency.yardstick import KNOWN_SESSIONS, Speed
from search_spaces.errors import UsageError

QUIET = MachineState(seconds=1.0, others=0.05, waited=0.01, clock_mhz=2600.0)
BURNT = MachineState(seconds=1.0, others=1.9, waited=0.4, clock_mhz=2600.0)
CALLS_MS = (2.0, 5.0, 11.0)


class Machine:
    """A timer on which session number n is `slow(n)` times slower, in the state `state(n)`."""

    def __init__(
        self,
        slow: Callable[[int], float] = lambda n: 1.0,
        state: Callable[[int], MachineState] = lambda n: QUIET,
        drift: Callable[[int], float] = lambda n: 0.0,
        jitter: float = 0.0,
        reference_ms: float = 1.0,
        seconds: float = 0.3,
        yardstick_ms: Callable[[int], float] | None = None,
    ) -> None:
        self._yardstick_ms = yardstick_ms
        self._seconds, self.pauses = seconds, 0
        self._slow, self._state, self._drift = slow, state, drift
        self._rng, self._jitter = np.random.default_rng(0), jitter
        self._reference_ms = reference_ms
        self.asked: list[list[int]] = []
        self.waits: list[float] = []

    def time_some(self, numbers: Sequence[int]) -> SessionTimes:
        n = len(self.asked)
        self.asked.append(list(numbers))
        reference = Timing((self._reference_ms * self._slow(n),) * 5)
        calls = tuple(self._timing(CALLS_MS[number] * self._slow(n)) for number in numbers)
        began = n * self._seconds
        yardstick = self._yardstick_ms and Timing((self._yardstick_ms(n),) * 5)
        return SessionTimes(reference, self._drift(n), calls, self._state(n), began, yardstick)

    def _timing(self, ms: float) -> Timing:
        return Timing((ms * (1 + self._jitter * self._rng.standard_normal()),) * 5)

    def wait(self, most_s: float, threads: int, cores: int) -> float:
        self.waits.append(most_s)
        return min(most_s, 7.0)

    def pause(self, seconds: float) -> None:
        self.pauses += 1

    def settled(
        self,
        sessions: int = 2,
        unit_ms: float | None = 1.0,
        count: int = 3,
        patience: float = 60.0,
        speed: Speed | None = None,
    ) -> Settled:
        conditions = Conditions(
            1, 2, unit_ms, sessions, patience, Tolerances(), self.wait, self.pause, speed or Speed()
        )
        return settle(self.time_some, count, conditions)


def values(settled: Settled) -> list[float]:
    return [one.measurement(1.0, "board").value for one in settled.calls]


@pytest.mark.parametrize(("sessions", "expected"), [(1, 3), (2, 3), (3, 3), (8, 8)])
def test_calm_sessions_that_agree_are_enough(sessions: int, expected: int) -> None:
    machine = Machine()
    settled = machine.settled(sessions)
    assert len(machine.asked) == settled.sessions == expected
    assert values(settled) == list(CALLS_MS) and settled.repeated == 0 and machine.waits == []
    assert not any(one.doubt for one in settled.calls)


def test_disturbed_sessions_are_repeated_after_a_wait_and_do_not_count() -> None:
    machine = Machine(
        slow=lambda n: 3.0 if n < 2 else 1.0, state=lambda n: BURNT if n < 2 else QUIET
    )
    settled = machine.settled()
    assert settled.sessions == 5 and settled.repeated == 2
    assert machine.waits == [60.0, 53.0] and settled.waited_s == 14.0
    assert values(settled) == list(CALLS_MS)
    readings = settled.calls[0].readings
    assert [bool(one.disturbed) for one in readings] == [True, True, False, False, False]
    assert "waited for a core" in readings[0].disturbed


def test_what_never_is_calm_is_doubtful_and_says_why() -> None:
    machine = Machine(state=lambda n: BURNT)
    settled = machine.settled(patience=10.0)
    # Two that were followed by a wait cost no try.
    assert settled.sessions == 8 and len(machine.waits) == 2 and settled.waited_s == 10.0
    for one in settled.calls:
        assert one.doubt.startswith(
            "only 0 of 8 sessions were calm: this process waited for a core"
        )
        assert one.measurement(1.0, "board").doubtful == one.doubt
    assert values(settled) == list(CALLS_MS)  # there is a value nevertheless


@pytest.mark.parametrize(
    ("state", "disturbed"),
    [
        (MachineState(1.0, 0.9, 0.0), False),  # there is a core for others
        (MachineState(1.0, 1.3, 0.0), True),
        (MachineState(1.0, None, 0.1), True),
        (MachineState(1.0, None, None), False),
        (MachineState(0.02, 1.3, 0.0), False),  # too short for the kernel's ticks to tell
    ],
)
def test_what_disturbs(state: MachineState, disturbed: bool) -> None:
    assert bool(state.disturbed(threads=1, cores=2)) is disturbed
    assert bool(Machine(state=lambda n: state).settled(patience=0).repeated) is disturbed


def test_the_same_load_disturbs_who_needs_all_cores() -> None:
    state = MachineState(1.0, 0.5, 0.0)
    assert state.disturbed(threads=1, cores=2) is None
    assert state.disturbed(threads=2, cores=2) == "other work kept 0.5 of 2 cores busy"


def test_a_reference_that_drifts_disturbs() -> None:
    settled = Machine(drift=lambda n: 0.5 if n == 0 else 0.02).settled()
    assert settled.sessions == 4
    assert settled.calls[0].readings[0].disturbed.startswith("the reference network drifted by 50%")


def test_a_session_in_which_all_is_slower_is_calm_for_ratios_are_not() -> None:
    settled = Machine(slow=lambda n: 1.9 if n % 2 else 1.0).settled()
    assert settled.sessions == 3 and settled.repeated == 0
    assert values(settled) == list(CALLS_MS) and not any(one.doubt for one in settled.calls)


def test_a_machine_that_is_far_slower_than_it_was_makes_everything_doubtful() -> None:
    settled = Machine(slow=lambda n: 3.0).settled(unit_ms=1.0)
    assert "3 ms in place of 1 ms" in settled.calls[0].doubt
    assert "--retime" in settled.calls[0].doubt
    assert not Machine(slow=lambda n: 0.5).settled(unit_ms=1.0).calls[0].doubt


def test_calls_that_do_not_agree_get_more_sessions_alone() -> None:
    class Odd(Machine):
        def time_some(self, numbers: Sequence[int]) -> SessionTimes:
            made = super().time_some(numbers)
            calls = [
                Timing((9.0,) * 5) if number == 1 and len(self.asked) == 1 else timing
                for number, timing in zip(numbers, made.calls, strict=True)
            ]
            return SessionTimes(made.reference, made.drift, tuple(calls), made.state, made.began)

    machine = Odd()
    settled = machine.settled()
    assert machine.asked == [[0, 1, 2]] * 3 + [[1]] * 2
    # Of five sessions one is off: it no longer matters.
    assert not settled.calls[1].doubt and values(settled)[1] == CALLS_MS[1]


def test_calls_that_never_agree_are_doubtful() -> None:
    settled = Machine(jitter=0.5).settled(sessions=3)
    assert settled.sessions == 6
    assert all("calm sessions differ by" in one.doubt for one in settled.calls)


def test_the_reference_alone_sets_the_unit() -> None:
    machine = Machine(reference_ms=4.0)
    settled = machine.settled(unit_ms=None, count=0)
    assert machine.asked == [[]] * UNIT_SESSIONS and settled.unit.ms == 4.0
    assert machine.pauses == UNIT_SESSIONS - 1  # slow spells last, so they are spread
    slow = Machine(reference_ms=4.0, seconds=5.0)
    assert slow.settled(unit_ms=None, count=0).sessions == LEAST_UNIT_SESSIONS
    assert Machine(reference_ms=4.0).settled(unit_ms=4.0, count=0).sessions == 0


def test_a_disturbed_first_session_does_not_set_the_unit() -> None:
    machine = Machine(
        slow=lambda n: 0.2 if n == 0 else 1.0, state=lambda n: BURNT if n == 0 else QUIET
    )
    settled = machine.settled(unit_ms=None)
    assert settled.unit.ms == 1.0 and settled.repeated == 1


def test_a_slow_spell_that_nothing_tells_of_does_not_set_the_unit() -> None:
    machine = Machine(slow=lambda n: 1.5 if n < 4 else 1.0)
    settled = machine.settled(unit_ms=None)
    assert settled.unit.ms == 1.0 and settled.sessions == UNIT_SESSIONS
    # The calls had enough after three sessions: what they are is their ratio to the reference.
    assert machine.asked[3:] == [[]] * (len(machine.asked) - 3)
    assert values(settled) == list(CALLS_MS)


def test_where_most_of_the_time_is_slow_the_unit_waits_for_fast_moments() -> None:
    settled = Machine(slow=lambda n: 1.0 if n % 9 == 5 else 1.6).settled(unit_ms=None)
    assert settled.unit.ms == 1.0 and settled.sessions == MOST_UNIT_SESSIONS
    assert not settled.reference.doubt  # more than three fell into fast moments
    # The same with long sessions: a minute is enough.
    long = Machine(slow=lambda n: 1.0 if n % 9 == 5 else 1.6, seconds=2.5).settled(unit_ms=None)
    assert long.unit.ms == 1.0 and long.sessions == 25


def test_a_unit_of_sessions_that_do_not_come_near_each_other_is_doubtful() -> None:
    settled = Machine(slow=lambda n: 1.0 if n == 7 else 1.6).settled(unit_ms=None)
    assert settled.sessions == MOST_UNIT_SESSIONS
    assert settled.reference.doubt == "its fastest sessions differ by 60%"


def test_where_no_session_is_calm_the_unit_is_given_up_soon() -> None:
    settled = Machine(state=lambda n: BURNT).settled(unit_ms=None)
    assert settled.sessions == settled.repeated == UNIT_SESSIONS
    assert settled.reference.doubt.startswith("only 0 of 12 sessions were calm")


# -- the yardstick ------------------------------------------------------------------------------

HALF_MS = Speed(((0.5, 0.0),) * UNIT_FASTEST, KNOWN_SESSIONS)  # at its fastest, on an earlier day


def spells(n: int) -> float:
    """A machine that is never at its fastest."""
    return 1.3 + 0.2 * (n % 4)


def test_a_machine_that_is_known_tells_the_unit_in_slow_spells_and_without_delay() -> None:
    machine = Machine(slow=spells, yardstick_ms=lambda n: 0.5 * spells(n))
    settled = machine.settled(unit_ms=None, speed=HALF_MS)
    assert settled.unit.ms == pytest.approx(1.0) and settled.unit.own_ms == pytest.approx(1.3)
    assert settled.unit.told and settled.sessions == UNIT_SESSIONS
    assert values(settled) == list(CALLS_MS) and not settled.reference.doubt
    # One that was watched for a few sessions may never have been fast: a minute is taken.
    hardly = Speed(HALF_MS.fastest, KNOWN_SESSIONS - 1)
    settled = Machine(slow=spells, yardstick_ms=lambda n: 0.5 * spells(n)).settled(
        unit_ms=None, speed=hardly
    )
    assert settled.unit.ms == pytest.approx(1.0) and settled.sessions == MOST_UNIT_SESSIONS


def test_a_yardstick_is_believed_as_far_as_its_ratio_was_seen_to_hold() -> None:
    """In one long spell nothing tells whether the reference is slowed like the yardstick."""
    settled = Machine(slow=lambda n: 1.5, yardstick_ms=lambda n: 0.75).settled(
        unit_ms=None, speed=HALF_MS
    )
    assert settled.unit.ms == 1.5 and not settled.unit.told
    assert settled.sessions == MOST_UNIT_SESSIONS  # but it is known to be slow, and waited for
    near = Machine(
        slow=lambda n: 1.5 + 0.15 * (n % 2), yardstick_ms=lambda n: 0.75 + 0.075 * (n % 2)
    ).settled(unit_ms=None, speed=HALF_MS)
    assert near.unit.ms == pytest.approx(1.5 / 1.1) and not near.unit.told


def test_a_network_that_is_slowed_otherwise_than_the_yardstick_keeps_its_own_unit() -> None:
    settled = Machine(slow=spells, yardstick_ms=lambda n: 0.5 * spells(n) ** 2).settled(
        unit_ms=None, speed=HALF_MS
    )
    assert settled.unit.ms == settled.unit.own_ms == pytest.approx(1.3)
    assert settled.sessions == MOST_UNIT_SESSIONS  # as without a yardstick


def test_own_sessions_that_are_faster_are_believed() -> None:
    settled = Machine(slow=spells, yardstick_ms=lambda n: 0.4 * spells(n)).settled(
        unit_ms=None, speed=Speed(((0.6, 0.0),) * UNIT_FASTEST, KNOWN_SESSIONS)
    )
    # What the yardstick took just now is faster than what was known of the machine.
    assert settled.unit.ms == pytest.approx(1.3)


# -- drift --------------------------------------------------------------------------------------


def test_a_bad_place_in_memory_is_no_drift() -> None:
    copies = [Timing((1.0,) * 5), Timing((1.4,) * 5), Timing((0.9,) * 5)]
    assert reference_drift(copies) == 0


def test_a_slow_half_is_a_drift_whichever_way_a_round_goes() -> None:
    slow_end = [Timing((1.0, 1.0, 1.0, 2.0, 2.0))] * 3
    assert reference_drift(slow_end) == pytest.approx(1.0)
    # Within each round the last place is the slow one: rounds turn back, so copies take turns.
    turning = [Timing((1.0, 3.0) * 3), Timing((1.0,) * 6), Timing((3.0, 1.0) * 3)]
    assert reference_drift(turning) < 1.0


def test_one_slow_sample_is_no_drift() -> None:
    copies = [Timing((1.0, 1.0, 9.0, 1.0, 1.0)), Timing((1.0,) * 5), Timing((1.0,) * 5)]
    assert reference_drift(copies) == 0


def test_of_a_single_round_the_copies_are_compared() -> None:
    assert reference_drift([Timing((1.0,)), Timing((1.5,))]) == pytest.approx(0.2)


# -- forms --------------------------------------------------------------------------------------


def test_a_reading_as_json() -> None:
    reading = Reading((1.25, 1.5), (2.0, 2.5), QUIET, 17.5, "it drifted")
    assert Reading.from_json(reading.to_json()) == reading
    assert "yardstick_ms" not in reading.to_json()  # as caches without one have it
    beside = replace(reading, yardstick_ms=(0.5, 0.625))
    assert Reading.from_json(beside.to_json()) == beside and beside.yardsticks == 4.0
    assert reading.ratio == pytest.approx(np.median([1.25 / 2, 1.5 / 2.5]))


def test_ranges_and_agreement() -> None:
    assert relative_range([1.0, 1.1]) == pytest.approx(0.05 / 1.05)
    assert agree(1.0, 1.09) and agree(1.0, 0.9) and not agree(1.0, 1.11)


def test_patience_is_a_number_of_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    assert patience_s() == 0  # as tests set it
    monkeypatch.delenv("NAS_TIMING_PATIENCE_S")
    assert patience_s() == 60
    for wrong in ("-1", "soon", "nan", "inf"):
        monkeypatch.setenv("NAS_TIMING_PATIENCE_S", wrong)
        with pytest.raises(UsageError, match="NAS_TIMING_PATIENCE_S takes a number of seconds"):
            patience_s()


def test_where_only_the_sessions_are_disturbed_patience_ends_too() -> None:
    """As in a container that gets fewer processors than there are: it is quiet before each."""
    machine = Machine(state=lambda n: BURNT)
    machine.wait = lambda most_s, threads, cores: 0.5  # type: ignore[method-assign]
    settled = machine.settled()
    assert settled.sessions == 12 and settled.waited_s < 60.0
