"""Parameters and FLOPs, which one formula counts."""

from __future__ import annotations

import numpy as np

from nas.objectives.base import Floats, Objective
from nas.objectives.cheapest import cheapest_by_layer
from search_spaces.costs.genotypes import genotype_totals
from search_spaces.settings import ImageInput
from search_spaces.space import Genotypes, SearchSpace


def counted_source(space: SearchSpace) -> int | None:
    """The length of the source at which networks of a space are counted, see `cost`.

    It is that of the workload. None, for images and without one, leaves it to the convention, and
    so does every search the length of what a translation writes.
    """
    image = isinstance(space.model.input, ImageInput)
    return None if image else space.workload.get("source")


def network_costs(space: SearchSpace, genotypes: Genotypes) -> Floats:
    """Parameters and FLOPs (convention ``true``) of genotypes ``(N, S)``: ``(N, 2)``."""
    totals = genotype_totals(space, genotypes, source_length=counted_source(space))
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
)
