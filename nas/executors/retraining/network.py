"""A network of the front on its own, and what trains it."""

from __future__ import annotations

import copy
from pathlib import Path

from nas.run.evaluator import trained_supernet
from nas.run.network_training import new_network, trainer_of
from nas.run.opened import FINE_TUNE, OpenedRun
from nas.search.front import FrontEntry
from search_spaces.architecture import base_kind
from supernet.building import build_network
from supernet.extraction import StandAlone, extract
from supernet.inheritance.parts import stack_name, stack_of
from supernet.inheritance.realign import realign
from supernet.pretrained.names import layer_kinds
from supernet.tasks.evaluation import evaluate
from supernet.threads import cpu_threads
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
    if run.spec.start is not None and checkpoints.load_last() is None:  # else it goes on from there
        with cpu_threads(settings.threads):
            weights = _inherited(run, entry).network.state_dict()
        network.network.load_state_dict(weights)
    seed = run.training_seed(FINE_TUNE)
    task = run.quick_task
    trainer = trainer_of(network, run.spec, task, settings, checkpoints, run.teacher, seed)
    return network, trainer


def training_digest(run: OpenedRun, entry: FrontEntry) -> str:
    """What the checkpoints of a network's training are of."""
    kept_by = run.spec.kept_by.name
    what = f"{run.training_digest(FINE_TUNE)}:{entry.id}"
    return what if kept_by == "loss" else f"{what}:{kept_by}"


def _inherited(run: OpenedRun, entry: FrontEntry) -> StandAlone:
    """The best of: out of the supernet, out of it before its training, and that realigned.

    What least squares fitted to the checkpoint loses in a short training that has to suit all
    networks; and what dropped layers did is made up for once it is known which these are
    (experiments/LOG.md, 2026-11-24).
    """
    before = trained_supernet(run.spec, run.first_weights())
    found = [extract(model, entry.architecture) for model in (run.supernet, before)]
    if "omni" not in map(base_kind, layer_kinds(entry.architecture)):
        found.append(_realigned(run, found[1]))
    values = [value_of(run, entry, one) for one in found]
    return found[values.index(min(values))]


def value_of(run: OpenedRun, entry: FrontEntry, network: StandAlone) -> float:
    """What a network's weights are judged by, see `SearchSpec.kept_by`, on the validation split."""
    task, device = run.quick_task, run.spec.device
    found = evaluate(task, network.network, entry.architecture, task.valid, device=device)
    return run.spec.kept_by.of(found.scores)


def _realigned(run: OpenedRun, network: StandAlone) -> StandAlone:
    """A network of the supernet with its output layers fitted from the first to the last."""
    assert run.teacher is not None
    fitted = copy.deepcopy(network)
    stack = getattr(run.supernet, stack_name(fitted.architecture))
    numbers = stack.kept(len(stack_of(fitted).blocks))
    realign(fitted, run.teacher.to(run.spec.device), numbers, run.judged_inputs())
    return fitted


def load_weights(run: OpenedRun, entry: FrontEntry, file: Path) -> StandAlone:
    """A network with the weights of a file, on the run's device.

    Raises:
        DamagedRunError: when they cannot be read.
    """
    network = build_network(run.space.model, run.space.task, entry.architecture)
    network.network.load_state_dict(load(file)["model"])
    network.network.to(run.spec.device)
    return network
