"""The stage that measures the peak memory of sampled networks."""

from __future__ import annotations

from collections.abc import Iterator

from nas.objectives import MEMORY, OBJECTIVES
from nas.run.events import Event
from nas.stages.base import Run
from nas.stages.measured_cost import measure_sample


def work(run: Run) -> Iterator[Event]:
    """Measure a sample of networks and fit the predictor, or take both from a profile."""
    return measure_sample(run, OBJECTIVES[MEMORY])
