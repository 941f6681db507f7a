"""Hypothesis strategies: small random spaces of every task."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import strategies as st

from search_spaces.settings import ModelSettings, TokenInput
from search_spaces.space import (
    CROSS_GENES,
    KV_GENES,
    LAYER_GENES,
    MEMORY_GENE,
    Choice,
    SearchSpace,
    Slot,
)
from search_spaces.tasks import TASK_NAMES, TASKS, TaskName


def _subset(values: tuple[Choice, ...], most: int) -> st.SearchStrategy[tuple[Choice, ...]]:
    chosen = st.sets(st.sampled_from(values), min_size=1, max_size=most)
    return chosen.map(lambda kept: tuple(value for value in values if value in kept))


KINDS = ("softmax", "linear", "linear:elu", "omni", "window", "window:2", "window:16", "skip")


def _choices(gene: str, most: int) -> st.SearchStrategy[tuple[Choice, ...]]:
    if gene.endswith("attention"):
        crosses = gene.startswith("cross")
        return _subset(KINDS[:4] if crosses else KINDS, most)
    return st.just((1,)) if gene == "ende_connect" else _subset((1, 2, 4, 8, 64), most)


@st.composite
def spaces(draw: st.DrawFn, max_layers: int = 2, most: int = 2) -> SearchSpace:
    """A valid space with at most `max_layers` layers and `most` choices per gene."""
    task = draw(st.sampled_from(TASK_NAMES))
    memory = task == "language_modelling" and draw(st.booleans())
    grouped = draw(st.booleans())
    slots: list[Slot] = []
    for stack in TASKS[task].stacks:
        depths = draw(_subset(tuple(range(1, max_layers + 1)), most))
        slots += [Slot(stack, "embed_dim", None, draw(_choices("embed_dim", most)))]
        slots += [Slot(stack, "num_layers", None, depths)]
        if memory:
            slots += [Slot(stack, MEMORY_GENE, None, draw(_subset((0, 2, 5, 64), most)))]
        for layer in range(int(max(depths))):
            for gene in LAYER_GENES[stack]:
                if memory and gene == "self_attention":
                    slots.append(Slot(stack, gene, layer, ("softmax",)))
                elif gene in KV_GENES:
                    heads = next(s for s in reversed(slots) if s.gene == KV_GENES[gene])
                    even = all(int(number) % 2 == 0 for number in heads.choices)
                    groups = (1, 2) if even and most > 1 else (1,)
                    slots += [Slot(stack, gene, layer, groups)] if grouped else []
                elif task == "translation" or gene not in CROSS_GENES:
                    slots.append(Slot(stack, gene, layer, draw(_choices(gene, most))))
    settings = settings_for(task)
    if memory:
        settings = replace(settings, positions="none", relative_positions=2)
    return SearchSpace("random", task, settings, tuple(slots))


def settings_for(task: TaskName) -> ModelSettings:
    """Small settings that fit the task."""
    classes = 3 if task == "classification" else None
    tokens = TokenInput(50, share_embeddings=task == "translation")
    return ModelSettings(tokens, max_length=16, num_classes=classes, head_dim=4, window=4)


def generator(seed: int = 0) -> np.random.Generator:
    """A seeded source of randomness."""
    return np.random.default_rng(seed)
