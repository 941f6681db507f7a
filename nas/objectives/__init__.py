"""What a search minimises, and the limits it keeps to; one module an objective.

A new objective is listed in `OBJECTIVES`. One that is timed or measured also is a stage of a search,
see `nas.run.stages`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from nas.objectives import latency, peak_memory, quality, size
from nas.objectives.base import Floats, Objective
from nas.objectives.quality import BEST_BLEU, QualityMetric
from search_spaces.space import Genotypes, SearchSpace

__all__ = [
    "BEST_BLEU",
    "COSTS",
    "LATENCY",
    "MEMORY",
    "OBJECTIVES",
    "QUALITY",
    "Objective",
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


def objective(name: str, metric: QualityMetric) -> Objective:
    """An objective of a search whose quality is measured so."""
    return quality.LACKING_BLEU if name == QUALITY and metric == "bleu" else OBJECTIVES[name]


def counted(space: SearchSpace, genotypes: Genotypes, names: Iterable[str]) -> dict[str, Floats]:
    """Those of the named objectives that are counted: name → ``(N,)`` of genotypes ``(N, S)``."""
    counts = {name: OBJECTIVES[name].count for name in names}
    return {name: count(space, genotypes) for name, count in counts.items() if count is not None}
