"""The stage in which other kinds of attention learn what each layer of a checkpoint does."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator

from torch import Tensor

from nas.run.duration import DISTIL_UPDATE, Asked, Part, Plan, counted
from nas.run.events import Event, Progress
from nas.run.layout import (
    DISTIL_CHECKPOINTS,
    DISTILLED_ERRORS_FILE,
    DISTILLED_FILE,
    INHERITED_FILE,
)
from nas.run.opened import OpenedRun
from nas.stages.base import Run
from supernet.inheritance.local import JUDGED_BATCHES, LocalDistillation
from supernet.training.checkpoint import CheckpointFolder, load, save


def work(run: Run) -> Iterator[Event]:
    """Distil all layers in one pass over the training split, each from its own layer's output."""
    assert run.checkpoint is not None
    budget, path = run.spec.budget.distil, run.folder.path
    folder = CheckpointFolder(path / DISTIL_CHECKPOINTS, run.spec.digest)
    local = LocalDistillation(
        run.space,
        load(path / INHERITED_FILE)["weights"],
        run.checkpoint,
        inputs_of(run),
        updates=budget.updates,
        learning_rate=budget.learning_rate,
        device=run.computes_on,
        folder=folder,
    )
    for report in local.run():
        message = f"error {report.error:.3f}"
        yield Progress("distil", report.update, report.updates, message, {"error": report.error})
    save(path / DISTILLED_FILE, {"weights": local.weights()})
    run.folder.write_json(DISTILLED_ERRORS_FILE, local.errors())
    shutil.rmtree(folder.path, ignore_errors=True)


def inputs_of(run: OpenedRun) -> Callable[[int], Tensor]:
    """The inputs of each update, which its number alone decides; asked for in order, mostly."""
    task, spec = run.quick_task, run.spec

    def all_inputs() -> Iterator[Tensor]:
        epoch = 0
        while True:
            for batch in task.batches(
                spec.budget.supernet, seed=spec.seed, epoch=epoch, device=run.computes_on
            ):
                yield task.inputs(batch)
            epoch += 1

    stream, position = all_inputs(), 0

    def inputs(update: int) -> Tensor:
        nonlocal stream, position
        if update < position:
            stream, position = all_inputs(), 0
        while position < update:
            next(stream)
            position += 1
        position += 1
        return next(stream)

    return inputs


def plan(asked: Asked) -> Plan:
    """How much there is to do.

    What was learnt is judged, what was there before is too, and outputs are fitted: three times the
    first batches are read without learning, which takes a third of an update, about.
    """
    updates = asked.spec.budget.distil.updates
    what = f"{counted(updates, 'update')} of every kind in every layer"
    return Plan(what, (Part(DISTIL_UPDATE, updates + JUDGED_BATCHES),))
