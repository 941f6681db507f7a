"""The stage that times how sampled networks read a context."""

from __future__ import annotations

from collections.abc import Iterator

from nas.objectives.decoding import PREFILL
from nas.run.duration import Asked, Plan
from nas.run.events import Event
from nas.stages.base import Run
from nas.stages.timing import sample_plan, time_sample


def work(run: Run) -> Iterator[Event]:
    """Time a sample of networks and fit the predictor, or take both from a profile."""
    return time_sample(run, PREFILL)


def plan(asked: Asked) -> Plan:
    """How much there is to do."""
    return sample_plan(asked, PREFILL)
