"""The timer, on a clock that moves only when a call says so."""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import nn

from latency.timer import host_share, time_beside, time_calls
from latency.timing import HostShare, Timing
from search_spaces.errors import UsageError


class FakeClock:
    """Seconds that pass only inside the calls it hands out."""

    def __init__(self) -> None:
        self.now = 0.0
        self.made: list[str] = []

    def __call__(self) -> float:
        return self.now

    def call(self, name: str, seconds: Callable[[int], float]) -> Callable[[], None]:
        def run() -> None:
            self.now += seconds(len(self.made))
            self.made.append(name)

        return run


def test_every_call_gets_its_own_time() -> None:
    clock = FakeClock()
    calls = [clock.call("a", lambda _: 0.5), clock.call("b", lambda _: 0.25)]
    slow, fast = time_calls(calls, "cpu", repeats=5, clock=clock)
    assert (slow.median_ms, fast.median_ms) == (500, 250)
    assert slow.count == 5 and slow.spread == 0


def test_rounds_are_interleaved_and_turn_back() -> None:
    clock = FakeClock()
    calls = [clock.call(name, lambda _: 1.0) for name in "abc"]
    time_calls(calls, "cpu", warmup=0, repeats=4, min_sample_s=0, clock=clock)
    assert "".join(clock.made) == "abccbaabccba"


def test_warm_up_is_not_timed() -> None:
    clock = FakeClock()
    slow_start = clock.call("a", lambda number: 100.0 if number < 3 else 1.0)
    (warm,) = time_calls([slow_start], "cpu", warmup=3, repeats=3, min_sample_s=0, clock=clock)
    assert warm.samples_ms == (1000, 1000, 1000)
    clock.made.clear()
    (cold,) = time_calls([slow_start], "cpu", warmup=0, repeats=3, min_sample_s=0, clock=clock)
    assert cold.samples_ms == (100_000, 100_000, 100_000)


@pytest.mark.parametrize(("seconds", "extra"), [(1.0, 0), (0.004, 1 + 3)])
def test_only_short_calls_are_made_once_more_to_see_how_long_they_are_and_before_each_sample(
    seconds: float, extra: int
) -> None:
    clock = FakeClock()
    call = clock.call("a", lambda _: seconds)
    time_calls([call], "cpu", warmup=2, repeats=3, min_sample_s=0.002, clock=clock)
    assert len(clock.made) == 2 + extra + 3


def test_what_was_called_before_does_not_matter() -> None:
    clock = FakeClock()
    # Each takes ten times as long behind the other one, whose data are in the cache then.
    calls = [
        clock.call(name, lambda _, name=name: 0.001 if clock.made[-1:] == [name] else 0.01)
        for name in "ab"
    ]
    for one in time_calls(calls, "cpu", repeats=5, clock=clock):
        assert one.samples_ms == pytest.approx([1.0] * 5)


def test_steady_drift_favours_nobody() -> None:
    clock = FakeClock()
    calls = [clock.call(name, lambda number: 1 + number / 100) for name in "ab"]
    a, b = time_calls(calls, "cpu", warmup=0, repeats=20, min_sample_s=0, clock=clock)
    assert a.median_ms == pytest.approx(b.median_ms)
    assert sum(a.samples_ms) == pytest.approx(sum(b.samples_ms))


@pytest.mark.parametrize("seconds", [1e-6, 3e-5, 9e-4, 0.01])
def test_short_calls_are_repeated_until_a_sample_is_long_enough(seconds: float) -> None:
    clock = FakeClock()
    (timing,) = time_calls(
        [clock.call("a", lambda _: seconds)], "cpu", warmup=0, repeats=1, clock=clock
    )
    assert timing.median_ms == pytest.approx(1000 * seconds)
    assert seconds * len(clock.made) >= 0.002 or seconds > 0.002


def test_a_clock_that_stands_still_ends() -> None:
    (timing,) = time_calls([lambda: None], "cpu", repeats=1, min_sample_s=1e-9, clock=FakeClock())
    assert timing.median_ms == 0 and timing.spread == 0


def test_outliers_stay_in_the_samples_and_show_in_the_spread() -> None:
    timing = Timing((1.0, 1.0, 1.0, 9.0, 9.0))
    assert timing.median_ms == 1 and timing.iqr_ms == 8 and timing.spread == 8
    assert Timing((1.0, 1.0, 1.0, 9.0)).count == 4


def test_the_measurement_carries_median_range_and_device() -> None:
    got = Timing((1.0, 2.0, 3.0)).measurement("cpu: x")
    assert (got.metric, got.value, got.spread, got.count) == ("latency_ms", 2, 1, 3)
    assert (got.unit, got.device, got.seed) == ("ms", "cpu: x", None)


def test_no_calls_no_timings() -> None:
    assert time_calls([], "cpu") == []


@pytest.mark.parametrize(
    "wrong", [{"warmup": -1}, {"repeats": 0}, {"min_sample_s": -1.0}, {"min_sample_s": math.inf}]
)
def test_numbers_out_of_range_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(UsageError, match="timing needs"):
        time_calls([lambda: None], "cpu", **wrong)  # type: ignore[arg-type]


def test_calls_run_in_inference_mode_without_collector_and_both_come_back() -> None:
    seen: list[tuple[bool, bool]] = []
    time_calls(
        [lambda: seen.append((torch.is_inference_mode_enabled(), gc.isenabled()))],
        "cpu",
        repeats=1,
        min_sample_s=0,
    )
    assert set(seen) == {(True, False)}
    assert gc.isenabled() and not torch.is_inference_mode_enabled()


def test_the_heap_is_held_while_calls_are_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stage and three studies had forgotten it."""
    said: list[str] = []

    @contextmanager
    def held() -> Iterator[None]:
        said.append("held")
        yield
        said.append("given back")

    monkeypatch.setattr("latency.timer.steady_heap", held)
    time_calls([lambda: said.append("call")], "cpu", warmup=1, repeats=1, min_sample_s=0.0)
    assert said == ["held", "call", "call", "given back"]


def test_a_call_that_fails_leaves_nothing_switched() -> None:
    with pytest.raises(ZeroDivisionError):
        time_calls([lambda: 1 / 0], "cpu")
    assert gc.isenabled() and not torch.is_inference_mode_enabled()


def test_a_collector_at_rest_stays_at_rest() -> None:
    gc.disable()
    try:
        time_calls([lambda: None], "cpu", repeats=1, min_sample_s=0)
        assert not gc.isenabled()
    finally:
        gc.enable()


@pytest.mark.parametrize(("dtype", "expected"), [("float32", None), ("bfloat16", torch.bfloat16)])
def test_bfloat16_runs_under_autocast(dtype: str, expected: torch.dtype | None) -> None:
    layer, seen = nn.Linear(4, 4), []
    time_calls(
        [lambda: seen.append(layer(torch.ones(1, 4)).dtype)],
        "cpu",
        dtype=dtype,  # type: ignore[arg-type]
        repeats=1,
        min_sample_s=0,
    )
    assert set(seen) == {expected or torch.float32}


@pytest.mark.gpu
def test_a_card_is_timed_with_its_work_done() -> None:
    weights = torch.randn(4096, 4096, device="cuda")
    small, large = time_calls(
        [lambda: weights[:64, :64] @ weights[:64, :64], lambda: weights @ weights], "cuda"
    )
    assert large.median_ms > 2 * small.median_ms > 0


def test_a_reference_is_spread_among_the_others() -> None:
    called: list[str] = []
    clock = FakeClock()
    calls = [lambda n=n: called.append(n) for n in "rstabcd"]  # type: ignore[misc]
    beside, timings = time_beside(
        calls[:3], calls[3:], "cpu", warmup=0, repeats=2, min_sample_s=0, clock=clock
    )
    assert "".join(called) == "rabscdt" + "tdcsbar"
    assert [copy.count for copy in beside] == [2, 2, 2] and len(timings) == 4


def test_slow_rounds_do_not_change_a_ratio() -> None:
    reference, network = Timing((1.0, 10.0, 1.0)), Timing((2.0, 20.0, 2.2))
    assert network.ratio(reference) == 2.0


def test_the_host_has_returned_before_the_device_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FakeClock()
    left = [0.0]

    def launch() -> None:
        clock.now += 0.25
        left[0] += 0.75

    def wait(device: str) -> None:
        clock.now += left.pop()
        left.append(0.0)

    monkeypatch.setattr("latency.timer._synchronise", wait)
    found = host_share(launch, "cpu", repeats=3, clock=clock)
    assert found == HostShare(250.0, 1000.0) and found.share == 0.25
    assert HostShare.from_json(found.to_json()) == found
    assert HostShare(2.0, 1.0).share == 1.0


@pytest.mark.parametrize("total_ms", [0.0, -1.0, math.nan, math.inf, "much"])
def test_a_share_of_nothing_is_refused(total_ms: object) -> None:
    with pytest.raises(ValueError):
        HostShare.from_json({"host_ms": 1.0, "total_ms": total_ms})


@pytest.mark.gpu
def test_the_share_of_a_card_is_told() -> None:
    x = torch.randn(4096, 4096, device="cuda")
    long = host_share(lambda: x @ x @ x @ x, "cuda")
    assert 0 < long.host_ms < long.total_ms and long.share < 0.5
