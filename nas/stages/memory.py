"""The stage that measures the peak memory of sampled networks."""

from __future__ import annotations

from collections.abc import Iterator

from nas.objectives import MEMORY, OBJECTIVES
from nas.run.duration import Asked, Plan, counted
from nas.run.events import Event
from nas.stages.base import Run
from nas.stages.measured_cost import measure_sample, measuring


def work(run: Run) -> Iterator[Event]:
    """Measure a sample of networks and fit the predictor, or take both from a profile."""
    return measure_sample(run, OBJECTIVES[MEMORY])


def plan(asked: Asked) -> Plan:
    """How much there is to do."""
    if asked.spec.device_profile is not None:
        return Plan("takes measurements and predictor from the device profile")
    number = asked.spec.budget.latency_samples
    return Plan(f"{counted(number, 'network')} to measure", (measuring(MEMORY, number),))
