"""Parameters and FLOPs, which one formula counts."""

from __future__ import annotations

import numpy as np

from nas.objectives.base import Floats, Objective
from search_spaces.costs.genotypes import genotype_totals
from search_spaces.settings import ImageInput
from search_spaces.space import Genotypes, SearchSpace


def network_costs(space: SearchSpace, genotypes: Genotypes) -> Floats:
    """Parameters and FLOPs (convention ``true``) of genotypes ``(N, S)``: ``(N, 2)``."""
    image = isinstance(space.model.input, ImageInput)
    source = None if image else space.workload.get("source")
    totals = genotype_totals(space, genotypes, source_length=source)
    return np.stack(totals, axis=1).astype(np.float64)


FLOPS = Objective(
    "flops",
    "flops",
    unit="FLOPs per forward pass, batch 1, convention true",
    label="FLOPs",
    head="FLOPs",
    count=lambda space, genotypes: network_costs(space, genotypes)[:, 1],
    whole=True,
)
PARAMS = Objective(
    "params",
    "params",
    unit="parameters",
    label="parameters",
    head="params",
    count=lambda space, genotypes: network_costs(space, genotypes)[:, 0],
    whole=True,
)
