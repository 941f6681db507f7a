"""The stage that times sampled networks at their work."""

from __future__ import annotations

from collections.abc import Iterator

from nas.objectives import LATENCY, OBJECTIVES
from nas.run.duration import Asked, Plan
from nas.run.events import Event
from nas.stages.base import Run
from nas.stages.timing import sample_plan, time_sample


def work(run: Run) -> Iterator[Event]:
    """Time a sample of networks and fit the predictor, or take both from a profile."""
    return time_sample(run, OBJECTIVES[LATENCY])


def plan(asked: Asked) -> Plan:
    """How much there is to do."""
    return sample_plan(asked, OBJECTIVES[LATENCY])
