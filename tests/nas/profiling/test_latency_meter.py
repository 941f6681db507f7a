"""What is timed while other work disturbs is neither kept, nor believed, nor does it win."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from latency.acceptance import UNIT_FASTEST, UNIT_SESSIONS
from latency.locking import file_lock
from latency.timings import read_timings
from latency.yardstick import KNOWN_SESSIONS, SpeedRecord
from nas.profiling.latency_meter import KEPT_READINGS, LatencyMeter
from nas.run.folder import RunFolder
from nas.search.doubtful import disturbances
from nas.search.front import build_front, pick, read_front
from nas.search.uniform_networks import middle
from search_spaces.architecture import Architecture
from search_spaces.errors import DataError, NasError, UsageError
from search_spaces.variation import enumerate_all, sample_distinct
from tests.support.pipeline_cases import logged, spec_of, tiny, work
from tests.support.profile_cases import SPACE
from tests.support.timing_cases import Machine

pytestmark = pytest.mark.usefixtures("few_regressors")

LATENCY = ("quality", "latency_ms")


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch)


def meter(tmp_path: Path) -> LatencyMeter:
    return LatencyMeter(spec_of(tmp_path / "run", objectives=LATENCY))


def networks(count: int = 4) -> list[Architecture]:
    return SPACE.decode(sample_distinct(SPACE, np.random.default_rng(4), count))


def true(machine: Machine, asked: Sequence[Architecture]) -> list[float]:
    return [machine.ms(one) for one in asked]


def test_disturbed_sessions_change_no_value(tmp_path: Path, machine: Machine) -> None:
    machine.disturbed = lambda n: n in (0, 2)
    timed = meter(tmp_path).measure(networks())
    assert [one.value for one in timed.values] == pytest.approx(true(machine, networks()))
    assert timed.repeated == 2 and not any(one.doubtful for one in timed.values)


def test_doubtful_values_are_not_kept_and_timed_anew(tmp_path: Path, machine: Machine) -> None:
    meter(tmp_path).measure([])
    machine.disturbed = lambda n: True
    busy = meter(tmp_path).measure(networks())
    assert all("sessions were calm" in one.doubtful for one in busy.values)
    assert not any(meter(tmp_path).known(one) for one in networks())
    machine.disturbed = lambda n: False
    calm = meter(tmp_path).measure(networks())
    assert [one.value for one in calm.values] == pytest.approx(true(machine, networks()))
    count = len(machine.sessions)
    assert meter(tmp_path).measure(networks()).values == calm.values
    assert len(machine.sessions) == count  # what was accepted is known


def test_a_reference_that_cannot_be_timed_makes_all_doubtful(
    tmp_path: Path, machine: Machine
) -> None:
    machine.disturbed = lambda n: True
    timed = meter(tmp_path).measure(networks())
    assert all(one.doubtful for one in timed.values)
    machine.disturbed = lambda n: False
    again = meter(tmp_path).measure(networks())
    assert [one.value for one in again.values] == pytest.approx(true(machine, networks()))


def test_an_unexpected_value_that_comes_again_is_believed(tmp_path: Path, machine: Machine) -> None:
    first = meter(tmp_path).measure(networks())
    count = len(machine.sessions)
    again = meter(tmp_path).confirm(networks()[:2])
    assert again.values == first.values[:2] and len(machine.sessions) == count + 3
    assert meter(tmp_path).confirm(networks()[:2]).values == again.values
    assert len(machine.sessions) == count + 3  # once is enough, also for other runs


def test_of_three_timings_two_that_agree_are_believed(tmp_path: Path, machine: Machine) -> None:
    odd = networks()[0].id
    machine.spikes = lambda n, network_id: 20.0 if network_id == odd and n < 3 else 1.0
    first = meter(tmp_path).measure(networks())
    assert first.values[0].value == pytest.approx(20 * machine.ms(networks()[0]))
    (value,) = meter(tmp_path).confirm(networks()[:1]).values
    assert value.value == pytest.approx(machine.ms(networks()[0])) and not value.doubtful
    assert meter(tmp_path).measure(networks()).values[0] == value
    profile = meter(tmp_path)._profile
    assert len(profile.readings(odd)) == 9  # all sessions stand beside the value


def test_timings_that_never_agree_are_doubtful_and_forgotten(
    tmp_path: Path, machine: Machine
) -> None:
    odd = networks()[0].id
    machine.spikes = lambda n, network_id: 2.0 ** (n // 3) if network_id == odd else 1.0
    meter(tmp_path).measure(networks())
    first, second = meter(tmp_path).confirm(networks()[:2]).values
    assert "timings of it do not agree" in first.doubtful and not second.doubtful
    assert not meter(tmp_path).known(networks()[0]) and meter(tmp_path).known(networks()[1])


def test_what_another_search_has_forgotten_meanwhile_has_a_value_too(
    tmp_path: Path, machine: Machine
) -> None:
    odd, other = networks()[0].id, meter(tmp_path)
    machine.spikes = lambda n, network_id: 2.0 ** (n // 3) if network_id == odd else 1.0
    other.measure(networks())
    meter(tmp_path).confirm(networks()[:2])
    machine.disturbed = lambda n: True
    found = other.confirm(networks()[:2])
    assert [bool(one.doubtful) for one in found.values] == [True, False] and found.repeated


def test_the_reference_is_not_held_against_itself(tmp_path: Path, machine: Machine) -> None:
    one = meter(tmp_path)
    one.measure([])
    (reference,) = [architecture for architecture, _ in one._profile.entries.values()]
    count = len(machine.sessions)
    assert len(one.confirm([reference]).values) == 1 and len(machine.sessions) == count


def test_doubtful_sessions_are_not_held(tmp_path: Path, machine: Machine) -> None:
    meter(tmp_path).measure(networks())
    machine.disturbed = lambda n: True
    busy = meter(tmp_path).in_sessions(networks())
    assert all(one.doubtful for one in busy.values)
    machine.disturbed = lambda n: False
    calm = meter(tmp_path).in_sessions(networks())
    assert [one.latency_ms for one in calm.values] == pytest.approx(true(machine, networks()))
    assert not any(one.doubtful for one in calm.values)


def test_everything_can_be_forgotten(tmp_path: Path, machine: Machine) -> None:
    meter(tmp_path).measure(networks())
    meter(tmp_path).in_sessions(networks())
    meter(tmp_path).forget()
    assert not any(meter(tmp_path).known(one) for one in networks())
    count = len(machine.sessions)
    meter(tmp_path).measure(networks())
    assert len(machine.sessions) == count + UNIT_SESSIONS


def test_forgetting_waits_for_who_is_timing(
    tmp_path: Path, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = meter(tmp_path)
    meter(tmp_path).measure(networks())
    meter(tmp_path).in_sessions(networks())
    impatient = partial(file_lock, timeout_s=0.0)
    monkeypatch.setattr("latency.timings.file_lock", impatient)
    with meter(tmp_path)._profile.timing(), pytest.raises(NasError, match="another process"):
        one.forget()
    assert all(meter(tmp_path).known(network) for network in networks())
    one.forget()
    again = meter(tmp_path)
    assert not len(again._profile) and not len(again._in_sessions)  # also what came meanwhile


# -- the unit -----------------------------------------------------------------------------------


def test_a_unit_of_a_slow_spell_is_mended_by_later_sessions_for_all_that_was_timed(
    tmp_path: Path, machine: Machine
) -> None:
    machine.slow = lambda n: 1.5  # as long as the first networks are timed, and nothing tells
    early, late, asked = networks()[:2], networks()[2:], networks()
    first = meter(tmp_path).measure(early)
    assert [one.value for one in first.values] == pytest.approx(
        [1.5 * ms for ms in true(machine, early)]
    )
    meter(tmp_path).in_sessions(early)
    machine.slow = lambda n: 1.0
    found = meter(tmp_path).measure(late)
    assert found.shorter == pytest.approx(1 / 1.5) and first.shorter == 1
    (told,) = disturbances("verify", found)
    assert told.loud and "it needs 0.67 of that" in told.message
    assert told.message.endswith("in the cache; predictions of this run stay too long")
    (told,) = disturbances("latency", found, predicted=False)  # it is fitted afterwards
    assert told.message.endswith("and so are all in the cache")
    count = len(machine.sessions)
    one = meter(tmp_path)
    assert [two.value for two in one.measure(asked).values] == pytest.approx(true(machine, asked))
    held = one.in_sessions(early)
    assert [two.latency_ms for two in held.values] == pytest.approx(true(machine, early))
    assert len(machine.sessions) == count  # nothing was timed again for it
    machine.slow = lambda n: 1.5  # slower again: what was known stays
    meter(tmp_path).time_afresh(early, 3)
    assert meter(tmp_path).measure(asked).values == one.measure(asked).values


def test_a_unit_that_changes_while_timings_are_confirmed_does_not_part_them(
    tmp_path: Path, machine: Machine
) -> None:
    machine.slow = lambda n: 1.5
    meter(tmp_path).measure(networks())
    machine.slow = lambda n: 1.0
    again = meter(tmp_path).confirm(networks()[:2])
    assert not any(one.doubtful for one in again.values)
    assert [one.value for one in again.values] == pytest.approx(true(machine, networks()[:2]))


def spells(n: int) -> float:
    return 1.3 + 0.2 * (n % 4)


def watched(tmp_path: Path, machine: Machine) -> Path:
    """The file of a machine that was used before, when it was at rest."""
    machine.yardstick = True
    one = meter(tmp_path)
    one.time_afresh(networks(1), KNOWN_SESSIONS)
    one.forget()
    return one._speed.path


def test_how_fast_the_machine_has_been_sets_the_unit_of_later_searches(
    tmp_path: Path, machine: Machine
) -> None:
    watched(tmp_path, machine)
    machine.slow = spells  # never at its fastest again
    count = len(machine.sessions)
    timed = meter(tmp_path).measure(networks())
    assert [one.value for one in timed.values] == pytest.approx(true(machine, networks()))
    assert len(machine.sessions) == count + UNIT_SESSIONS  # and does not wait for it
    (told,) = disturbances("latency", timed)
    assert not told.loud and "took 1.30 times what it has taken in earlier sessions" in told.message
    assert meter(tmp_path).measure(networks()).slower == 1  # told once


def test_another_search_that_finds_the_machine_faster_mends_what_was_timed_before(
    tmp_path: Path, machine: Machine
) -> None:
    machine.yardstick, machine.slow = True, spells
    early, late = networks()[:2], networks()[2:]
    meter(tmp_path).measure(early)
    SpeedRecord(meter(tmp_path).header.device, "float32").add([(0.5, 1e9)] * UNIT_FASTEST)
    found = meter(tmp_path).measure(late)
    assert found.shorter == pytest.approx(1 / 1.3)
    assert [one.value for one in meter(tmp_path).measure(networks()).values] == pytest.approx(
        true(machine, networks())
    )


def test_without_what_is_known_of_the_machine_all_is_as_it_was(
    tmp_path: Path, machine: Machine
) -> None:
    watched(tmp_path, machine).unlink()  # nas cache clear
    machine.slow = lambda n: 1.5
    timed = meter(tmp_path).measure(networks())
    assert [one.value for one in timed.values] == pytest.approx(
        [1.5 * ms for ms in true(machine, networks())]
    )


def test_what_is_damaged_is_told_before_anything_is_timed(tmp_path: Path, machine: Machine) -> None:
    watched(tmp_path, machine).write_text("{")
    count = len(machine.sessions)
    with pytest.raises(DataError, match="nas cache clear"):
        meter(tmp_path)
    assert len(machine.sessions) == count


def test_a_long_used_cache_keeps_few_sessions_of_its_reference(
    tmp_path: Path, machine: Machine
) -> None:
    one = meter(tmp_path)
    one.measure([])
    machine.slow = lambda n: 1.5
    for _ in range(3):
        one.time_afresh(networks(1), 50)
    reference, unit_ms = one._reference()
    kept = one._profile.readings(reference.id)
    assert len(kept) == KEPT_READINGS + UNIT_FASTEST and unit_ms == machine.ms(reference)
    assert sorted(reading.took_ms for reading in kept)[:UNIT_FASTEST] == [unit_ms] * UNIT_FASTEST


# -- whole searches -----------------------------------------------------------------------------


def search(folder: RunFolder) -> list[str]:
    """Run it; what it noted."""
    work(folder)
    return [event["message"] for event in logged(folder) if event["event"] == "Note"]


def test_one_disturbed_timing_does_not_win_nor_stay(tmp_path: Path, machine: Machine) -> None:
    quiet = tiny(tmp_path / "quiet", objectives=LATENCY)
    search(quiet)
    meter(tmp_path).forget()
    machine.sessions.clear()
    machine.disturbed = lambda n: n % 3 == 0
    busy = tiny(tmp_path / "busy", objectives=LATENCY)
    notes = search(busy)
    assert any("other work disturbed the timing" in note for note in notes)
    mine, theirs = read_front(busy), read_front(quiet)
    assert [one.id for one in mine.entries] == [one.id for one in theirs.entries]
    for one, other in zip(mine.entries, theirs.entries, strict=True):
        assert one.measured["latency_ms"] == pytest.approx(other.measured["latency_ms"])
        assert one.to_json()["doubtful"] == {}


def test_a_faster_unit_that_confirming_finds_is_that_of_the_whole_sample(
    tmp_path: Path, machine: Machine
) -> None:
    reference = SPACE.decode(middle(SPACE))[0].id

    def spike(n: int, network_id: str) -> float:
        odd = next(one for one in machine.sessions[0] if one != reference)
        return 20.0 if n < UNIT_SESSIONS and network_id == odd else 1.0

    machine.slow, machine.spikes = (lambda n: 1.5 if n < UNIT_SESSIONS else 1.0), spike
    folder = tiny(tmp_path / "run", objectives=LATENCY)
    notes = search(folder)
    sample = list(read_timings(folder.path / "latency" / "profile.jsonl").entries.values())
    assert [value.value for _, value in sample] == pytest.approx(
        true(machine, [network for network, _ in sample])
    )
    (told,) = [note for note in notes if "the machine was slow" in note]
    assert "predictions of this run" not in told


def test_a_busy_machine_marks_all_and_says_so(tmp_path: Path, machine: Machine) -> None:
    machine.disturbed = lambda n: True
    folder = tiny(tmp_path / "run", objectives=LATENCY)
    notes = search(folder)
    front = read_front(folder)
    assert all("latency_ms" in one.doubtful for one in front.entries)
    assert any("stay doubtful" in note for note in notes)
    assert pick(front, "best") and pick(front, "knee") and pick(front, "cheapest")
    least_ms = min(one.measured["latency_ms"] for one in front.entries)
    assert pick(front, f"latency_ms<={3.1 * least_ms}")
    with pytest.raises(UsageError, match="no network on the front has latency_ms"):
        pick(front, f"latency_ms<={2.9 * least_ms}")


def test_no_doubtful_network_keeps_a_near_limit(tmp_path: Path, machine: Machine) -> None:
    meter(tmp_path).measure([])
    machine.disturbed = lambda n: True
    space = tiny(tmp_path / "other").spec.space
    least_ms = min(true(machine, space.decode(enumerate_all(space, 10_000))))
    folder = tiny(tmp_path / "run", objectives=LATENCY, limits={"latency_ms": 2.9 * least_ms})
    with pytest.raises(NasError, match="could not be timed reliably .* nas resume"):
        search(folder)
    machine.disturbed = lambda n: False
    search(folder)  # the machine is at rest now
    assert all(one.doubtful == {} for one in read_front(folder).entries)


def test_doubtful_networks_are_passed_over_by_picks(tmp_path: Path, machine: Machine) -> None:
    folder = tiny(tmp_path / "run", objectives=LATENCY)
    search(folder)
    front = read_front(folder)
    cheapest = pick(front, "cheapest")
    doubted = [
        type(one)(one.id, one.architecture, one.measured, one.predicted, {"latency_ms": "why"})
        if one.id == cheapest.id
        else one
        for one in front.entries
    ]
    made = build_front(doubted, front.objectives, front.reference, {})
    assert len(made.entries) == len(front.entries)
    if len(made.entries) > 1:
        assert pick(made, "cheapest").id != cheapest.id
    cost_ms = cheapest.measured["latency_ms"]
    for limit_ms, keeps in ((2.9 * cost_ms, False), (3.1 * cost_ms, True)):
        kept = build_front(doubted, front.objectives, front.reference, {"latency_ms": limit_ms})
        assert (cheapest.id in [one.id for one in kept.entries]) is keeps
