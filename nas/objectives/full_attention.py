"""Layers of full attention, in which every position looks at all that there are.

Hybrids are told by how many of their layers are left with it: these take time that grows with the
square of a text's length, and keep state that grows with it.
"""

from __future__ import annotations

import numpy as np

from nas.objectives.base import Floats, Objective
from nas.objectives.cheapest import cheapest_by_layer
from search_spaces.attention import operator_of
from search_spaces.space import Genotypes, SearchSpace


def full_attention_layers(space: SearchSpace, genotypes: Genotypes) -> Floats:
    """Layers of genotypes ``(N, S)`` whose self-attention is full, over all stacks: ``(N,)``.

    Cross-attention, which no layer goes without, is not counted.
    """
    total = np.zeros(len(genotypes), dtype=np.float64)
    for stack in space.stacks:
        depths = space.depths(genotypes, stack)
        for number, column in enumerate(space.kind_columns[stack]):
            choices = space.slots[column].choices
            full = np.array([operator_of(space.model, str(kind)).full for kind in choices])
            total += (depths > number) & full[genotypes[:, column]]
    return total


OBJECTIVE = Objective(
    "full_attention_layers",
    "full_attention_layers",
    unit="layers whose self-attention looks at all positions",
    label="layers of full attention",
    head="full layers",
    count=full_attention_layers,
    ends=lambda space: cheapest_by_layer(space, full_attention_layers, space.stacks),
    whole=True,
    of_workload=False,
)
