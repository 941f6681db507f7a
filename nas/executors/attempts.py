"""One try at evaluating a network, and what its failure is called."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import FrameType

from nas.executors.base import Failure, FailureKind, Outcome, check_finite
from search_spaces.architecture import Architecture
from search_spaces.errors import DivergedError, TooLargeError
from search_spaces.turns import TURNS

# How torch's allocator of the CPU, which has no error of its own, begins to complain.
_NO_MEMORY = ("DefaultCPUAllocator", "not enough memory")
# What every timer takes, in seconds: 31 years.
_LONGEST_S = 1e9


class EvaluationTimeoutError(TimeoutError):
    """An evaluation took longer than it may."""


def attempt(
    quality: Callable[[Architecture], dict[str, float]], network: Architecture, tries: int
) -> Outcome:
    """Evaluate a network in this process.

    Args:
        quality: evaluates it.
        network: what to evaluate.
        tries: how many this one makes.
    """
    try:
        return tried(check_finite(quality(network)), tries)
    except Exception as error:  # of whatever sort: it is the network's, and is told
        return Failure(_kind(error), sentence(error), tries)


def tried(outcome: Outcome, tries: int) -> Outcome:
    """An outcome that came with so many tries; a failure tells them."""
    return replace(outcome, tries=tries) if isinstance(outcome, Failure) else outcome


def is_final(outcome: Outcome) -> bool:
    """Whether trying again would be of no use: what is not finite stays so."""
    return not isinstance(outcome, Failure) or outcome.kind == "not finite"


def sentence(error: BaseException) -> str:
    """The first line of an error, with its type."""
    lines = str(error).strip().splitlines()
    name = type(error).__name__
    return f"{name}: {lines[0][:300]}" if lines else name


def _kind(error: Exception) -> FailureKind:
    if isinstance(error, EvaluationTimeoutError):
        return "timeout"
    if isinstance(error, DivergedError):
        return "not finite"
    return "memory" if out_of_memory(error) else "error"


def out_of_memory(error: Exception) -> bool:
    """Whether an error says that memory does not suffice, be it the machine's or a device's."""
    if isinstance(error, MemoryError | TooLargeError) or type(error).__name__ == "OutOfMemoryError":
        return True
    return any(words in str(error) for words in _NO_MEMORY)


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise `EvaluationTimeoutError` in what is inside once it takes longer.

    A library's call that never returns is not interrupted, and nothing is in another than the main
    thread, because Python delivers signals between two of the main thread's own steps. What passes
    while somebody else times on the device does not count.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    known_s = TURNS.waited_s

    def stop(_number: int, _frame: FrameType | None) -> None:
        nonlocal known_s
        more_s, known_s = TURNS.waited_s - known_s, TURNS.waited_s
        if more_s > 0:
            signal.setitimer(signal.ITIMER_REAL, more_s)
            return
        raise EvaluationTimeoutError(f"it took longer than {seconds:g} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, min(seconds, _LONGEST_S))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
