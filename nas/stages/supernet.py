"""The stage that trains the supernet."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from nas.run.duration import CHECK, UPDATE, Asked, Part, Plan
from nas.run.events import Event, Note, Progress
from nas.run.layout import HISTORY_FILE
from nas.run.supernet_training import supernet_checkpoints, training_losses
from nas.run.training_memory import parts_text
from nas.stages.base import Run
from supernet.training.checkpoint import load
from supernet.training.loop import EpochReport


def work(run: Run) -> Iterator[Event]:
    """Train the weight-sharing supernet, wherever the executor does that."""
    for report in run.executor.train(run):
        if isinstance(report, Note):
            yield report
            continue
        if report.parts:
            yield Note("supernet", parts_text(report.parts))
        message = _training_message(report)
        yield Progress("supernet", report.epoch, report.epochs, message, training_losses(report))
    checkpoints = supernet_checkpoints(run)
    load(checkpoints.best)  # written long ago perhaps: the record must not vouch for a damaged file
    run.folder.write_json(HISTORY_FILE, load(checkpoints.last)["history"])


def _training_message(report: EpochReport) -> str:
    message = f"loss {report.train_loss:.3f}"
    if report.probe_losses:
        message += f", validation {np.mean(report.probe_losses):.3f}"
    if report.stopped:
        message += f", ranking stable (τ {report.tau:.3f})"
    return message


def plan(asked: Asked) -> Plan:
    """How much there is to do; a training that is stopped early takes less."""
    settings = asked.spec.budget.supernet
    training = asked.training(settings)
    checks = training.checks * settings.num_probes
    return Plan(
        training.text,
        (Part(UPDATE, training.updates, training.updates), Part(CHECK, checks, checks)),
    )
