"""The stage that trains a network from scratch which a search has out of a checkpoint.

For comparison: it has the first weights of the run's seed and no teacher, and trains with the run's
own settings for as long as was asked of the fine-tuned network. Its scores stand beside those of
that network, whose files stay as they are; its weights are not kept.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

from nas.executors.retraining.stage import epochs_of, result_of, settings_of, told
from nas.run.events import Event
from nas.run.folder import RunFolder
from nas.run.layout import asked_file, scratch_checkpoints_folder, scratch_file
from nas.run.network_training import new_network, trainer_of
from nas.run.stage_runner import run_stage
from nas.run.stages import SCRATCH, Stage, network_stage
from nas.search.front import FrontEntry, pick, read_front
from nas.stages.base import Run
from nas.stages.retrain import check_front
from search_spaces.errors import NasError, UsageError
from supernet.training.checkpoint import CheckpointFolder


def train_from_scratch(folder: RunFolder, how: Sequence[str]) -> Iterator[Event]:
    """Train networks of a search that began with a checkpoint from scratch, for comparison.

    Args:
        folder: the run.
        how: ``knee``, ``best`` or ids, see `nas.search.front.pick`.

    Raises:
        UsageError: when the run began without a checkpoint, has no front yet or no such network.
        DamagedRunError: when the front was changed since the search wrote it.
        NasError: the first that ended a training; the others are finished before.
    """
    from nas.stages.report import report

    if folder.spec.start is None:
        raise UsageError(
            "the networks of this run are trained from scratch as it is: it did not begin with a "
            "checkpoint"
        )
    with folder.locked():
        run, failure = Run(folder), None
        check_front(folder)
        front = read_front(folder)
        for one in dict.fromkeys(pick(front, name).id for name in how):
            work = partial(_train, entry=pick(front, one))
            try:
                yield from run_stage(run, scratch_stage(one), work)
            except NasError as error:  # a training that diverged; of all others the report tells
                failure = failure or error
        yield from report(run)
    if failure is not None:
        raise failure


def scratch_stage(network_id: str) -> Stage:
    """The stage that trains a network of the front from scratch."""
    return network_stage(
        SCRATCH,
        network_id,
        ("declare",),
        {scratch_file(network_id): "its scores when it is trained from scratch"},
        scratch=(scratch_checkpoints_folder(network_id),),
        reads=(asked_file(network_id),),
    )


def _train(run: Run, entry: FrontEntry) -> Iterator[Event]:
    path = run.folder.path / scratch_checkpoints_folder(entry.id)
    if not run.folder.has(scratch_file(entry.id)):  # else it was killed behind its last step
        stage, settings = SCRATCH + entry.id, replace(settings_of(run, entry.id), distillation=0.0)
        checkpoints = CheckpointFolder(path, f"{run.spec.digest}:{stage}", run.folder.check)
        network = new_network(run.spec, entry.architecture, settings)
        task = run.quick_task
        trainer = trainer_of(network, run.spec, task, settings, checkpoints, learnt=False)
        for report in trainer.run():
            yield from told(stage, report)
        network.network.load_state_dict(trainer.final_weights())
        about = epochs_of(run, entry.id)
        result = result_of(run, entry, network, len(trainer.history), about)
        run.folder.write_json(scratch_file(entry.id), result)
    shutil.rmtree(path, ignore_errors=True)
