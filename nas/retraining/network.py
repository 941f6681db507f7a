"""A network of the front on its own, and what trains it."""

from __future__ import annotations

from pathlib import Path

from nas.run.network_training import new_network, trainer_of
from nas.run.opened import OpenedRun
from nas.search.front import FrontEntry
from supernet.building import build_network
from supernet.extraction import StandAlone, extract
from supernet.training.checkpoint import CheckpointFolder, load
from supernet.training.loop import Trainer
from supernet.training_settings import TrainingSettings


def network_trainer(
    run: OpenedRun, entry: FrontEntry, settings: TrainingSettings, checkpoints: CheckpointFolder
) -> tuple[StandAlone, Trainer]:
    """A network with its first weights, and its training.

    The run's seed decides the weights; where the run begins with a checkpoint they are those of the
    supernet, and the checkpoint teaches.

    Args:
        run: the run.
        entry: the network.
        settings: the numbers.
        checkpoints: where the training goes on from.
    """
    network = new_network(run.spec, entry.architecture, settings)
    if run.spec.start is not None:
        inherited = extract(run.supernet, entry.architecture)
        network.network.load_state_dict(inherited.network.state_dict())
    trainer = trainer_of(network, run.spec, run.quick_task, settings, checkpoints, run.teacher)
    return network, trainer


def load_weights(run: OpenedRun, entry: FrontEntry, file: Path) -> StandAlone:
    """A network with the weights of a file, on the run's device.

    Raises:
        DamagedRunError: when they cannot be read.
    """
    network = build_network(run.space.model, run.space.task, entry.architecture)
    network.network.load_state_dict(load(file)["model"])
    network.network.to(run.spec.device)
    return network
