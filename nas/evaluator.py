"""Measures what networks are worth with inherited weights.

One of the few modules of `nas` that know torch. It joins the supernet with the search.
"""

from __future__ import annotations

from typing import Any

import torch

from nas.objectives import BEST_BLEU, QUALITY, QualityMetric
from nas.spec import SearchSpec
from search_spaces.architecture import Architecture
from supernet.beam_search import BeamSettings
from supernet.extraction import Supernet
from supernet.tasks.base import Task
from supernet.tasks.scores import split_bleu
from supernet.tasks.translation import TranslationTask
from supernet.training.evaluation import evaluate


def use_threads(spec: SearchSpec) -> None:
    """Let torch use as many CPU threads as the run is specified with."""
    if spec.budget.threads is not None:
        torch.set_num_threads(spec.budget.threads)


def inherited_quality(
    task: Task[Any, Any],
    supernet: Supernet,
    architecture: Architecture,
    metric: QualityMetric,
    device: str,
) -> dict[str, float]:
    """What a network is worth on the validation split with the supernet's weights.

    Args:
        task: with the validation examples to look at.
        supernet: the weights.
        architecture: the network.
        metric: ``bleu`` translates greedily, which is several times faster than with a beam and
            ranks networks alike.
        device: where to compute.

    Returns:
        ``quality``, of which less is better, and what it is made of.
    """
    result = evaluate(task, supernet, architecture, task.valid, device=device)
    values = {QUALITY: result.loss, "valid_accuracy": result.accuracy}
    if metric == "loss":
        return values
    assert isinstance(task, TranslationTask)
    bleu = split_bleu(task, supernet, architecture, task.valid, device, BeamSettings(beam_size=1))
    values |= {"valid_loss": result.loss, "valid_bleu": bleu.score}
    return values | {QUALITY: BEST_BLEU - bleu.score}
