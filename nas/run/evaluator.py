"""Quality of networks on validation data, with inherited weights or after a short training alone.

One of the few modules of `nas` that know torch. It joins the elastic models with the search.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from latency.locking import cache_dir
from nas.objectives import QUALITIES, QUALITY, QualityMetric
from nas.request.spec import SearchSpec
from nas.run.checkpoint import open_checkpoint
from nas.run.network_training import trained_alone
from search_spaces.architecture import Architecture
from search_spaces.errors import DataError
from supernet.beam_search import BeamSettings
from supernet.building import build_supernet
from supernet.extraction import StandAlone, Supernet
from supernet.tasks.base import Task
from supernet.tasks.evaluation import evaluate
from supernet.tasks.opening import open_task
from supernet.tasks.teacher import Teacher
from supernet.tasks.translation import TranslationTask, split_bleu
from supernet.training.checkpoint import read

GREEDY = BeamSettings(beam_size=1)


def use_threads(spec: SearchSpec) -> None:
    """Let torch use as many CPU threads as the run is specified with."""
    if spec.budget.threads is not None:
        torch.set_num_threads(spec.budget.threads)


def validation_quality(
    task: Task[Any, Any],
    model: Supernet,
    architecture: Architecture,
    metric: QualityMetric,
    device: str,
    beam: BeamSettings = GREEDY,
) -> dict[str, float]:
    """What a network is worth on the validation split.

    Args:
        task: with the validation examples to look at.
        model: the weights: the supernet, or the network on its own.
        architecture: the network.
        metric: what quality is; ``bleu`` translates greedily, which is several times faster than
            with a beam and ranks networks alike.
        device: where to compute.
        beam: how ``bleu`` translates.

    Returns:
        ``quality``, of which less is better, and the scores of the validation split that quality is
        not itself.
    """
    result = evaluate(task, model, architecture, task.valid, device=device)
    scores = result.scores
    if metric == "bleu":
        assert isinstance(task, TranslationTask)
        scores["bleu"] = split_bleu(task, model, architecture, task.valid, device, beam).score
    measured = {f"valid_{name}": score for name, score in scores.items()}
    if metric == "loss":
        del measured["valid_loss"]
    return {QUALITY: QUALITIES[metric].of(scores), **measured}


def check_data(task: Task[Any, Any], metric: QualityMetric) -> None:
    """Refuse data on which networks have no such quality.

    Args:
        task: with the validation examples to look at.
        metric: what quality is.

    Raises:
        DataError: when recall is asked for and no token is recalled.
    """
    if metric == "recall_nats" and not task.has_recall:
        raise DataError(
            f"no token of the validation split of {task.name} repeats a pair of tokens from beyond "
            "the window, so that there is no recall to measure: set recall_window in the space's "
            "[data] table to less, or let quality be the loss"
        )


@dataclass(frozen=True)
class Evaluator:
    """All that is needed to evaluate networks of a run.

    Attributes:
        spec: the request.
        task: with as many validation examples as networks are compared on.
        supernet: the trained weights, in evaluation mode; None where each network is trained alone.
    """

    spec: SearchSpec
    task: Task[Any, Any]
    supernet: Supernet | None

    def quality(self, network: Architecture) -> dict[str, float]:
        """See `validation_quality`; values may be infinite or no numbers.

        Of a network that is trained alone they are means over `Budget.own_seeds` trainings. A mean
        is what a retraining may be expected to reach; the best of them would rank one that learns
        now and then beside one that always does.

        Raises:
            DivergedError: when a loss of the network's training is not finite.
            TooLargeError: when that does not fit into the memory of the graphics card.
        """

        def with_weights(model: Supernet) -> dict[str, float]:
            spec = self.spec
            return validation_quality(self.task, model, network, spec.quality, spec.device)

        if self.supernet is not None:
            return with_weights(self.supernet)
        seeds = range(self.spec.budget.own_seeds)
        found = [with_weights(trained_alone(self.spec, self.task, network, n)) for n in seeds]
        return {name: float(np.mean([one[name] for one in found])) for name in found[0]}


def open_evaluator(spec: SearchSpec, data_digest: str, weights: bytes | None) -> Evaluator:
    """Open a run's data and take up its supernet, away from its folder.

    Args:
        spec: the request.
        data_digest: of the data that the run began with.
        weights: a checkpoint with the supernet's ``weights``; None where there is none.

    Raises:
        DataError: when the data are not there, or are others.
    """
    task = open_task(spec.space, spec.dataset, spec.data, spec.seed)
    if task.digest != data_digest:
        raise DataError(
            f"the data set {spec.data or spec.dataset} is not the one on the machine where the run "
            "is worked on; put the same files at the same path"
        )
    if spec.quality == "kl":
        task = beside_checkpoint(task, spec)
    supernet = None if weights is None else trained_supernet(spec, read(weights)["weights"])
    return Evaluator(spec, compared_on(task, spec), supernet)


def beside_checkpoint(
    task: Task[Any, Any], spec: SearchSpec, load: Callable[[], StandAlone] | None = None
) -> Task[Any, Any]:
    """The task of a run whose quality is the divergence from the checkpoint it began with.

    Args:
        task: as it is.
        spec: the request.
        load: gives the checkpoint's network; read from its folder unless given.

    Raises:
        DataError: once the checkpoint is needed, when it is gone or another one.
    """
    start = spec.start
    assert start is not None  # `check_quality` has refused such a request

    def loaded() -> tuple[Any, Architecture]:
        found = open_checkpoint(start).network().requires_grad_(False) if load is None else load()
        return found.network, found.architecture

    return task.beside(Teacher(loaded, cache_dir()))


def compared_on(task: Task[Any, Any], spec: SearchSpec) -> Task[Any, Any]:
    """A task with as many validation examples as networks are compared on."""
    count = spec.budget.valid_examples
    return task.with_valid(count) if count else task


def trained_supernet(spec: SearchSpec, weights: dict[str, Any]) -> Supernet:
    """The supernet of a run with its weights, on the run's device and in evaluation mode."""
    model = build_supernet(spec.space)
    model.load_state_dict(weights)
    return model.to(spec.device).eval()
