"""A limit on latency holds: one measurement near it is not believed, sessions decide."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from latency.acceptance import LEAST_SESSIONS, UNIT_FASTEST, UNIT_SESSIONS, SessionTimes
from latency.machine import MachineState
from latency.timing import Timing
from nas.objectives.latency_limits import (
    PREDICTED_STDS,
    SESSIONS,
    ConfirmedLatency,
    keeps,
    upper_of_median,
    upper_rank,
    upper_value,
)
from nas.profiling import latency_meter
from nas.profiling.latency_meter import LatencyMeter
from nas.run.folder import RunFolder
from nas.search.front import read_front
from nas.stages.measured import read_confirmed
from search_spaces.architecture import Architecture
from tests.support.pipeline_cases import finished, spec_of, tiny, work
from tests.support.profile_cases import SPACE
from tests.support.timing_cases import planted_ms

# -- arithmetic ---------------------------------------------------------------------------------


pytestmark = pytest.mark.usefixtures("few_regressors")


@pytest.mark.parametrize(
    ("count", "rank"), [(1, 1), (4, 4), (5, 5), (7, 7), (8, 7), (11, 9), (100, 59)]
)
def test_ranks_of_the_upper_bound(count: int, rank: int) -> None:
    assert upper_rank(count) == rank


def test_the_bound_is_above_the_median_as_often_as_promised() -> None:
    rng = np.random.default_rng(0)
    bounds = [upper_of_median(rng.lognormal(size=SESSIONS).tolist()) for _ in range(4000)]
    assert 0.955 < np.mean(np.array(bounds) > 1.0) < 0.975


def test_what_a_limit_is_held_against() -> None:
    predicted = {"latency_ms": 2.0, "latency_std_ms": 0.25}
    assert upper_value({}, predicted, "latency_ms") == 2 + PREDICTED_STDS * 0.25
    assert upper_value({"latency_ms": 1.0}, predicted, "latency_ms") == 1.0
    measured = {"latency_ms": 1.0, "latency_upper_ms": 1.5}
    assert upper_value(measured, predicted, "latency_ms") == 1.5
    assert not keeps(measured, predicted, {"latency_ms": 1.4})
    assert keeps(measured | {"params": 3}, {}, {"latency_ms": 1.5, "params": 3})


# -- a machine whose times are planted ----------------------------------------------------------

# The mean speed of the fastest sessions, which set the unit.
UNIT = sum(1.1**number for number in range(1, UNIT_FASTEST + 1)) / UNIT_FASTEST


class Machine:
    """Takes `ms(architecture)` in sessions, but at first sight `flattery` times that.

    It gets slower by a tenth with every session. First sight are as many sessions as a single
    measurement takes.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, flattery: float = 1.0) -> None:
        self.flattery = flattery
        self.speed = 1.0
        self.sessions: list[list[str]] = []
        self._seen: Counter[str] = Counter()
        monkeypatch.setattr(latency_meter, "time_session", self)

    ms = staticmethod(planted_ms)

    def __call__(
        self, space: Any, reference: Architecture, networks: Sequence[Architecture], *_: Any
    ) -> SessionTimes:
        self.speed *= 1.1
        self.sessions.append([network.id for network in networks])
        times = tuple(self._time(network) for network in networks)
        return SessionTimes(self._timing(reference, 1.0), 0.0, times, MachineState(1.0), 0.0)

    def _time(self, network: Architecture) -> Timing:
        self._seen[network.id] += 1
        first = self._seen[network.id] <= LEAST_SESSIONS
        return self._timing(network, self.flattery if first else 1.0)

    def _timing(self, network: Architecture, factor: float) -> Timing:
        return Timing((self.speed * factor * self.ms(network),) * 3)


def meter(tmp_path: Path) -> LatencyMeter:
    return LatencyMeter(spec_of(tmp_path / "run", objectives=("quality", "latency_ms")))


def networks(count: int) -> list[Architecture]:
    from search_spaces.variation import sample_distinct

    return SPACE.decode(sample_distinct(SPACE, np.random.default_rng(4), count))


def test_drift_between_sessions_is_divided_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine(monkeypatch)
    one, two = networks(8)[:4], networks(8)[4:]
    times = [*meter(tmp_path).measure(one).values, *meter(tmp_path).measure(two).values]
    true = [UNIT * machine.ms(network) for network in (*one, *two)]
    assert [time.value for time in times] == pytest.approx(true)
    assert len(machine.sessions) == UNIT_SESSIONS + LEAST_SESSIONS


def test_what_was_held_once_is_not_timed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine(monkeypatch)
    first = meter(tmp_path).in_sessions(networks(3))
    total = UNIT_SESSIONS + SESSIONS  # the reference alone, then all in sessions
    assert len(machine.sessions) == total
    assert meter(tmp_path).in_sessions(networks(3)) == first and len(machine.sessions) == total
    expected = [UNIT * machine.ms(network) for network in networks(3)]
    assert [held.latency_ms for held in first.values] == pytest.approx(expected)
    assert all(held.upper_ms == pytest.approx(held.latency_ms) for held in first.values)


# -- a search on that machine -------------------------------------------------------------------


def limited(path: Path, most: float, objective: str = "latency_ms") -> RunFolder:
    return finished(path, objectives=("quality", objective), limits={"latency_ms": most})


@pytest.mark.parametrize("objective", ["latency_ms", "flops"])
def test_flattered_networks_do_not_stay_on_the_front(
    objective: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine(monkeypatch, flattery=0.95)
    most = UNIT * 3.05
    run = limited(tmp_path / "run", most, objective)
    front = read_front(run).entries
    assert front and all(UNIT * machine.ms(entry.architecture) <= most for entry in front)
    held = read_confirmed(RunView(run))
    assert held and (
        objective == "flops" or any(v["latency_ms"].upper_ms > most for v in held.values())
    )
    assert all(e.id in held and e.measured["latency_upper_ms"] <= most for e in front)


class RunView:
    """As much of a run as reading what was held takes."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder


def test_nothing_is_held_without_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Machine(monkeypatch)
    run = finished(tmp_path / "run", objectives=("quality", "latency_ms"))
    assert (run.path / "holding.jsonl").read_bytes() == b""
    assert all("latency_upper_ms" not in e.measured for e in read_front(run).entries)


def test_where_a_saving_of_a_time_is_picked_all_of_the_front_is_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine(monkeypatch, flattery=0.8)
    run = finished(tmp_path / "run", objectives=("quality", "latency_ms"), pick="1.5x")
    times = {
        e.id: e.measured["latency_ms"] / machine.ms(e.architecture) for e in read_front(run).entries
    }
    assert list(times.values()) == pytest.approx([UNIT] * len(times))
    assert times.keys() <= read_confirmed(RunView(run)).keys()


def test_a_killed_verification_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Machine(monkeypatch, flattery=0.95)
    limit = {"latency_ms": UNIT * 3.1}
    whole = limited(tmp_path / "whole", limit["latency_ms"])
    again = tiny(tmp_path / "again", objectives=("quality", "latency_ms"), limits=limit)
    lines = (whole.path / "holding.jsonl").read_text().splitlines()
    stop_before_front(again, monkeypatch)
    (again.path / "stages" / "verify.json").unlink()
    (again.path / "holding.jsonl").write_text(lines[0] + '\n{"networks": [{"id": "cu')
    work(again)
    assert read_front(again).to_json() == read_front(whole).to_json()
    assert [json.loads(line) for line in lines] == again.read_journal("holding.jsonl")


def stop_before_front(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("nas.stages.front.build_front", lambda *given: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            work(folder)


def test_a_line_of_the_journal() -> None:
    assert ConfirmedLatency(1.0, 1.1, 8).to_json("abc") == {
        "id": "abc",
        "latency_ms": 1.0,
        "latency_upper_ms": 1.1,
        "sessions": 8,
    }
