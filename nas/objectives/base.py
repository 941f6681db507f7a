"""What an objective is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from latency.workload import Mode, Workload
from search_spaces.space import Genotypes, SearchSpace
from search_spaces.tasks import TASKS

Floats = NDArray[np.float64]
# Milliseconds in a second: a rate a second is this over the milliseconds of one.
RATE = 1000.0
Count = Callable[[SearchSpace, Genotypes], Floats]
# Builds the work of a network, ready to be called, and says on which device that is.
Measure = Callable[[Callable[[], Callable[[], object]], str], float]
Number = TypeVar("Number", float, Floats)


@dataclass(frozen=True, slots=True)
class Objective:
    """One number per network, to be minimised, or maximised where more is better.

    It is observed on the validation split (quality), counted from the network alone (`count`),
    timed on the device (`timed`), measured there once (`measure`), or a rate that follows from
    what is timed (`rate_of`). A sample of networks is timed or measured, and a predictor fitted to
    it stands in for the rest.

    Everything that compares networks minimises; `minimised` turns a value of which more is better
    into one of which less is. Files, limits and tables hold values as people read them.

    Attributes:
        name: as given on the command line and used as key in results.
        metric: what is measured.
        unit: of the metric.
        label: what people call it.
        head: the title of its column in narrow tables.
        symbol: the unit that is written behind a value; empty for counts.
        count: values ``(N,)`` of genotypes ``(N, S)``.
        ends: networks ``(N, S)`` of a space, among which and those of
            `nas.search.uniform_networks.cheapest_rows` is that with the smallest count; None of
            what is not counted.
        whole: whether values are whole numbers.
        always: whether it is counted for every network, asked for or not.
        of_workload: whether it depends on what networks do.
        timed: whether it is milliseconds, so that measuring twice gives different values.
        mode: of the workload that it is timed on; None for the workload's own.
        rate_of: the timed objective that it is a rate of; empty for none.
        maximise: whether more is better.
        measure: the value of one network on a device.
        stage: that measures a sample and fits the predictor, and the folder of its files.
        std_name: where a predicted value's standard deviation stands.
        upper_name: where the upper bound of a value timed in sessions stands, see
            `nas.objectives.latency_limits`; the lower bound of one to be maximised.
        problem: why networks of a space have no such value, as a sentence; None where they have.
    """

    name: str
    metric: str
    unit: str
    label: str
    head: str
    symbol: str = ""
    count: Count | None = None
    ends: Callable[[SearchSpace], Genotypes] | None = None
    whole: bool = False
    always: bool = False
    of_workload: bool = True
    timed: bool = False
    mode: Mode | None = None
    rate_of: str = ""
    maximise: bool = False
    measure: Measure | None = None
    stage: str = ""
    std_name: str = ""
    upper_name: str = ""
    problem: Callable[[SearchSpace], str | None] = lambda space: None

    @property
    def predicted(self) -> bool:
        """Whether a predictor stands in for what is not timed or measured."""
        return bool(self.stage or self.rate_of)

    @property
    def few(self) -> bool:
        """Whether values are whole numbers so small that many networks share them, and may be 0."""
        return self.whole and not self.always

    @property
    def margin(self) -> float:
        """What has to be added to the largest network's value for one that nobody has."""
        return float(self.few)

    @property
    def sign(self) -> str:
        """How a value that keeps a limit compares to it."""
        return "≥" if self.maximise else "≤"

    def minimised(self, value: Number) -> Number:
        """A value as one of which less is better, and such a one as a value.

        Of a rate a second that is milliseconds for one; other values are as they are.
        """
        return RATE / value if self.maximise else value

    def largest(self, value: Number, std: Number | float, stds: float) -> Number:
        """What has to be expected at most of a value as one of which less is better.

        Args:
            value: as people read it.
            std: its standard deviation.
            stds: so many of them are added.
        """
        middle = self.minimised(value)
        # To first order a reciprocal deviates by the same share as the value itself.
        return middle + stds * (middle * std / value if self.maximise else std)

    def to_json(self) -> dict[str, Any]:
        """The form used in ``pareto.json``."""
        goal = "maximise" if self.maximise else "minimise"
        return {"name": self.name, "metric": self.metric, "unit": self.unit, "goal": goal}


def base_workload(space: SearchSpace, given: Workload | None = None) -> Workload:
    """What networks of a space do while they are timed, or have done when their state is counted.

    A source as long as the networks' longest text leaves no place for a token behind it; where no
    context is given, or its mode writes that token, it is the longest that does.

    Args:
        space: of the networks.
        given: the workload; None for the space's own.

    Raises:
        UsageError: for a ``[workload]`` that is none.
    """
    workload = Workload.from_mapping(space.workload) if given is None else given
    longest = space.model.max_length - 1
    if not TASKS[space.task].continues or longest < 1:
        return workload
    full = workload.context is None and workload.source_length > longest
    writes = workload.mode == "decode" and workload.context == longest + 1
    return replace(workload, context=longest) if full or writes else workload


def timed_workload(
    space: SearchSpace, mode: Mode | None, given: Workload | None = None
) -> Workload:
    """What networks of a space do while they are timed for an objective.

    A context as long as the networks' longest text leaves no place for the token that is written
    behind it, which is then the last one of that text.

    Args:
        space: of the networks.
        mode: of the objective; None for the workload's own.
        given: the workload; None for the space's own.

    Raises:
        UsageError: as `base_workload`.
    """
    workload = base_workload(space, given).timed_as(mode)
    longest = space.model.max_length
    full = workload.mode == "decode" and workload.source_length == longest > 1
    return replace(workload, source_length=longest - 1) if full else workload
