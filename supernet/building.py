"""Models of any task, from a space or from one architecture."""

from __future__ import annotations

from search_spaces.architecture import Architecture
from search_spaces.settings import ModelSettings, Task
from search_spaces.space import SearchSpace
from supernet.extraction import StandAlone, Supernet
from supernet.models import FixedNetwork, build_classifier_supernet
from supernet.sequence_models import (
    FixedLanguageModel,
    FixedTranslation,
    build_language_supernet,
    build_translation_supernet,
)


def build_supernet(space: SearchSpace, dropout: float = 0.0) -> Supernet:
    """A model with the largest size of every gene, in which every network of the space lies."""
    match space.task:
        case "classification":
            return build_classifier_supernet(space, dropout)
        case "translation":
            return build_translation_supernet(space, dropout)
        case "language_modelling":
            return build_language_supernet(space, dropout)


def build_network(
    settings: ModelSettings, task: Task, architecture: Architecture, dropout: float = 0.0
) -> StandAlone:
    """One network on its own, with exactly its parameters."""
    match task:
        case "classification":
            return FixedNetwork(settings, architecture, dropout)
        case "translation":
            return FixedTranslation(settings, architecture, dropout)
        case "language_modelling":
            return FixedLanguageModel(settings, architecture, dropout)
