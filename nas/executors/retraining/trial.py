"""One trial of a tuning: a network's training with settings of its own."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from nas.executors.retraining.network import network_trainer, training_digest, value_of
from nas.executors.retraining.stage import epochs_of, finish_tuned, settings_of
from nas.executors.retraining.tuning_record import Settings, TrialFolders, TrialRecord
from nas.run.layout import TRIAL_WEIGHTS
from nas.run.opened import OpenedRun
from nas.search.front import pick, read_front
from search_spaces.errors import DivergedError
from supernet.training.checkpoint import CheckpointFolder, load, save

# A training that diverged is worse than guessing by so much.
DIVERGED_FACTOR = 10.0


def train_trial(run: OpenedRun, network_id: str, settings: Settings) -> Iterator[tuple[int, float]]:
    """Train to the end, from the trial's last checkpoint where there is one.

    Args:
        run: the run.
        network_id: of the front.
        settings: in place of the run's own.

    Yields:
        Percent of the training done, and the least so far of what weights are judged by (see
        `SearchSpec.kept_by`); the last one is that of the weights it ends with. Whoever takes them
        may stop at any.
    """
    entry = pick(read_front(run.folder), network_id)
    folders = TrialFolders(run.folder, entry.id)
    key = folders.begin(settings)
    known = folders.record(key)
    if known.loss is not None:  # its worker died when it had just ended
        yield 100, known.loss
        return
    where = folders.path_of(key)
    digest = f"{training_digest(run, entry)}:{key}"
    checkpoints = CheckpointFolder(where / "checkpoints", digest, run.folder.check)
    numbers: dict[str, Any] = dict(settings)
    asked = replace(settings_of(run, entry.id), **numbers)
    network, trainer = network_trainer(run, entry, asked, checkpoints)
    try:
        for report in trainer.run():
            if report.probe_losses and report.epoch < report.epochs:
                done = 100 * report.epoch // report.epochs
                folders.report(key, done, trainer.best)
                yield done, trainer.best
        weights = trainer.final_weights()
        network.network.load_state_dict(weights)
        loss = value_of(run, entry, network)
    except DivergedError:
        loss = DIVERGED_FACTOR * run.spec.kept_by.of_guessing(run.task.guessing_loss)
        folders.end(key, "diverged", loss)
    else:
        save(where / TRIAL_WEIGHTS, {"model": weights, "epochs": len(trainer.history)})
        folders.report(key, 100, loss)
        folders.end(key, "finished", loss)
    shutil.rmtree(checkpoints.path, ignore_errors=True)
    yield 100, loss


def finish_trial(
    run: OpenedRun, network_id: str, best: TrialRecord, tuning: dict[str, int]
) -> None:
    """Make the best trial's network the retrained one."""
    entry = pick(read_front(run.folder), network_id)
    weights = TrialFolders(run.folder, entry.id).weights_of(best.key)
    about = {"settings": dict(best.settings), "tuning": tuning, **epochs_of(run, entry.id)}
    finish_tuned(run, entry, weights, load(weights)["epochs"], about)
