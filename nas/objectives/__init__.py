"""What a search minimises, and the limits it keeps to; one module an objective.

A new objective is listed in `OBJECTIVES`. One that is timed or measured also gets a stage, see
`nas.run.stages`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from nas.objectives import latency, peak_memory, quality, size
from nas.objectives.base import Floats, Objective
from nas.objectives.quality import MORE_IS_BETTER, QUALITIES, SCORES, Quality, QualityMetric
from search_spaces.space import Genotypes, SearchSpace

__all__ = [
    "COSTS",
    "COUNTED",
    "LATENCY",
    "LISTED_COSTS",
    "MEMORY",
    "MORE_IS_BETTER",
    "OBJECTIVES",
    "QUALITIES",
    "QUALITY",
    "SCORES",
    "Objective",
    "Quality",
    "QualityMetric",
    "counted",
    "objective",
]

# In the order in which a front names them.
OBJECTIVES: Mapping[str, Objective] = {
    one.name: one
    for one in (quality.LOSS, latency.OBJECTIVE, size.FLOPS, size.PARAMS, peak_memory.OBJECTIVE)
}
QUALITY, LATENCY, MEMORY = quality.LOSS.name, latency.OBJECTIVE.name, peak_memory.OBJECTIVE.name
COSTS = tuple(name for name in OBJECTIVES if name != QUALITY)
# Those that follow from a network alone, parameters first.
COUNTED = tuple(name for name in reversed(list(OBJECTIVES)) if OBJECTIVES[name].count)
# In the order in which tables list them.
LISTED_COSTS = (*(name for name in COSTS if name not in COUNTED), *COUNTED)


def objective(name: str, metric: QualityMetric) -> Objective:
    """An objective of a search whose quality is measured so."""
    return QUALITIES[metric].objective if name == QUALITY else OBJECTIVES[name]


def counted(space: SearchSpace, genotypes: Genotypes, names: Collection[str]) -> dict[str, Floats]:
    """Those of the named objectives that are counted: name → ``(N,)`` of genotypes ``(N, S)``."""
    counts = {name: OBJECTIVES[name].count for name in COUNTED if name in names}
    return {name: count(space, genotypes) for name, count in counts.items() if count is not None}
