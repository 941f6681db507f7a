"""How clocks are read, and what is told of a process that was lost."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

pytestmark = pytest.mark.ray


def test_the_quickest_answer_tells_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host 100 s ahead, whose answers take seconds but for one, and only on the way back."""
    from nas.executors import ray_check

    ways_back_s = [4.0, 2.0, 0.5, 8.0, 3.0]
    now = [1000.0]

    def get(question: object, timeout: float) -> float:
        told = now[0] + 100.0
        now[0] += ways_back_s.pop(0)
        return told

    clock = SimpleNamespace(time=lambda: now[0], perf_counter=lambda: now[0])
    monkeypatch.setattr(ray_check, "time", clock)
    monkeypatch.setattr(ray_check.ray, "get", get)
    probe = SimpleNamespace(clock=SimpleNamespace(remote=lambda: None))
    ahead_s, error_s = ray_check._clock(probe)
    assert (ahead_s, error_s) == (99.75, 0.25) and not ways_back_s
    assert abs(ahead_s - 100.0) <= error_s


def test_what_ray_says_of_a_lost_process_is_its_reason() -> None:
    from ray.exceptions import RayError, WorkerCrashedError

    from nas.executors.ray_check import _why

    lost = RayError("The actor died.\n\tclass_name: A\n\n\tpid: 7\nIts node has died.\nMore.")
    assert _why(lost) == "Its node has died"
    assert _why(WorkerCrashedError()).startswith("WorkerCrashedError: The worker died")
