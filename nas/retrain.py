"""Trains a chosen network from scratch and scores it once on the test split.

It opens the test split as its very last step. No stage before it does, and after it only
`nas.trained`, when a user asks for the scores of a network by name.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import torch

from nas.events import ArchitectureMeasured, Event, Progress
from nas.front import FrontEntry, pick, read_front
from nas.run_folder import RunFolder
from nas.stage_runner import run_stage
from nas.stages import Run, Stage
from nas.stages.learn import training_losses
from search_spaces.costs import params
from search_spaces.errors import DamagedRunError
from supernet.building import build_network
from supernet.tasks.scores import Scores, score
from supernet.training.checkpoint import CheckpointFolder, load, save
from supernet.training.loop import Trainer
from supernet.training.sampling import SingleNetwork

SCHEMA = 2


def retrain(folder: RunFolder, how: str) -> Iterator[Event]:
    """Retrain a network of a finished search.

    Args:
        folder: the run.
        how: ``knee``, ``best`` or an id, see `nas.front.pick`.

    Raises:
        UsageError: when the run has no front yet, or no such network.
        DamagedRunError: when the front was changed since the search wrote it.
    """
    from nas.stages.report import report_stage

    run = Run(folder)
    with folder.locked():
        _check_front(folder)
        stage = retrain_stage(run, how)
        yield from run_stage(run, stage)
        yield from run_stage(run, report_stage(folder))


def retrain_stage(run: Run, how: str) -> Stage:
    """The stage that retrains one network; networks have their own records."""
    entry = pick(read_front(run.folder), how)
    where = f"retrained/{entry.id}"
    return Stage(
        f"retrain-{entry.id}",
        f"Retrain {entry.id}",
        ("declare",),
        (f"{where}/result.json", f"{where}/weights.pt"),
        lambda run: _retrain(run, entry),
        (f"{where}/checkpoints",),
    )


def other_stages(run: Run) -> list[Stage]:
    """Networks besides the picked one whose retraining was begun earlier, by their ids.

    A record that cannot be read, of a network that is no longer on the front, is dropped.
    """
    picked = retrain_stage(run, run.spec.pick).name
    known = {f"retrain-{entry.id}": entry.id for entry in read_front(run.folder).entries}
    begun = {file.stem for file in (run.folder.path / "stages").glob("retrain-*")} - {picked}
    for name in begun - known.keys():
        try:
            run.folder.record(name)
        except DamagedRunError:
            run.folder.forget(name, ())
    return [retrain_stage(run, known[name]) for name in sorted(begun & known.keys())]


def _check_front(folder: RunFolder) -> None:
    record = folder.record("front")
    damage = None if record is None else folder.damage(record)
    if damage is not None:
        raise DamagedRunError(f"{damage}; nas resume {folder.path} makes it anew")


def _retrain(run: Run, entry: FrontEntry) -> Iterator[Event]:
    stage = f"retrain-{entry.id}"
    spec, settings = run.spec, run.spec.budget.retrain
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(spec.seed)
        network = build_network(
            run.space.model, run.space.task, entry.architecture, settings.dropout
        )
    where = run.folder.path / "retrained" / entry.id
    checkpoints = CheckpointFolder(where / "checkpoints", f"{spec.digest}:{entry.id}")
    if (where / "result.json").exists():
        # Killed between the last step and the stage's record: the test split is not read again.
        run.folder.read_json(f"retrained/{entry.id}/result.json")
        load(where / "weights.pt")
        shutil.rmtree(checkpoints.path, ignore_errors=True)
        return
    trainer = Trainer(
        network.network,
        SingleNetwork(entry.architecture),
        [entry.architecture],
        run.quick_task,
        settings,
        seed=spec.seed,
        device=spec.device,
        folder=checkpoints,
    )
    for report in trainer.run():
        message = f"loss {report.train_loss:.3f}"
        if report.probe_losses:
            message += f", validation {report.probe_losses[0]:.3f}"
        yield Progress(stage, report.epoch, report.epochs, message, training_losses(report))
    weights = trainer.final_weights()
    network.network.load_state_dict(weights)
    task, model = run.quick_task, network.network
    valid = score(task, model, entry.architecture, task.valid, device=spec.device)
    save(where / "weights.pt", {"model": weights, "architecture": entry.architecture.to_json()})
    test = score(task, model, entry.architecture, task.open_test(), device=spec.device)
    result = {
        "schema": SCHEMA,
        "id": entry.id,
        "architecture": entry.architecture.to_json(),
        "task": run.space.task,
        "dataset": task.name,
        **scores_json(test, valid),
        "epochs": len(trainer.history),
        "seed": spec.seed,
        "params": params(run.space.model, run.space.task, entry.architecture),
    }
    run.folder.write_json(f"retrained/{entry.id}/result.json", result)
    shutil.rmtree(checkpoints.path)
    name = f"test_{test.headline}"
    yield ArchitectureMeasured(stage, entry.id, {name: test.values[test.headline]})


def scores_json(test: Scores, valid: Scores) -> dict[str, float | str]:
    """The scores of both splits; the one that the task is known by comes first."""
    names = sorted(test.values, key=lambda name: name != test.headline)
    result: dict[str, float | str] = {f"test_{name}": test.values[name] for name in names}
    result |= {f"valid_{name}": valid.values[name] for name in names}
    if test.bleu_signature is not None:
        result["bleu_signature"] = test.bleu_signature
    return result
