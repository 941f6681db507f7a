"""What an objective is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from search_spaces.space import Genotypes, SearchSpace

Floats = NDArray[np.float64]
Count = Callable[[SearchSpace, Genotypes], Floats]
# Builds the work of a network, ready to be called, and says on which device that is.
Measure = Callable[[Callable[[], Callable[[], object]], str], float]


@dataclass(frozen=True, slots=True)
class Objective:
    """One number per network, to be minimised.

    It is observed on the validation split (quality), counted from the network alone (`count`),
    timed on the device (`timed`), or measured there once (`measure`). A sample of networks is timed
    or measured, and a predictor fitted to it stands in for the rest.

    Attributes:
        name: as given on the command line and used as key in results.
        metric: what is measured.
        unit: of the metric.
        label: what people call it.
        head: the title of its column in narrow tables.
        symbol: the unit that is written behind a value; empty for counts.
        count: values ``(N,)`` of genotypes ``(N, S)``.
        whole: whether values are whole numbers, which are counted for every network, asked for or
            not.
        timed: whether measuring twice gives different values.
        measure: the value of one network on a device.
        stage: that measures a sample and fits the predictor, and the folder of its files.
        std_name: where a predicted value's standard deviation stands.
        upper_name: where the upper bound of a value timed in sessions stands, see
            `nas.objectives.latency_limits`.
    """

    name: str
    metric: str
    unit: str
    label: str
    head: str
    symbol: str = ""
    count: Count | None = None
    whole: bool = False
    timed: bool = False
    measure: Measure | None = None
    stage: str = ""
    std_name: str = ""
    upper_name: str = ""

    @property
    def predicted(self) -> bool:
        """Whether a predictor stands in for what is not timed or measured."""
        return bool(self.stage)

    def to_json(self) -> dict[str, Any]:
        """The form used in ``pareto.json``."""
        return {"name": self.name, "metric": self.metric, "unit": self.unit, "goal": "minimise"}
