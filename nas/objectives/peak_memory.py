"""Peak memory: megabytes that a network needs at most at its work, its weights included."""

from __future__ import annotations

from collections.abc import Callable

from nas.objectives.base import Objective


def _measure(make: Callable[[], Callable[[], object]], device: str) -> float:
    from latency.memory import peak_memory_mb  # imports torch

    return peak_memory_mb(make, device)


OBJECTIVE = Objective(
    "peak_memory_mb",
    "peak_memory_mb",
    unit="MB",
    label="peak memory",
    head="MB",
    symbol="MB",
    measure=_measure,
    stage="memory",
    std_name="peak_memory_std_mb",
)
