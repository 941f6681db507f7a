"""The stage in which other kinds of attention learn what each layer of a checkpoint does."""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterator

from nas.run.duration import DISTIL_UPDATE, Asked, Part, Plan, counted
from nas.run.events import Event, Note, Progress
from nas.run.layer_distillation import taught
from nas.run.layout import DISTIL_CHECKPOINTS, DISTILLED_ERRORS_FILE, DISTILLED_FILE
from nas.stages.base import Run
from search_spaces.wording import mark
from supernet.inheritance.local import JUDGED_BATCHES
from supernet.training.checkpoint import save

# Of an update: by it two workers take .78 of the time of one (experiments/LOG.md, 2026-11-26).
CHECKPOINT_SHARE = 0.56


def work(run: Run) -> Iterator[Event]:
    """Distil all layers over the training split, each from its own output, wherever it is done."""
    if not run.folder.has(DISTILLED_ERRORS_FILE):  # else it was killed behind its last step
        told = False
        for report in run.executor.distil(run):
            if isinstance(report, Note):
                yield report
                continue
            if not (told or math.isfinite(report.error)):
                told = True
                yield Note(
                    "distil",
                    "the error of a kind of attention became no number, and that kind keeps what "
                    "it began with in that layer: lower the learning rate "
                    f"({mark('settings')} distil.learning_rate=N)",
                    loud=True,
                )
            message, values = f"error {report.error:.3f}", {"error": report.error}
            yield Progress("distil", report.update, report.updates, message, values)
        weights, errors = taught(run)
        save(run.folder.path / DISTILLED_FILE, {"weights": weights})
        run.folder.write_json(DISTILLED_ERRORS_FILE, errors)
    shutil.rmtree(run.folder.path / DISTIL_CHECKPOINTS, ignore_errors=True)


def plan(asked: Asked) -> Plan:
    """How much there is to do.

    What was learnt is judged, what was there before is too, and outputs are fitted: three times the
    first batches are read without learning, which takes a third of an update, about. Workers share
    the layers, and each of them runs the checkpoint.
    """
    updates = asked.spec.budget.distil.updates
    what = f"{counted(updates, 'update')} of every kind in every layer"
    count, space = updates + JUDGED_BATCHES, asked.spec.space
    (layers,) = (space.max_layers(stack) for stack in space.stacks)
    parts = (
        Part(DISTIL_UPDATE, CHECKPOINT_SHARE * count),
        Part(DISTIL_UPDATE, (1.0 - CHECKPOINT_SHARE) * count, layers),
    )
    return Plan(what, parts)
