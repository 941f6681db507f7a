"""Parameters and FLOPs, which one formula counts."""

from __future__ import annotations

import numpy as np

from nas.objectives.base import Floats, Objective
from nas.objectives.cheapest import cheapest_by_layer
from search_spaces.costs.genotypes import genotype_totals
from search_spaces.settings import ImageInput
from search_spaces.space import Genotypes, SearchSpace
from search_spaces.tasks import TASKS


def counted_lengths(space: SearchSpace) -> tuple[int | None, int | None]:
    """The lengths of source and target at which networks of a space are counted, see `cost`.

    They are those of the workload. None leaves a length to the convention: that of images, that of
    a target where nothing is translated, and either one of which the workload says nothing.
    """
    image = isinstance(space.model.input, ImageInput)
    source = None if image else space.workload.get("source")
    return source, space.workload.get("target") if TASKS[space.task].crosses else None


def network_costs(space: SearchSpace, genotypes: Genotypes) -> Floats:
    """Parameters and FLOPs (convention ``true``) of genotypes ``(N, S)``: ``(N, 2)``."""
    source, target = counted_lengths(space)
    totals = genotype_totals(space, genotypes, source_length=source, target_length=target)
    return np.stack(totals, axis=1).astype(np.float64)


def _params(space: SearchSpace, genotypes: Genotypes) -> Floats:
    return network_costs(space, genotypes)[:, 0]


def _flops(space: SearchSpace, genotypes: Genotypes) -> Floats:
    return network_costs(space, genotypes)[:, 1]


FLOPS = Objective(
    "flops",
    "flops",
    unit="FLOPs per forward pass, batch 1, convention true",
    label="FLOPs",
    head="FLOPs",
    count=_flops,
    ends=lambda space: cheapest_by_layer(space, _flops, space.stacks),
    whole=True,
    always=True,
)
PARAMS = Objective(
    "params",
    "params",
    unit="parameters",
    label="parameters",
    head="params",
    count=_params,
    ends=lambda space: cheapest_by_layer(space, _params, space.stacks),
    whole=True,
    always=True,
    of_workload=False,
)
