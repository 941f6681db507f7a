"""What a search minimises, and the limits it keeps to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

QUALITY = "quality"
LATENCY = "latency_ms"
MEMORY = "peak_memory_mb"
BEST_BLEU = 100.0

QualityMetric = Literal["loss", "bleu"]


@dataclass(frozen=True, slots=True)
class Objective:
    """One number per network, to be minimised.

    Attributes:
        name: as given on the command line and used as key in results.
        metric: what is measured.
        unit: of the metric.
        timed: whether measuring twice gives different values.
    """

    name: str
    metric: str
    unit: str
    timed: bool = False

    def to_json(self) -> dict[str, Any]:
        """The form used in ``pareto.json``."""
        return {"name": self.name, "metric": self.metric, "unit": self.unit, "goal": "minimise"}


OBJECTIVES: Mapping[str, Objective] = {
    objective.name: objective
    for objective in (
        Objective(QUALITY, "valid_loss", "nats"),
        Objective(LATENCY, "latency_ms", "ms", timed=True),
        Objective("flops", "flops", "FLOPs per forward pass, batch 1, convention true"),
        Objective("params", "params", "parameters"),
        Objective(MEMORY, MEMORY, "MB"),
    )
}
COSTS = ("flops", "params")
# Where a value's standard deviation stands, and the bound that a limit is held against.
STD_NAMES: Mapping[str, str] = {LATENCY: "latency_std_ms", MEMORY: "peak_memory_std_mb"}
UPPER_NAMES: Mapping[str, str] = {LATENCY: "latency_upper_ms"}


def objective(name: str, quality: QualityMetric) -> Objective:
    """An objective of a search whose quality is measured so.

    BLEU, of which more is better, is counted by what it lacks to 100.
    """
    chosen = OBJECTIVES[name]
    if name != QUALITY or quality == "loss":
        return chosen
    return replace(chosen, metric="100 - valid_bleu", unit="BLEU")
