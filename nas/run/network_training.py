"""What trains a single network, from its first weights: to be kept, or only to be observed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from nas.request.spec import SearchSpec
from nas.run.training_memory import network_need
from search_spaces.architecture import Architecture
from supernet.building import build_network
from supernet.extraction import StandAlone, Supernet
from supernet.seeds import mixed_seed
from supernet.tasks.base import Task
from supernet.training.checkpoint import CheckpointFolder
from supernet.training.loop import Trainer
from supernet.training.sampling import SingleNetwork
from supernet.training_settings import TrainingSettings


def new_network(
    spec: SearchSpec, architecture: Architecture, settings: TrainingSettings
) -> StandAlone:
    """A network with its first weights, which the run's seed decides."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(spec.seed)
        return build_network(spec.space.model, spec.space.task, architecture, settings.dropout)


def trainer_of(
    network: StandAlone,
    spec: SearchSpec,
    task: Task[Any, Any],
    settings: TrainingSettings,
    checkpoints: CheckpointFolder | None = None,
    teacher: StandAlone | None = None,
    seed: int | None = None,
    learnt: bool | None = None,
) -> Trainer:
    """What trains a network.

    Args:
        network: with its first weights.
        spec: the request.
        task: with the validation examples that the training is followed on.
        settings: the numbers.
        checkpoints: where the training goes on from; nothing is kept without.
        teacher: a frozen network to learn from beside the labels.
        seed: of what `Trainer` draws; the run's own if not given.
        learnt: whether the first weights are worth keeping; those of a checkpoint are, if not
            given.
    """
    quality = spec.kept_by
    return Trainer(
        network.network,
        SingleNetwork(network.architecture),
        [network.architecture],
        task,
        settings,
        seed=spec.seed if seed is None else seed,
        device=spec.device,
        folder=checkpoints,
        teacher=teacher,
        learnt=spec.start is not None if learnt is None else learnt,
        judge=None if quality.name == "loss" else lambda found: quality.of(found.scores),
        need=network_need(spec, network.architecture, settings, teacher),
    )


def trained_alone(
    spec: SearchSpec, task: Task[Any, Any], architecture: Architecture, number: int = 0
) -> Supernet:
    """A network after `Budget.own_updates` updates of training alone.

    Args:
        spec: the request, with such updates.
        task: to learn from.
        architecture: the network.
        number: which of its `Budget.own_seeds` trainings, from 0, which has the run's seed. That of
            another is far from it, so that no retraining with one of the next seeds repeats it.

    Returns:
        The weights after the last update, or their running average where `retrain` has one; on the
        run's device.

    Raises:
        DivergedError: when a loss of the training is not finite.
        TooLargeError: when it does not fit into the memory of the graphics card.
    """
    if number:
        spec = spec.model_copy(update={"seed": mixed_seed(spec.seed, number)})
    settings = short_settings(spec)
    trainer = trainer_of(new_network(spec, architecture, settings), spec, task, settings)
    for _ in trainer.run():
        pass
    return trainer.model


def short_settings(spec: SearchSpec) -> TrainingSettings:
    """The numbers of a retraining, for `Budget.own_updates` updates without checks on the way.

    There are as many epochs as that takes, and no mean over the last of them.
    """
    updates = spec.budget.own_updates
    return replace(
        spec.budget.retrain,
        epochs=updates,
        max_updates=updates,
        check_every=updates + 1,
        checkpoint_updates=0,
        average_last=0,
    )
