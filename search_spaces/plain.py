"""The plain networks of a space: those that somebody would write who had not searched.

They have softmax attention in every place, the same sizes in every layer, and a decoder that looks
at the encoder's last layer. They stand beside what a search has found.
"""

from __future__ import annotations

import math

import numpy as np

from search_spaces.architecture import Architecture
from search_spaces.genotypes import Genotypes
from search_spaces.space import (
    KV_GENES,
    LAYER_GENES,
    MEMORY_GENE,
    STACK_GENES,
    SearchSpace,
    Slot,
)
from search_spaces.variation import distinct

MOST_LISTED = 20_000
"""Of more plain networks than that every second choice of the longest genes is left out."""


def plain_rows(space: SearchSpace) -> Genotypes:
    """The plain networks of a space, ``(N, S)`` distinct canonical rows.

    There are none where a layer that is in every network offers no softmax attention, or where
    layers have no size in common.
    """
    choices = _plain_choices(space)
    while math.prod(map(len, choices.values())) > MOST_LISTED:
        longest = max(choices, key=lambda gene: len(choices[gene]))
        kept = choices[longest]
        choices[longest] = [*kept[:-1:2], kept[-1]] if len(kept) > 2 else kept[-1:]
    if not all(choices.values()):
        return np.zeros((0, len(space.slots)), dtype=np.int16)
    places = np.indices([len(values) for values in choices.values()]).reshape(len(choices), -1)
    rows = np.zeros((places.shape[1], len(space.slots)), dtype=np.int16)
    there = np.ones(len(rows), dtype=np.bool_)
    for column, slot in enumerate(space.slots):
        values = choices[slot.gene_name]
        offered = np.array([_index(slot, value) for value in values], dtype=np.int16)
        rows[:, column] = offered[places[list(choices).index(slot.gene_name)]]
    missing = rows < 0
    rows[missing] = 0
    there &= ~(missing & space.active(rows)).any(axis=1)
    return distinct(space.canonical(rows[there]))


def _plain_choices(space: SearchSpace) -> dict[str, list[object]]:
    """Gene → the choices that a plain network may have, in all layers alike."""
    choices: dict[str, list[object]] = {}
    for slot in space.slots:
        known = choices.setdefault(slot.gene_name, [])
        known += [choice for choice in slot.choices if choice not in known]
    for gene, values in choices.items():
        if gene.endswith("attention"):
            choices[gene] = [value for value in values if value == "softmax"]
        elif gene.endswith("ende_connect"):
            choices[gene] = [min(values)]  # type: ignore[type-var]
    return choices


def _index(slot: Slot, value: object) -> int:
    return slot.choices.index(value) if value in slot.choices else -1


def alone(space: SearchSpace, architecture: Architecture) -> SearchSpace:
    """The space of one network, with the settings and the workload of another one.

    By it a network is counted whose sizes the other space does not offer.

    Args:
        space: whose settings it has.
        architecture: with the stacks of that space.
    """
    slots: list[Slot] = []
    for name in space.stacks:
        stack = getattr(architecture, name)
        sizes = {"num_layers": len(stack.layers), "embed_dim": stack.embed_dim}
        whole = [Slot(name, gene, None, (sizes[gene],)) for gene in STACK_GENES]
        if memory := getattr(stack, MEMORY_GENE, 0):
            whole.append(Slot(name, MEMORY_GENE, None, (memory,)))
        slots += whole
        grouped = any(getattr(layer, gene, None) for layer in stack.layers for gene in KV_GENES)
        for number, layer in enumerate(stack.layers):
            for gene in LAYER_GENES[name]:
                value = getattr(layer, gene)
                if value is None and gene in KV_GENES and grouped:
                    value = getattr(layer, KV_GENES[gene])
                slots += [] if value is None else [Slot(name, gene, number, (value,))]
    return SearchSpace(
        space.name, space.task, space.model, tuple(slots), data=space.data, workload=space.workload
    )
