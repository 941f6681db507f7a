"""Cache: megabytes of state that a network keeps of what it has read, while it writes."""

from __future__ import annotations

import numpy as np

from nas.objectives.base import Floats, Objective, base_workload
from nas.objectives.cheapest import cheapest_by_layer
from search_spaces.costs.genotypes import genotype_state_bytes
from search_spaces.space import Genotypes, SearchSpace
from search_spaces.tasks import TASKS

DTYPE_BYTES = {"float32": 4, "bfloat16": 2}
MEGABYTE = 1e6
MOST_CONTEXTS = 4


def contexts_of(space: SearchSpace) -> list[int]:
    """Numbers of positions behind which a network is told of: the workload's, and powers of 4.

    Four at most beside the workload's, up to the longest that leaves a place behind it, unless
    the workload's is longer.
    """
    longest = space.model.max_length - 1
    powers = [1 << n for n in range(30) if longest >> n > 1][::-2][:MOST_CONTEXTS]
    usual = base_workload(space).positions_read
    return sorted({*powers, max(longest, usual), usual})


def cache_mb(space: SearchSpace, genotypes: Genotypes) -> Floats:
    """Megabytes (10^6 bytes) of state of genotypes ``(N, S)`` at the space's workload: ``(N,)``.

    Of every sequence of the batch, after the workload's context, as its allocator keeps them.
    """
    workload = base_workload(space)
    bytes_N = genotype_state_bytes(
        space,
        genotypes,
        workload.positions_read,
        DTYPE_BYTES[workload.dtype],
        workload.allocator or "live",
        workload.source_length,
    )
    return np.asarray(workload.batch * bytes_N / MEGABYTE, dtype=np.float64)


def _problem(space: SearchSpace) -> str | None:
    task = TASKS[space.task]
    if not task.classifies:
        return None
    return (
        f"kv_cache_mb is of networks that write, but those of the space {space.name} {task.does} "
        "and keep nothing: limit peak_memory_mb instead"
    )


OBJECTIVE = Objective(
    "kv_cache_mb",
    "kv_cache_mb",
    unit="MB of state behind the workload's context, all sequences of the batch",
    label="cache",
    head="cache MB",
    symbol="MB",
    count=cache_mb,
    ends=lambda space: cheapest_by_layer(space, cache_mb, ("decoder",)),
    problem=_problem,
)
