"""Models of any task, from a space or from one architecture."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch

from search_spaces.architecture import Architecture
from search_spaces.settings import ModelSettings
from search_spaces.space import SearchSpace
from search_spaces.tasks import TaskName
from supernet.extraction import StandAlone, Supernet
from supernet.models import (
    FixedEmbedder,
    FixedNetwork,
    build_classifier_supernet,
    build_embedder_supernet,
)
from supernet.sequence_models import (
    FixedLanguageModel,
    FixedTranslation,
    build_language_supernet,
    build_translation_supernet,
)


class Builders(NamedTuple):
    """What makes the two forms of a task's model."""

    supernet: Callable[[SearchSpace, float], Supernet]
    network: Callable[[ModelSettings, Architecture, float], StandAlone]


BUILDERS: dict[TaskName, Builders] = {
    "classification": Builders(build_classifier_supernet, FixedNetwork),
    "translation": Builders(build_translation_supernet, FixedTranslation),
    "language_modelling": Builders(build_language_supernet, FixedLanguageModel),
    "embedding": Builders(build_embedder_supernet, FixedEmbedder),
}


def build_supernet(space: SearchSpace, dropout: float = 0.0) -> Supernet:
    """A model with the largest size of every gene, in which every network of the space lies."""
    return BUILDERS[space.task].supernet(space, dropout)


def supernet_params(space: SearchSpace) -> int:
    """Parameters of the supernet of a space, which is not really built."""
    with torch.device("meta"):
        model = build_supernet(space)
    return sum(parameter.numel() for parameter in model.parameters())


def build_network(
    settings: ModelSettings, task: TaskName, architecture: Architecture, dropout: float = 0.0
) -> StandAlone:
    """One network on its own, with exactly its parameters."""
    return BUILDERS[task].network(settings, architecture, dropout)
