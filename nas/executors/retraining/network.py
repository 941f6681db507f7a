"""A network of the front on its own, and what trains it."""

from __future__ import annotations

from pathlib import Path

from nas.run.evaluator import trained_supernet
from nas.run.network_training import new_network, trainer_of
from nas.run.opened import OpenedRun
from nas.search.front import FrontEntry
from supernet.building import build_network
from supernet.extraction import StandAlone, extract
from supernet.tasks.evaluation import evaluate
from supernet.training.checkpoint import CheckpointFolder, load
from supernet.training.loop import Trainer
from supernet.training_settings import TrainingSettings


def network_trainer(
    run: OpenedRun, entry: FrontEntry, settings: TrainingSettings, checkpoints: CheckpointFolder
) -> tuple[StandAlone, Trainer]:
    """A network with its first weights, and its training.

    The run's seed decides the weights; where the run begins with a checkpoint they are those of the
    supernet, before its training or after it, and the checkpoint teaches.

    Args:
        run: the run.
        entry: the network.
        settings: the numbers.
        checkpoints: where the training goes on from.
    """
    network = new_network(run.spec, entry.architecture, settings)
    if run.spec.start is not None:
        network.network.load_state_dict(_inherited(run, entry).network.state_dict())
    trainer = trainer_of(network, run.spec, run.quick_task, settings, checkpoints, run.teacher)
    return network, trainer


def _inherited(run: OpenedRun, entry: FrontEntry) -> StandAlone:
    """The network out of the supernet, as it was before its training where that is better.

    What least squares fitted to the checkpoint loses in a short training that has to suit all
    networks (experiments/LOG.md, 2026-11-24).
    """
    task, device = run.quick_task, run.spec.device
    before = trained_supernet(run.spec, run.first_weights())
    either = [extract(model, entry.architecture) for model in (run.supernet, before)]
    losses = [
        evaluate(task, one.network, entry.architecture, task.valid, device=device).loss
        for one in either
    ]
    return either[losses[1] < losses[0]]


def load_weights(run: OpenedRun, entry: FrontEntry, file: Path) -> StandAlone:
    """A network with the weights of a file, on the run's device.

    Raises:
        DamagedRunError: when they cannot be read.
    """
    network = build_network(run.space.model, run.space.task, entry.architecture)
    network.network.load_state_dict(load(file)["model"])
    network.network.to(run.spec.device)
    return network
