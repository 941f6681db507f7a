"""The stage that trains a network from scratch which a search has out of a checkpoint.

For comparison: it has the first weights of the run's seed and no teacher, and the numbers by which
it is fine-tuned otherwise. Its scores stand beside those of the fine-tuned network, whose files
stay as they are; its weights are not kept.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

from nas.executors.retraining.stage import result_of, told
from nas.run.events import Event
from nas.run.folder import RunFolder
from nas.run.layout import scratch_checkpoints_folder, scratch_file
from nas.run.network_training import new_network, trainer_of
from nas.run.stage_runner import run_stage
from nas.run.stages import SCRATCH, Stage, network_stage
from nas.search.front import FrontEntry, pick, read_front
from nas.stages.base import Run
from search_spaces.errors import UsageError
from supernet.training.checkpoint import CheckpointFolder


def train_from_scratch(folder: RunFolder, how: Sequence[str]) -> Iterator[Event]:
    """Train networks of a search that began with a checkpoint from scratch, for comparison.

    Args:
        folder: the run.
        how: ``knee``, ``best`` or ids, see `nas.search.front.pick`.

    Raises:
        UsageError: when the run began without a checkpoint, has no front yet or no such network.
    """
    from nas.stages.report import report

    if folder.spec.start is None:
        raise UsageError(
            "the networks of this run are trained from scratch as it is: it did not begin with a "
            "checkpoint"
        )
    with folder.locked():
        run = Run(folder)
        front = read_front(folder)
        for one in dict.fromkeys(pick(front, name).id for name in how):
            work = partial(_train, entry=pick(front, one))
            yield from run_stage(run, scratch_stage(one), work)
        yield from report(run)


def scratch_stage(network_id: str) -> Stage:
    """The stage that trains a network of the front from scratch."""
    return network_stage(
        SCRATCH,
        network_id,
        ("declare",),
        {scratch_file(network_id): "its scores when it is trained from scratch"},
        scratch=(scratch_checkpoints_folder(network_id),),
    )


def _train(run: Run, entry: FrontEntry) -> Iterator[Event]:
    if run.folder.has(scratch_file(entry.id)):  # killed behind its last step
        return
    stage, settings = SCRATCH + entry.id, replace(run.spec.budget.retrain, distillation=0.0)
    path = run.folder.path / scratch_checkpoints_folder(entry.id)
    checkpoints = CheckpointFolder(path, f"{run.spec.digest}:{stage}", run.folder.check)
    network = new_network(run.spec, entry.architecture, settings)
    trainer = trainer_of(network, run.spec, run.quick_task, settings, checkpoints, learnt=False)
    for report in trainer.run():
        yield from told(stage, report)
    network.network.load_state_dict(trainer.final_weights())
    run.folder.write_json(
        scratch_file(entry.id), result_of(run, entry, network, len(trainer.history))
    )
    shutil.rmtree(path)
