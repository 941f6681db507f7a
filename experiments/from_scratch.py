"""Trains one network from scratch, as the retraining of a search does."""

from __future__ import annotations

import torch

from search_spaces.architecture import Architecture
from search_spaces.space import SearchSpace
from supernet.building import build_network
from supernet.extraction import StandAlone, Supernet
from supernet.tasks.base import Task
from supernet.training.checkpoint import CheckpointFolder
from supernet.training.loop import Trainer
from supernet.training.sampling import SingleNetwork
from supernet.training_settings import TrainingSettings


def untrained(
    space: SearchSpace, architecture: Architecture, settings: TrainingSettings, seed: int
) -> StandAlone:
    """The network as it is before training; the seed decides its weights."""
    torch.manual_seed(seed)
    return build_network(space.model, space.task, architecture, settings.dropout)


def trained(
    network: StandAlone,
    architecture: Architecture,
    task: Task[object, object],
    settings: TrainingSettings,
    seed: int,
    name: str = "",
    folder: CheckpointFolder | None = None,
) -> Supernet:
    """Train a network to the end and give it its final weights.

    Args:
        network: see `untrained`.
        architecture: of it.
        task: with what it learns.
        settings: of the training.
        seed: of the order of the examples.
        name: printed with the losses of every epoch; nothing is printed without one.
        folder: keeps checkpoints, from which a training that was killed goes on.
    """
    model = network.network
    trainer = Trainer(
        model, SingleNetwork(architecture), [architecture], task, settings, seed=seed, folder=folder
    )
    for report in trainer.run():
        losses = "".join(f", validation {loss:.4f}" for loss in report.probe_losses)
        if name:
            print(f"{name} {report.epoch}: loss {report.train_loss:.4f}{losses}", flush=True)
    model.load_state_dict(trainer.final_weights())
    return model
