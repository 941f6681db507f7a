"""What a search optimises, and the limits it keeps to; one module an objective.

A new objective is listed in `OBJECTIVES`. One that is timed or measured also gets a stage, see
`nas.run.stages`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from nas.objectives import (
    cache,
    decoding,
    full_attention,
    latency,
    peak_memory,
    quality,
    size,
)
from nas.objectives.base import (
    RATE,
    Floats,
    Number,
    Objective,
    base_workload,
    timed_workload,
)
from nas.objectives.quality import EXTERNAL_QUALITY, QUALITIES, SCORES, Quality, QualityMetric
from search_spaces.errors import UsageError
from search_spaces.genotypes import GenotypeSpace
from search_spaces.space import Genotypes, SearchSpace
from search_spaces.tasks import TASK_NAMES, TASKS, TaskName

__all__ = [
    "CACHE",
    "COSTS",
    "COUNTED",
    "EXTERNAL_QUALITY",
    "LATENCY",
    "LISTED_COSTS",
    "MEMORY",
    "MORE_IS_BETTER",
    "OBJECTIVES",
    "QUALITIES",
    "QUALITY",
    "SCORES",
    "TIMED",
    "Objective",
    "Quality",
    "QualityMetric",
    "base_workload",
    "check_bound_names",
    "check_cost_names",
    "counted",
    "exact",
    "objective",
    "rates",
    "timed_workload",
    "uncertainty_name",
]


class _Objectives(dict[str, Objective]):
    """Objectives by name; one that is not listed is a cost that an evaluator of others tells."""

    def __missing__(self, name: str) -> Objective:
        return Objective(name, name, unit="", label=name, head=name, std_name=f"{name}_std")


# In the order in which a front names them.
OBJECTIVES: Mapping[str, Objective] = _Objectives(
    (one.name, one)
    for one in (
        quality.LOSS,
        latency.OBJECTIVE,
        decoding.DECODE,
        decoding.PREFILL,
        decoding.THROUGHPUT,
        cache.OBJECTIVE,
        size.FLOPS,
        size.PARAMS,
        full_attention.OBJECTIVE,
        peak_memory.OBJECTIVE,
    )
)
QUALITY, LATENCY = quality.LOSS.name, latency.OBJECTIVE.name
CACHE, MEMORY = cache.OBJECTIVE.name, peak_memory.OBJECTIVE.name
COSTS = tuple(name for name in OBJECTIVES if name != QUALITY)
# Of these objectives and scores more is better.
MORE_IS_BETTER = (*quality.MORE_IS_BETTER, *(n for n, one in OBJECTIVES.items() if one.maximise))
TIMED = tuple(name for name in OBJECTIVES if OBJECTIVES[name].timed)
# Those that follow from a network alone, the plainest first.
COUNTED = tuple(name for name in reversed(list(OBJECTIVES)) if OBJECTIVES[name].count)
# What stands beside costs where they are kept, and the one known cost of which more is better.
RESERVED = (
    "id",
    "architecture",
    "failed",
    "measured",
    "predicted",
    "doubtful",
    "quality",
    "quality_std",
    decoding.THROUGHPUT.name,
)
# In the order in which tables list them.
LISTED_COSTS = (*(name for name in COSTS if name not in COUNTED), *COUNTED)


def check_cost_names(names: Collection[str]) -> None:
    """Refuse names that the costs of an evaluator cannot have.

    Raises:
        UsageError: for a name that means something else, also beside the others, or is none.
    """
    for name in names:
        if name in RESERVED or not name.isidentifier():
            raise UsageError(
                f"an evaluator's cost cannot be called {name!r}: give it a name of letters, digits "
                f"and _ that is none of {', '.join(RESERVED)}"
            )
        _refuse_beside(names, name, uncertainty_name(name), "uncertainty")


def check_bound_names(names: Collection[str]) -> None:
    """Refuse names of costs that mean the upper bound of another one; runs of 0.2 may have them.

    Raises:
        UsageError: for such a name.
    """
    for name in names:
        _refuse_beside(names, name, OBJECTIVES[name].upper_name, "upper bound")


def _refuse_beside(names: Collection[str], name: str, taken: str, what: str) -> None:
    if taken and taken in names:
        raise UsageError(
            f"an evaluator's cost cannot be called {taken!r} beside {name!r}, whose {what} is "
            "called that: give it another name"
        )


def uncertainty_name(name: str) -> str:
    """Where the uncertainty of what is predicted of a cost stands."""
    return OBJECTIVES[name].std_name or f"{name}_std"


def objective(name: str, metric: QualityMetric, task: TaskName = TASK_NAMES[0]) -> Objective:
    """An objective of a search for networks of a task whose quality is measured so."""
    if name != QUALITY:
        return OBJECTIVES[name]
    found = QUALITIES[metric].objective
    cosines = metric == "loss" and not TASKS[task].loss_unit
    return replace(found, unit="1 - cosine", symbol="") if cosines else found


def counted(
    space: GenotypeSpace, genotypes: Genotypes, names: Collection[str]
) -> dict[str, Floats]:
    """Those of the named objectives that are counted: name → ``(N,)`` of genotypes ``(N, S)``.

    Nothing is of networks that are not this project's.
    """
    if not isinstance(space, SearchSpace):
        return {}
    counts = {name: OBJECTIVES[name].count for name in COUNTED if name in names}
    return {name: count(space, genotypes) for name, count in counts.items() if count is not None}


def exact(space: GenotypeSpace, genotypes: Genotypes, asked: Collection[str]) -> dict[str, Floats]:
    """Those that are counted for every network, and what else is asked for: as `counted`."""
    return counted(space, genotypes, {n for n in COUNTED if OBJECTIVES[n].always or n in asked})


def rates(
    values: Mapping[str, Number], names: Collection[str], space: GenotypeSpace
) -> dict[str, Number]:
    """The named rates a second that follow from what is timed, with deviation and bound.

    Args:
        values: of timed objectives, with their deviations and upper bounds as far as there are any.
        names: of objectives; those that are no rates are passed over.
        space: whose workload says how many sequences are worked on at once.

    Returns:
        ``tokens_per_s``, ``tokens_per_s_std`` and ``tokens_per_s_lower``, as far as known.
    """
    found: dict[str, Number] = {}
    for one in [OBJECTIVES[name] for name in names if OBJECTIVES[name].rate_of in values]:
        assert isinstance(space, SearchSpace)  # no evaluator tells a cost that is a rate
        clock = OBJECTIVES[one.rate_of]
        ms, batch = values[clock.name], base_workload(space).batch
        found[one.name] = RATE * batch / ms
        if clock.std_name in values:
            found[one.std_name] = found[one.name] * values[clock.std_name] / ms
        if clock.upper_name in values:
            found[one.upper_name] = RATE * batch / values[clock.upper_name]
    return found
