"""The network of a space of which least is counted, where each layer may want another kind."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np

from nas.objectives.base import Count
from search_spaces.space import CROSS_GENES, Genotypes, SearchSpace
from search_spaces.variation import smallest

ALWAYS_LEAST = "ffn_dim"


def cheapest_by_layer(space: SearchSpace, count: Count, stacks: Sequence[str]) -> Genotypes:
    """The network with the smallest count, ``(1, S)``, as far as layers do not look at each other.

    A count is a sum over layers, and in a decoder's over self- and cross-attention, so each of
    these takes what is least for it: stacks read sequences of different lengths, layers may offer
    different kinds, and the fewest heads need not be the cheapest, for what linear attention does
    and keeps grows with the square of a head's width.

    Args:
        space: of the networks.
        count: see `Objective`; a sum of what nothing but a layer decides.
        stacks: those that it counts.
    """
    row = smallest(space)
    for stack in stacks:
        depth = int(space.depths(row, stack)[0])
        for columns in space.layer_columns[stack][:depth]:
            offered = [column for column in columns if space.slots[column].gene != ALWAYS_LEAST]
            crosses = [column for column in offered if space.slots[column].gene in CROSS_GENES]
            for part in ([column for column in offered if column not in crosses], crosses):
                row = _cheapest_part(space, count, row, part)
    return row


def _cheapest_part(
    space: SearchSpace, count: Count, row: Genotypes, columns: Sequence[int]
) -> Genotypes:
    """The row with the choices in these columns of which least is counted; its own among equals."""
    choices = list(product(*(range(len(space.slots[column].choices)) for column in columns)))
    rows = np.repeat(row, len(choices), axis=0)
    rows[:, columns] = choices
    rows = np.concatenate([row, space.canonical(rows)])
    return rows[[int(np.argmin(count(space, rows)))]]
