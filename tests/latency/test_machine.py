"""What else a machine does is read from the kernel's tables, where there are some."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from latency.machine import (
    QUIET_SLICE_S,
    QUIET_SLICES,
    MachineState,
    Watch,
    wait_for_quiet,
    why_busy,
)


def tables(folder: Path, busy: int, idle: int, waits_ns: int) -> Path:
    thread = folder / "self" / "task" / "1"
    thread.mkdir(parents=True, exist_ok=True)
    (folder / "stat").write_text(f"cpu  {busy} 0 0 {idle} 5 0 0 0 0 0\ncpu0 1 2 3\n")
    (thread / "schedstat").write_text(f"12345 {waits_ns} 7\n")
    return folder


class Clock:
    """Seconds of the machine and of this process that pass when a test says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.mine = 100.0, 10.0
        monkeypatch.setattr(time, "perf_counter", lambda: self.now)
        monkeypatch.setattr(time, "process_time", lambda: self.mine)


def test_others_and_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    watch = Watch(proc=tables(tmp_path, 1000, 5000, 10**9))
    clock.now, clock.mine = 102.0, 11.5
    tables(tmp_path, 1000 + 300, 5100, 10**9 + 5 * 10**8)  # 3 s of work, 1.5 s of them ours
    state = watch.state()
    assert (state.seconds, state.others, state.waited) == (2.0, 0.75, 0.25)


def cores(folder: Path, *busy: int) -> Path:
    """A machine of several cores, each busy for so many ticks."""
    every = [("", sum(busy)), *enumerate(busy)]
    lines = [f"cpu{name}  {ticks} 0 0 1000 5 0 0 0 0 0\n" for name, ticks in every]
    (folder / "stat").write_text("".join([*lines, "intr 1 2 3\n"]))
    return folder


@pytest.mark.parametrize(
    ("allowed", "others"),
    [
        ({1, 2}, 0.25),
        ({0, 3}, 1.5),
        ({0, 1, 2, 3}, 2.25),
        ({2, 9}, 2.25),  # as a container may number them
    ],
)
def test_the_work_of_others_is_that_on_the_cores_of_this_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, allowed: set[int], others: float
) -> None:
    clock = Clock(monkeypatch)
    monkeypatch.setattr("os.sched_getaffinity", lambda process: allowed, raising=False)
    watch = Watch(proc=cores(tmp_path, 500, 100, 7, 500))
    clock.now, clock.mine = 102.0, 11.0
    cores(tmp_path, 500 + 200, 100 + 50, 7 + 100, 500 + 200)
    assert watch.state().others == others


def test_cores_are_those_of_all_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads may be bound to a core each, the one that asks as well."""
    clock = Clock(monkeypatch)
    bound = {0: {0}, 1: {1}, 2: {2}}
    monkeypatch.setattr("os.sched_getaffinity", lambda thread: bound[thread], raising=False)
    for thread in ("1", "2"):
        (tmp_path / "self" / "task" / thread).mkdir(parents=True)
    watch = Watch(proc=cores(tmp_path, 500, 100, 7, 500))
    clock.now, clock.mine = 102.0, 11.0
    cores(tmp_path, 500 + 200, 100 + 50, 7 + 100, 500 + 200)
    assert watch.state().others == 1.25


def test_what_cannot_be_read_is_not_told(tmp_path: Path) -> None:
    state = Watch(proc=tmp_path / "none").state()
    assert state.others is None and state.waited is None
    assert state.disturbed(threads=8, cores=1) is None
    (tmp_path / "stat").write_text("cpu  0 0 0 0 0 0 0 0 0 0\n")  # as some sandboxes say
    assert Watch(proc=tmp_path).state().others is None


def test_threads_that_come_and_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    watch = Watch(proc=tables(tmp_path, 0, 10, 4 * 10**8))
    new = tmp_path / "self" / "task" / "2"
    new.mkdir()
    (new / "schedstat").write_text("1 300000000 1\n")
    (tmp_path / "self" / "task" / "1" / "schedstat").unlink()
    clock.now += 1
    assert watch.state().waited == 0.3


def test_this_machine_can_be_watched() -> None:
    state = Watch().state()
    assert state.seconds >= 0 and (state.waited is None or state.waited >= 0)
    assert MachineState.from_json(state.to_json()) == state


class Slices:
    """A machine that is busy for the first slices."""

    def __init__(self, busy: int) -> None:
        self.busy, self.paused = busy, 0

    def watch(self) -> Slices:
        return self

    def state(self) -> MachineState:
        return MachineState(QUIET_SLICE_S, 2.0 if self.paused <= self.busy else 0.0, 0.0)

    def pause(self, seconds: float) -> None:
        self.paused += 1


@pytest.mark.parametrize(("busy", "slices"), [(0, 2), (3, 5), (10**6, 40)])
def test_waiting_ends_when_it_is_quiet_or_patience_does(busy: int, slices: int) -> None:
    machine = Slices(busy)
    waited = wait_for_quiet(10.0, 1, 2, watch=machine.watch, pause=machine.pause)  # type: ignore[arg-type]
    assert waited == slices * QUIET_SLICE_S and machine.paused == slices


@pytest.mark.parametrize(("others_s", "busy"), [(0.0, False), (0.9, False), (1.9, True)])
def test_a_watch_that_is_too_short_to_tell_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, others_s: float, busy: bool
) -> None:
    clock = Clock(monkeypatch)
    watch = Watch(proc=tables(tmp_path, 1000, 5000, 0))
    clock.now += 0.1
    least_s = QUIET_SLICES * QUIET_SLICE_S
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        clock.now += seconds
        tables(tmp_path, 1000 + round(100 * others_s * least_s), 5000, 0)

    why = why_busy(watch, threads=1, cores=2, pause=pause)
    assert pauses == [pytest.approx(least_s - 0.1)]
    assert why == ("other work kept 1.9 of 2 cores busy" if busy else None)
    clock.now += 60.0  # meanwhile nobody worked
    assert why_busy(watch, threads=1, cores=2, pause=lambda _: pytest.fail("slept")) is None


def test_a_busy_machine_is_told_by_its_other_work_where_that_is_known() -> None:
    waited = "this process waited for a core for 40% of the time"
    assert MachineState(5.0, 1.4, 0.4).why_busy(1, 2) == "other work kept 1.4 of 2 cores busy"
    assert MachineState(5.0, 0.1, 0.4).why_busy(1, 2) == waited  # a limit that only we have
    assert MachineState(5.0, None, 0.4).why_busy(1, 2) == waited
    assert MachineState(5.0, 0.9, 0.01).why_busy(1, 2) is None


def test_a_card_that_throttled_disturbs() -> None:
    state = MachineState(1.0, 0.0, 0.0, 1200.0, 88.0, "hw thermal slowdown")
    assert state.disturbed(1, 2) == "the graphics card throttled (hw thermal slowdown)"
    assert MachineState(1.0, 0.0, 0.0, 1980.0, 60.0, "").disturbed(1, 2) is None


def test_what_is_known_of_cards_alone_is_kept_where_it_is_known() -> None:
    old = {"seconds": 1.0, "others": 0.1, "waited": None, "clock_mhz": 2000.0}
    assert MachineState.from_json(old).to_json() == old
    state = MachineState(1.0, None, None, 1980.0, 60.0, "")
    assert state.to_json()["throttled"] == "" and MachineState.from_json(state.to_json()) == state
