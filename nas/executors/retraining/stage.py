"""The stage that trains a network from scratch and scores it once on the test split.

It opens the test split as its very last step. No stage before it does, and after it only
`nas.results.networks`, when a user asks for the scores of a network by name.
"""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from nas.executors.retraining.asked import AskedTraining, note_asked, read_asked
from nas.executors.retraining.network import load_weights, network_trainer, training_digest
from nas.request.spec import SearchSpec
from nas.run.events import ArchitectureMeasured, Event, Note, Progress
from nas.run.folder import RunFolder
from nas.run.layout import (
    asked_file,
    begun_file,
    checkpoints_folder,
    result_file,
    tuning_folder,
    weights_file,
)
from nas.run.opened import OpenedRun
from nas.run.stage_digest import stage_digest, stage_digests
from nas.run.stage_runner import Work, run_stage
from nas.run.stages import RETRAIN, Stage, network_stage
from nas.run.supernet_training import training_losses
from nas.run.training_memory import parts_text, shortage_text
from nas.search.doubtful import shortfall_and_advice
from nas.search.front import FrontEntry, pick, read_front
from search_spaces.costs import params
from search_spaces.errors import DamagedRunError, DivergedError, NasError, UsageError
from search_spaces.wording import TUNE, mark
from supernet.extraction import StandAlone
from supernet.tasks.base import Scores
from supernet.tasks.evaluation import by_distance, loss_error, score
from supernet.threads import cpu_threads
from supernet.training.checkpoint import CheckpointFolder, load, save
from supernet.training.loop import EpochReport
from supernet.training_settings import TrainingSettings

SCHEMA = 2
TUNED_SCHEMA = 3  # with settings and tuning
ERROR_SCHEMA = 4  # with a loss_error
ASKED_SCHEMA = 5  # with asked_epochs
REACHED = "reached_loss"


class Tuner(Protocol):
    """Finds the settings a network trains best with; `tuning.RayTuner` is one."""

    def tune(self, run: OpenedRun, entry: FrontEntry, trials: int) -> None:
        """Try settings, and finish the retraining with the best."""


def retrain_stage(spec: SearchSpec, network_id: str) -> Stage:
    """The stage that retrains a network of the front.

    Its first weights are the supernet's where the search begins with a checkpoint.
    """
    weights = () if spec.start is None else ("inherit", "distil", "supernet")
    return network_stage(
        RETRAIN,
        network_id,
        ("declare", *weights),
        {result_file(network_id): "its scores", weights_file(network_id): "its weights"},
        scratch=(checkpoints_folder(network_id), tuning_folder(network_id)),
        reads=(asked_file(network_id),),
        uncounted=weights,
    )


def change_asked(
    folder: RunFolder, network_id: str, trials: int | None = None, epochs: int | None = None
) -> None:
    """Ask something else of a training from now on; None leaves what was asked before.

    Where only the number of trials is another, the result goes and what was tried stays: settings
    are worth the same among more or fewer of them. With other epochs nothing stays.
    """
    before = None
    with suppress(DamagedRunError):  # a note that cannot be read is written anew
        before = read_asked(folder, network_id)
    known = before or AskedTraining()
    asked = AskedTraining(
        known.trials if trials is None else trials, known.epochs if epochs is None else epochs
    )
    if asked == before:
        return
    stage = retrain_stage(folder.spec, network_id)
    begun = begun_file(stage.name)
    fits = (
        asked.epochs == known.epochs
        and folder.has(begun)
        and not folder.begun_otherwise(stage.name, *stage_digests(folder, stage))
    )
    if fits:  # in this order, for a kill in between is to cost none of the trials
        folder.forget(stage.name, ())
        folder.forget(stage.name, (*stage.outputs, checkpoints_folder(network_id), begun))
    note_asked(folder, network_id, asked)
    if fits:
        folder.begin(stage.name, stage_digest(folder, stage))


def retrain_work(run: OpenedRun, network_id: str, tuner: Tuner | None = None) -> Work[OpenedRun]:
    """What that stage does, for `nas.run.stage_runner`."""
    entry = pick(read_front(run.folder), network_id)
    return lambda run: _retrain(run, entry, tuner)


def without_tuner(run: OpenedRun, ids: Sequence[str]) -> Iterator[Event]:
    """Retrain networks in this process, one after the other.

    Of those that others began to tune, one that is not finished is passed over with a note unless
    it is the only one.

    Raises:
        UsageError: when there is nothing but a network to be tuned.
        NasError: the first that ended one of them; the others are finished before.
    """
    failure: NasError | None = None
    for network_id in ids:
        stage = retrain_stage(run.spec, network_id)
        if len(ids) > 1 and _waits_for_tuner(run, network_id):
            yield Note(stage.name, _tuning_words(run, network_id))
            continue
        try:
            yield from run_stage(run, stage, retrain_work(run, network_id))
        except NasError as error:
            failure = failure or error
    if failure is not None:
        raise failure


def _waits_for_tuner(run: OpenedRun, network_id: str) -> bool:
    tuned = read_asked(run.folder, network_id).trials > 0
    return tuned and not run.folder.has(result_file(network_id))


def _tuning_words(run: OpenedRun, network_id: str) -> str:
    trials = read_asked(run.folder, network_id).trials
    path = shlex.quote(str(run.folder.path))
    command = f"nas retrain {path} --pick {network_id} --tune"
    ray = f"{command} {trials} --executor ray"
    return (
        f"the settings of network {network_id} are to be tuned, which Ray does: "
        f"{mark(TUNE, f'go on with {ray}, or train it with the settings of the run: {command} 0')}"
    )


def _retrain(run: OpenedRun, entry: FrontEntry, tuner: Tuner | None) -> Iterator[Event]:
    stage, trials = RETRAIN + entry.id, read_asked(run.folder, entry.id).trials
    if run.folder.has(result_file(entry.id)):
        # Killed between the last step and the stage's record: the test split is not read again.
        run.folder.read_json(result_file(entry.id))
        load(run.folder.path / weights_file(entry.id))
        shutil.rmtree(run.folder.path / checkpoints_folder(entry.id), ignore_errors=True)
        return
    if not trials:
        yield from _train(run, entry, stage)
    elif tuner is None:
        raise UsageError(_tuning_words(run, entry.id))
    else:
        tuner.tune(run, entry, trials)
    result = run.folder.read_json(result_file(entry.id))
    name = next(name for name in result if name.startswith("test_"))
    yield ArchitectureMeasured(stage, entry.id, {name: result[name]})
    own, asked_epochs = result["valid_loss"], result.get("asked_epochs")
    if problem := shortfall_and_advice(run.spec, entry, own, asked_epochs, str(run.folder.path)):
        yield Note(stage, problem)


def _train(run: OpenedRun, entry: FrontEntry, stage: str) -> Iterator[Event]:
    """With the run's own settings, but for the epochs that were asked for."""
    checkpoints, settings = _checkpoints(run, entry), settings_of(run, entry.id)
    network, trainer = network_trainer(run, entry, settings, checkpoints)
    if shortage := shortage_text(run.spec, entry.architecture, settings, run.teacher):
        yield Note(stage, shortage)
    for report in trainer.run():
        yield from told(stage, report)
    weights = trainer.final_weights()
    network.network.load_state_dict(weights)
    finish(run, entry, network, len(trainer.history), epochs_of(run, entry.id))
    shutil.rmtree(checkpoints.path)


def settings_of(run: OpenedRun, network_id: str) -> TrainingSettings:
    """What a network trains with, but for what a tuning tries."""
    return read_asked(run.folder, network_id).settings(run.spec.budget.retrain)


def epochs_of(run: OpenedRun, network_id: str) -> dict[str, int]:
    """What a result tells of epochs that were asked for; nothing where none were."""
    asked = read_asked(run.folder, network_id).epochs
    return {"asked_epochs": asked} if asked else {}


def _checkpoints(run: OpenedRun, entry: FrontEntry) -> CheckpointFolder:
    path = run.folder.path / checkpoints_folder(entry.id)
    return CheckpointFolder(path, training_digest(run, entry), run.folder.check)


def told(stage: str, report: EpochReport) -> Iterator[Event]:
    """What an epoch of a training tells."""
    if report.parts:
        yield Note(stage, parts_text(report.parts))
    message = f"loss {report.train_loss:.3f}"
    if report.probe_losses:
        message += f", validation {report.probe_losses[0]:.3f}"
    yield Progress(stage, report.epoch, report.epochs, message, training_losses(report))


def train_part(run: OpenedRun, network_id: str, share: float) -> Iterator[Event]:
    """Begin a retraining, or go on with it, up to its first check from a share of it on.

    What is reached is in its checkpoint, from which the retraining goes on later. A network that is
    trained already has the loss that it ended with.

    Yields:
        Its progress, and notes on its memory; the last event tells under `REACHED` what weights are
        judged by there (see `SearchSpec.kept_by`), and nothing where the training diverged.
    """
    entry, quality = pick(read_front(run.folder), network_id), run.spec.kept_by
    stage = RETRAIN + entry.id
    if run.folder.has(result_file(entry.id)):
        result = run.folder.read_json(result_file(entry.id))
        known = quality.measured_name in result
        values = {REACHED: quality.of_measured(result)} if known else {}
        yield Progress(stage, 1, 1, "is trained", values)
        return
    _, trainer = network_trainer(run, entry, settings_of(run, entry.id), _checkpoints(run, entry))
    try:
        running = trainer.run()
        while (value := trainer.value_at(share)) is None:
            yield from told(stage, next(running))
    except DivergedError as error:
        yield Progress(stage, 0, 0, str(error))
        return
    message = f"{quality.objective.label} {value:.3f}"
    yield Progress(stage, 0, 0, message, {REACHED: value})


def finish_tuned(
    run: OpenedRun, entry: FrontEntry, weights: Path, epochs: int, about: Mapping[str, Any]
) -> None:
    """Keep the weights of the best trial, and score them.

    Args:
        run: the run.
        entry: the network.
        weights: file of the trial's weights.
        epochs: that it trained.
        about: its settings, the tuning and the epochs that were asked for, for the result.
    """
    finish(run, entry, load_weights(run, entry, weights), epochs, about)


def finish(
    run: OpenedRun,
    entry: FrontEntry,
    network: StandAlone,
    epochs: int,
    about: Mapping[str, Any] | None = None,
) -> None:
    """Write weights and result of a trained network; this looks at the test split, once."""
    weights = {name: tensor.cpu() for name, tensor in network.network.state_dict().items()}
    state = {"model": weights, "architecture": entry.architecture.to_json()}
    save(run.folder.path / weights_file(entry.id), state)
    result = result_of(run, entry, network, epochs, about)
    run.folder.write_json(result_file(entry.id), result)


def result_of(
    run: OpenedRun,
    entry: FrontEntry,
    network: StandAlone,
    epochs: int,
    about: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The result of a training; this looks at the test split, once.

    Args:
        run: the run.
        entry: the network.
        network: with the weights that its training ended with.
        epochs: that it trained.
        about: what else is told of the training.
    """
    spec, task, model = run.spec, run.quick_task, network.network
    with cpu_threads(spec.budget.retrain.threads):
        valid = score(task, model, entry.architecture, task.valid, device=spec.device)
        error = loss_error(task, model, entry.architecture, task.valid, device=spec.device)
        test = score(task, model, entry.architecture, task.open_test(), device=spec.device)
        distances = {}
        if spec.start is not None:
            distances = by_distance(task, model, entry.architecture, task.valid, device=spec.device)
    result = {
        "schema": _schema(about or {}, error),
        "id": entry.id,
        "architecture": entry.architecture.to_json(),
        "task": run.space.task,
        "dataset": task.name,
        **scores_json(test, valid),
        **({} if error is None else {"loss_error": error}),
        "epochs": epochs,
        "seed": spec.seed,
        "params": params(run.space.model, run.space.task, entry.architecture),
        **(about or {}),
        **({"by_distance": distances} if distances else {}),
    }
    return result


def _schema(about: Mapping[str, Any], error: float | None) -> int:
    if "asked_epochs" in about:
        return ASKED_SCHEMA
    return ERROR_SCHEMA if error is not None else TUNED_SCHEMA if about else SCHEMA


def scores_json(test: Scores, valid: Scores) -> dict[str, float | str]:
    """The scores of both splits; the one that the task is known by comes first.

    A split without a recalled token has no score of those; the other one may have.
    """
    names = sorted({**test.values, **valid.values}, key=lambda name: name != test.headline)
    result: dict[str, float | str] = {}
    for split, scores in (("test", test.values), ("valid", valid.values)):
        result |= {f"{split}_{name}": scores[name] for name in names if name in scores}
    if test.bleu_signature is not None:
        result["bleu_signature"] = test.bleu_signature
    return result
