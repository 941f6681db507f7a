"""The stage in which other kinds of attention learn what each layer of a checkpoint does."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

from nas.run.duration import DISTIL_UPDATE, Asked, Part, Plan, counted
from nas.run.events import Event, Note, Progress
from nas.run.layer_distillation import taught
from nas.run.layout import DISTIL_CHECKPOINTS, DISTILLED_ERRORS_FILE, DISTILLED_FILE
from nas.stages.base import Run
from supernet.inheritance.local import JUDGED_BATCHES
from supernet.training.checkpoint import save


def work(run: Run) -> Iterator[Event]:
    """Distil all layers over the training split, each from its own output, wherever it is done."""
    for report in run.executor.distil(run):
        if isinstance(report, Note):
            yield report
            continue
        message = f"error {report.error:.3f}"
        yield Progress("distil", report.update, report.updates, message, {"error": report.error})
    weights, errors = taught(run)
    save(run.folder.path / DISTILLED_FILE, {"weights": weights})
    run.folder.write_json(DISTILLED_ERRORS_FILE, errors)
    shutil.rmtree(run.folder.path / DISTIL_CHECKPOINTS, ignore_errors=True)


def plan(asked: Asked) -> Plan:
    """How much there is to do.

    What was learnt is judged, what was there before is too, and outputs are fitted: three times the
    first batches are read without learning, which takes a third of an update, about.
    """
    updates = asked.spec.budget.distil.updates
    what = f"{counted(updates, 'update')} of every kind in every layer"
    return Plan(what, (Part(DISTIL_UPDATE, updates + JUDGED_BATCHES),))
