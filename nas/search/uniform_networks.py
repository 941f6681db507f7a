"""Networks that are of one attention kind throughout: the ends of a space, and comparisons."""

from __future__ import annotations

import numpy as np

from search_spaces.architecture import Architecture
from search_spaces.space import Genotypes, SearchSpace
from search_spaces.variation import largest, smallest


def kinds(space: SearchSpace) -> tuple[str, ...]:
    """The attention kinds that a space offers anywhere, sorted."""
    return tuple(
        sorted({str(c) for s in space.slots if s.gene.endswith("attention") for c in s.choices})
    )


def of_kind(space: SearchSpace, row: Genotypes, kind: str) -> Genotypes:
    """A row with that attention kind in every layer that offers it.

    Args:
        space: of the row.
        row: ``(1, S)``, canonical.
        kind: one of `kinds`.
    """
    changed = row.copy()
    for column, slot in enumerate(space.slots):
        if slot.gene.endswith("attention") and kind in slot.choices:
            changed[0, column] = slot.choices.index(kind)
    return space.canonical(changed)


def cheapest_rows(space: SearchSpace) -> Genotypes:
    """The smallest sizes with every attention kind in turn, distinct rows.

    An omni layer among omni layers looks at one output only. Of what is counted a mixture of kinds
    may be cheaper still, see `nas.objectives.cheapest`.
    """
    return _each_kind(space, smallest(space))


def largest_rows(space: SearchSpace) -> Genotypes:
    """The largest sizes with every attention kind in turn, distinct rows."""
    return _each_kind(space, largest(space))


def middle(space: SearchSpace) -> Genotypes:
    """The network with the middle choice of every gene, ``(1, S)``: a reference for timings."""
    row = ((space.num_choices - 1) // 2).astype(np.int16)
    return space.canonical(row[None])


def kind_of(architecture: Architecture) -> str | None:
    """The attention kind of all its layers, or None where they differ."""
    found = set()
    if architecture.encoder is not None:
        found |= {layer.attention for layer in architecture.encoder.layers}
    if architecture.decoder is not None:
        found |= {layer.self_attention for layer in architecture.decoder.layers}
        found |= {
            layer.cross_attention
            for layer in architecture.decoder.layers
            if layer.cross_attention is not None
        }
    return found.pop() if len(found) == 1 else None


def _each_kind(space: SearchSpace, row: Genotypes) -> Genotypes:
    rows = [of_kind(space, row, kind) for kind in kinds(space)]
    return np.unique(np.concatenate(rows), axis=0)
