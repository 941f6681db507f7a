"""Models of any task, from a space or from one architecture."""

from __future__ import annotations

from collections.abc import Callable

import torch

from search_spaces.architecture import Architecture
from search_spaces.settings import ModelSettings
from search_spaces.space import SearchSpace
from search_spaces.tasks import TaskName
from supernet.encoder_models import EncoderClassifier, EncoderEmbedder
from supernet.extraction import StandAlone, Supernet
from supernet.plan import plans_of_space
from supernet.sequence_models import LanguageModel, TranslationModel

# What makes a task's model of settings, the plans of its stacks, and dropout.
MODELS: dict[TaskName, Callable[..., Supernet]] = {
    "classification": EncoderClassifier,
    "translation": TranslationModel,
    "language_modelling": LanguageModel,
    "embedding": EncoderEmbedder,
}


def build_supernet(space: SearchSpace, dropout: float = 0.0) -> Supernet:
    """A model with the largest size of every gene, in which every network of the space lies."""
    return MODELS[space.task](space.model, *plans_of_space(space), dropout)


def supernet_params(space: SearchSpace) -> int:
    """Parameters of the supernet of a space, which is not really built."""
    with torch.device("meta"):
        model = build_supernet(space)
    return sum(parameter.numel() for parameter in model.parameters())


def build_network(
    settings: ModelSettings, task: TaskName, architecture: Architecture, dropout: float = 0.0
) -> StandAlone:
    """One network on its own, with exactly its parameters."""
    return StandAlone(MODELS[task], settings, architecture, dropout)
