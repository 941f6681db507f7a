"""Timing calls against each other: interleaved, synchronised, warmed up, medians with spread."""

from __future__ import annotations

import gc
import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

import torch

from latency.timing import HostShare, Timing
from latency.workload import Dtype
from search_spaces.errors import UsageError
from search_spaces.heap import steady_heap

# So many times the shortest sample is a long call, even where the first one was a slow one.
LONG = 16
MIN_SAMPLE_S = 0.002

Call = Callable[[], object]
Clock = Callable[[], float]


def time_calls(
    calls: Sequence[Call],
    device: str,
    *,
    dtype: Dtype = "float32",
    warmup: int = 3,
    repeats: int = 11,
    min_sample_s: float = MIN_SAMPLE_S,
    clock: Clock = time.perf_counter,
) -> list[Timing]:
    """Time several calls in interleaved rounds, so that drift of the machine hits all alike.

    Every round takes one sample of every call, and every other round goes through them
    backwards, so that a machine that slows down steadily favours nobody. A sample repeats a
    short call until it fills `min_sample_s`, and divides. A call comes untimed before each of its
    samples, so that it does not matter what was called before: of two calls in 2 ms the first
    would find its weights gone from the cache wherever many others take turns. All runs in
    inference mode, with the garbage collector at rest and the heap held (`steady_heap`).

    Args:
        calls: what to time; modules in them must be in eval mode.
        device: ``cpu``, ``cuda`` or ``cuda:N``; a CUDA device is synchronised around samples.
        dtype: ``bfloat16`` runs the calls under autocast.
        warmup: untimed calls of each, before anything is timed.
        repeats: rounds, at least 1.
        min_sample_s: shortest sample in seconds; 0 for one call per sample, and none before it.
        clock: seconds that only grow.

    Returns:
        One timing per call, in the order of `calls`.

    Raises:
        UsageError: for a number out of range.
    """
    if warmup < 0 or repeats < 1 or not 0 <= min_sample_s < math.inf:
        raise UsageError(
            "timing needs warmup >= 0, repeats >= 1 and min_sample_s >= 0; "
            f"given {warmup}, {repeats} and {min_sample_s}"
        )
    samples: list[list[float]] = [[] for _ in calls]
    with _quiet(device, dtype):
        warm = [[_block(call, 1, device, clock) for _ in range(warmup)] for call in calls]
        long = [is_long(min(seconds, default=0.0), min_sample_s) for seconds in warm]
        loops = [
            1 if is_long else _loops(call, device, min_sample_s, clock)
            for call, is_long in zip(calls, long, strict=True)
        ]
        for round_number in range(repeats):
            order = range(len(calls))
            for index in order if round_number % 2 == 0 else reversed(order):
                if min_sample_s > 0 and not long[index]:
                    calls[index]()
                seconds = _block(calls[index], loops[index], device, clock)
                samples[index].append(1000 * seconds / loops[index])
    return [Timing(tuple(times)) for times in samples]


def is_long(seconds: float, min_sample_s: float = MIN_SAMPLE_S) -> bool:
    """Whether a call is far longer than a sample.

    Such a call need not be made once more to know how long it is, and hardly minds what was in the
    cache, so that none comes before its samples.
    """
    return 0 < LONG * min_sample_s <= seconds


def time_beside(
    reference: Sequence[Call], calls: Sequence[Call], device: str, **options: Any
) -> tuple[list[Timing], list[Timing]]:
    """Time calls in the same rounds as copies of a reference that are spread among them.

    One copy may sit badly in memory for as long as it lives; the median of several does not. They
    stand before, between and after the calls, so that they also tell of a drift.

    Args:
        reference: copies of one call, at least one.
        calls: what to time.
        device: as in `time_calls`.
        **options: of `time_calls`.

    Returns:
        The copies of the reference, in the order of the first round, and the calls.
    """
    step = -(-len(calls) // max(1, len(reference) - 1))
    order: list[Call] = []
    places: list[int] = []
    for number, copy in enumerate(reference):
        places.append(len(order))
        order += [copy, *calls[number * step : (number + 1) * step]]
    timings = time_calls(order, device, **options)
    copies = [timings[place] for place in places]
    return copies, [timing for place, timing in enumerate(timings) if place not in places]


def host_share(
    call: Call,
    device: str,
    *,
    dtype: Dtype = "float32",
    repeats: int = 11,
    clock: Clock = time.perf_counter,
) -> HostShare:
    """Time a call on a CUDA device until it returns and until it is done, medians.

    Args:
        call: see `time_calls`.
        device: ``cuda`` or ``cuda:N``.
        dtype: see `time_calls`.
        repeats: calls that are timed, at least 1; one that is not comes before them.
        clock: seconds that only grow.
    """
    times: list[tuple[float, float]] = []
    with _quiet(device, dtype):
        call()
        for _ in range(repeats):
            _synchronise(device)
            start = clock()
            call()
            returned = clock()
            _synchronise(device)
            times.append((1000 * (returned - start), 1000 * (clock() - start)))
    host_ms, total_ms = (statistics.median(column) for column in zip(*times, strict=True))
    return HostShare(host_ms, total_ms)


@contextmanager
def inference(device: str, dtype: Dtype) -> Iterator[None]:
    """What calls run in while they are timed: no gradients, and autocast for ``bfloat16``."""
    with torch.inference_mode(), in_precision(device, dtype):
        yield


def in_precision(device: str, dtype: Dtype) -> AbstractContextManager[object]:
    """Autocast for ``bfloat16``, on the device."""
    if dtype == "float32":
        return nullcontext()
    return torch.autocast(torch.device(device).type, torch.bfloat16)


@contextmanager
def _quiet(device: str, dtype: Dtype) -> Iterator[None]:
    collecting = gc.isenabled()
    with ExitStack() as stack:
        stack.enter_context(inference(device, dtype))
        stack.enter_context(steady_heap())
        gc.collect()
        gc.disable()
        if collecting:
            stack.callback(gc.enable)
        yield


def _loops(call: Call, device: str, min_sample_s: float, clock: Clock) -> int:
    """Calls per sample; doubled until a block is long enough to be judged by the clock."""
    loops = 1
    while min_sample_s > 0 and loops < 2**20:
        seconds = _block(call, loops, device, clock)
        if seconds >= min_sample_s:
            break
        if seconds >= min_sample_s / 8:
            return math.ceil(loops * min_sample_s / seconds)
        loops *= 2
    return loops


def _block(call: Call, loops: int, device: str, clock: Clock) -> float:
    _synchronise(device)
    start = clock()
    for _ in range(loops):
        call()
    _synchronise(device)
    return clock() - start


def _synchronise(device: str) -> None:
    if device != "cpu":
        torch.cuda.synchronize(device)
