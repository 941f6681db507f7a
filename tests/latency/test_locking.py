"""Who times is alone on a device, and nobody waits for ever."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from search_spaces.errors import DataError, NasError
from search_spaces.lock_files import lock_dir
from search_spaces.turns import (
    LOOK_EVERY_S,
    MOST_REST_S,
    PATIENCE_S,
    STUBBORN_AGAIN_S,
    STUBBORN_S,
    Turns,
)
from tests.support.turn_cases import Other, WaitedError, computed_on, others, refuse, timed_on


class Clock:
    """Seconds that pass in pauses only; `meanwhile` is done in each of them."""

    def __init__(self, meanwhile: Callable[[], object] = lambda: None) -> None:
        self.now, self.meanwhile, self.pauses = 0.0, meanwhile, 0

    def __call__(self) -> float:
        return self.now

    def pause(self, seconds: float) -> None:
        self.now += seconds
        self.pauses += 1
        self.meanwhile()


def turns_of(folder: Path, clock: Clock) -> Turns:
    return Turns(lambda: folder, clock, clock.pause)


@pytest.fixture
def other(tmp_path: Path) -> Iterator[Other]:
    with others(tmp_path, 1) as (one,):
        yield one


# -- between processes ----------------------------------------------------------------------------


def test_many_compute_at_once(tmp_path: Path, other: Other) -> None:
    assert other.tell("compute") == "ok"
    with Turns(lambda: tmp_path, pause=refuse).computing("cpu"):
        assert computed_on(folder=tmp_path) and not timed_on(folder=tmp_path)


def test_who_times_has_its_turn_although_the_computing_never_ends(
    tmp_path: Path, other: Other
) -> None:
    assert other.tell("compute") == "ok"
    assert other.tell("give_way") == "ok"  # nobody waits: it goes on at once
    answers = []
    clock = Clock(lambda: answers.append(other.tell("give_way")))
    with turns_of(tmp_path, clock).timing(["cpu"]):
        assert answers == ["waits"]  # it has let go, and stands until it is free again
        assert other.tell("look") == "waits"
    assert other.tell("look") == "ok"
    assert computed_on(folder=tmp_path)


def test_two_do_not_time_at_once(tmp_path: Path, other: Other) -> None:
    assert other.tell("time") == "ok"
    clock = Clock(lambda: other.tell("end"))
    with turns_of(tmp_path, clock).timing(["cpu"]):
        assert clock.pauses == 1
        assert other.tell("time") == "waits"
    assert other.tell("look") == "ok"


def test_devices_have_turns_of_their_own(tmp_path: Path, other: Other) -> None:
    assert other.tell("time") == "ok"
    turns = Turns(lambda: tmp_path, pause=refuse)
    with turns.computing("card"), turns.timing(["card"]):
        pass
    with pytest.raises(WaitedError), turns.timing(["card", "cpu"]):
        pytest.fail("somebody times on the processor")


@pytest.mark.parametrize("what", ["compute", "time"])
def test_what_a_killed_process_held_is_free(tmp_path: Path, other: Other, what: str) -> None:
    assert other.tell(what) == "ok"
    clock = Clock(other.kill)
    with turns_of(tmp_path, clock).timing(["cpu"]):
        assert clock.pauses == 1


def test_a_process_that_waits_for_others_lets_go(tmp_path: Path, other: Other) -> None:
    assert other.tell("compute") == "ok"
    assert other.tell("wait") == "ok"
    with Turns(lambda: tmp_path, pause=refuse).timing(["cpu"]):
        assert other.tell("end") == "waits"  # it would go on
    assert other.tell("look") == "ok"


# -- nothing hangs --------------------------------------------------------------------------------


def test_a_stopped_process_delays_a_timer_until_the_bound(
    tmp_path: Path, other: Other, caplog: pytest.LogCaptureFixture
) -> None:
    assert other.tell("compute") == "ok"
    other.stop()
    clock = Clock()
    turns = turns_of(tmp_path, clock)
    for most in (STUBBORN_S, STUBBORN_AGAIN_S):
        before = clock.now
        with turns.timing(["cpu"]):
            assert most <= clock.now - before < most + 2 * LOOK_EVERY_S
    assert "does not let go" in caplog.text and len(caplog.records) == 1
    other.go_on()
    assert other.tell("end") == "ok"
    with turns.timing(["cpu"]):
        pauses = clock.pauses
    assert other.tell("compute") == "ok"
    clock.meanwhile = lambda: other.tell("give_way") if clock.pauses > pauses + 200 else None
    with turns.timing(["cpu"]):  # patient again
        assert clock.pauses == pauses + 201


def test_who_computes_goes_on_when_somebody_times_for_too_long(
    tmp_path: Path, other: Other, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock(lambda: clock.pauses > 1 or other.tell("look"))
    turns = turns_of(tmp_path, clock)
    with turns.computing("cpu"):
        assert other.tell("time") == "waits"
        turns.give_way()
        assert PATIENCE_S <= clock.now < PATIENCE_S + 2 * LOOK_EVERY_S
        assert "has timed for long" in caplog.text
        now = clock.now
        turns.give_way()
        with turns.waiting():
            pass
        assert clock.now == now  # it is not waited for again
        assert other.tell("end") == "ok"
        turns.give_way()
        assert computed_on(folder=tmp_path)


def test_who_waits_for_a_timer_comes_next(tmp_path: Path, other: Other) -> None:
    turns = Turns(lambda: tmp_path, pause=refuse)
    with turns.timing(["cpu"]):
        assert other.tell("time") == "waits"
    with pytest.raises(WaitedError), turns.timing(["cpu"]):
        pytest.fail("it had its turn, and another one waits")
    assert other.tell("look") == "ok"
    assert other.tell("end") == "ok"
    with turns.timing(["cpu"]):
        pass


def test_a_timer_that_waits_for_another_too_long_says_so(
    tmp_path: Path, other: Other, caplog: pytest.LogCaptureFixture
) -> None:
    assert other.tell("time") == "ok"
    clock = Clock()
    with (
        pytest.raises(NasError, match="timed networks on this machine .cpu. for 1800 seconds"),
        turns_of(tmp_path, clock).timing(["cpu"]),
    ):
        pytest.fail("two at once")
    assert "waits for its turn" in caplog.text and len(caplog.records) == 1
    assert PATIENCE_S <= clock.now < PATIENCE_S + 2 * LOOK_EVERY_S


def test_an_error_is_not_held_up_by_others(tmp_path: Path, other: Other) -> None:
    """Ctrl-C while another process times: what was held before is not waited for."""
    turns = Turns(lambda: tmp_path, pause=refuse)
    with pytest.raises(KeyboardInterrupt), turns.computing("cpu"), turns.waiting():
        assert other.tell("time") == "ok"
        raise KeyboardInterrupt
    assert other.tell("end") == "ok"
    assert not computed_on(folder=tmp_path)


# -- in one process -------------------------------------------------------------------------------


def test_who_computes_and_times_does_not_lock_itself_out(tmp_path: Path) -> None:
    turns = Turns(lambda: tmp_path, pause=refuse)
    with turns.computing("cpu"), turns.computing("cpu"):
        with turns.timing(["cpu"]), turns.timing(["cpu"]):
            assert timed_on(folder=tmp_path)
            with turns.computing("cpu"):  # what is timed may itself do what computes elsewhere
                turns.give_way()
        assert computed_on(folder=tmp_path)
        with turns.waiting():
            assert not computed_on(folder=tmp_path)
            with turns.computing("cpu"):
                assert computed_on(folder=tmp_path)
            assert not computed_on(folder=tmp_path)
        assert computed_on(folder=tmp_path)
    assert not computed_on(folder=tmp_path) and not timed_on(folder=tmp_path)


def test_work_is_ended_before_a_device_is_let_go(tmp_path: Path) -> None:
    turns, seen = Turns(lambda: tmp_path, pause=refuse), []

    def settle() -> None:
        seen.append(computed_on("card", tmp_path))

    with turns.computing("card", settle), turns.timing(["card"]):
        assert seen == [True]
    assert seen == [True, True]


def test_threads_exclude_each_other_as_processes_do(tmp_path: Path) -> None:
    turns, found = Turns(lambda: tmp_path, pause=refuse), []

    def time() -> None:
        try:
            with turns.timing(["cpu"]):
                found.append("alone")
        except WaitedError:
            found.append("waited")

    with turns.computing("cpu"):
        thread = threading.Thread(target=time)
        thread.start()
        thread.join()
    time()
    assert found == ["waited", "alone"]


@pytest.mark.parametrize("seconds", [3.0, 10 * MOST_REST_S])
def test_who_made_others_wait_lets_them_compute_as_long_as_it_has_timed(
    tmp_path: Path, other: Other, seconds: float
) -> None:
    assert other.tell("compute") == "ok"
    clock = Clock(lambda: other.tell("end"))
    turns = turns_of(tmp_path, clock)
    with turns.timing(["cpu"]):
        clock.now += seconds
    begun, rest = clock.now, min(seconds, MOST_REST_S)
    with turns.timing(["cpu"]):  # nobody had to wait this time
        assert rest <= clock.now - begun < rest + 2 * LOOK_EVERY_S
        clock.now += seconds
    begun = clock.now
    with turns.timing(["cpu"]):
        assert clock.now == begun


def test_seconds_of_waiting_are_counted(tmp_path: Path, other: Other) -> None:
    assert other.tell("time") == "ok"
    clock = Clock(lambda: other.tell("end"))
    turns = turns_of(tmp_path, clock)
    with turns.computing("cpu"):
        assert turns.waited_s == LOOK_EVERY_S


# -- where the locks lie --------------------------------------------------------------------------


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("NAS_LOCK_DIR")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path / f"nas-{os.getuid()}"


def test_locks_lie_in_a_folder_of_machine_and_user(
    temporary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert lock_dir() == lock_dir() == temporary
    assert temporary.stat().st_mode & 0o777 == 0o700
    monkeypatch.setenv("NAS_CACHE_DIR", str(tmp_path / "elsewhere"))
    assert lock_dir() == temporary  # a service and a shell may have caches of their own
    monkeypatch.setenv("NAS_LOCK_DIR", str(tmp_path / "a" / "b"))
    assert lock_dir() == tmp_path / "a" / "b"


@pytest.mark.parametrize("wrong", ["open to all", "a link", "a file"])
def test_a_folder_that_others_may_write_to_is_refused(
    temporary: Path, tmp_path: Path, wrong: str
) -> None:
    if wrong == "open to all":
        temporary.mkdir()
        temporary.chmod(0o777)
    elif wrong == "a link":
        (tmp_path / "other").mkdir()
        temporary.symlink_to(tmp_path / "other")
    else:
        temporary.touch()
    with pytest.raises(DataError, match="NAS_LOCK_DIR"):
        lock_dir()
