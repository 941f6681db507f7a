"""The stage that begins the training of several candidates and goes on with the better ones.

Successive halving, see `nas.request.halving`: at every stop the better half stays, and the training
of the last one left goes on to its end. Which network wins then, see `nas.stages.retrain.settle`.

The schedule of the learning rate is that of the whole training, so that the winner's goes on as if
it had been alone.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Generator, Iterator
from dataclasses import replace

from nas.objectives import QUALITY
from nas.request.halving import legs, stops
from nas.request.picks import saving_of
from nas.request.spec import SearchSpec
from nas.run.duration import (
    CHECK,
    CHOSEN_UPDATE,
    PLAIN_UPDATE,
    Asked,
    Part,
    Plan,
    Training,
    counted,
)
from nas.run.events import Event, Note, Progress
from nas.run.layout import HALVING_FILE, begun_file, checkpoints_folder
from nas.run.stages import RETRAIN
from nas.search.front import Front, pick, read_front, read_left
from nas.stages.base import Run
from search_spaces.errors import UsageError

STAGE = "halve"
COMPUTED = ("latency_ms", "prefill_ms", "flops")  # costs to which an update's is in proportion


def work(run: Run) -> Iterator[Event]:
    """Train until one candidate is left; what was reached before a kill is not trained again."""
    try:
        ids = candidates(read_front(run.folder), run.spec.pick, run.spec.retrain)
    except UsageError:  # nothing on the front is what the request picks, which retraining tells
        run.folder.append(HALVING_FILE, [])
        return
    if read_left(run.folder) is None:  # else killed when all was trained
        left = yield from _left(run, ids)
        run.folder.append(HALVING_FILE, [{"winner": left}])
        yield Progress(STAGE, len(ids), len(ids), f"{left} is left of {len(ids)}")
    trained = {read_left(run.folder)}
    trained |= {one.entry.id for one in read_front(run.folder).baselines}
    for one in ids:
        # What somebody had begun to train is trained behind the search, see `search_ids`.
        if one not in trained and not run.folder.has(begun_file(RETRAIN + one)):
            shutil.rmtree(run.folder.path / checkpoints_folder(one), ignore_errors=True)


def _left(run: Run, ids: list[str]) -> Generator[Event, None, str]:
    """The last candidate that is left."""
    from nas.executors.retraining.stage import REACHED  # imports torch

    left, settings = list(ids), run.spec.budget.retrain
    lines, by = run.folder.read_journal(HALVING_FILE), run.spec.kept_by.name
    if settings.check_every >= settings.epochs and len(left) > 1:
        yield Note(STAGE, "no check comes before the end of a training: the picked network wins")
        left = left[:1]
    for share in stops(len(left)):
        known = {
            one["id"]: one["loss"]
            for one in lines
            if one.get("share") == share and one.get("by", "loss") == by
        }
        missing = [one for one in left if one not in known]
        for event in run.executor.retrain(run, missing, share) if missing else ():
            if isinstance(event, Note):
                yield replace(event, stage=STAGE)
            if isinstance(event, Progress) and REACHED in event.values:
                name = event.stage.removeprefix(RETRAIN)
                known[name] = event.values[REACHED]
                line = {"share": share, "id": name, "loss": known[name]}
                line |= {} if by == "loss" else {"by": by}
                run.folder.append(HALVING_FILE, [line])
                yield Progress(STAGE, len(known), len(left), f"{name}: {known[name]:.4g}")
        # One without a loss has diverged.
        left.sort(key=lambda one: (one not in known, known.get(one, 0.0), ids.index(one)))
        left = left[: (len(left) + 1) // 2]
    return left[0]


def candidates(front: Front, how: str, number: int) -> list[str]:
    """The ids of the picked network and of those whose quality is nearest to its own.

    Args:
        front: where from.
        how: what is picked, see `nas.search.front.pick`; raises as that does.
        number: most of them.
    """
    picked = pick(front, how)

    def distance(quality: float) -> float:
        return abs(quality - picked.value(QUALITY))

    others = [entry for entry in front.entries if entry.id != picked.id]
    others.sort(key=lambda entry: (distance(entry.value(QUALITY)), entry.id))
    return [picked.id, *(entry.id for entry in others[: number - 1])]


def plan(asked: Asked) -> Plan:
    """How much there is to do: every candidate up to the stop at which it is left."""
    number, settings = asked.spec.retrain, asked.spec.budget.retrain
    training = asked.training(settings)
    parts, trained = [], 0.0
    for left, share in legs(number, stops_of(asked)):
        trained += left * share
        parts += training_parts(asked.spec, training, left * share, left)
    return Plan(
        f"{counted(asked.spec.retrain, 'candidate')}, {trained:.2g} trainings", tuple(parts)
    )


def stops_of(asked: Asked) -> list[float]:
    """The shares at which candidates of a request stop; none where no check comes before the end.

    A training stops at its next check.
    """
    every, epochs = asked.spec.budget.retrain.check_every, asked.spec.budget.retrain.epochs
    if every >= epochs:
        return []
    planned = asked.training(asked.spec.budget.retrain).epochs
    checks = [math.ceil(share * planned / every) * every for share in stops(asked.spec.retrain)]
    return [min(1.0, check / planned) for check in checks]


def training_parts(spec: SearchSpec, training: Training, times: float, pieces: int) -> list[Part]:
    """What so many trainings of a chosen network take; workers share the pieces.

    Nobody knows its size yet, see `nas.stages.calibration`; but a pick may say how much less it
    computes than the checkpoint, which is the largest.
    """
    unit, updates, saving = CHOSEN_UPDATE, times * training.updates, saving_of(spec.pick)
    whole = spec.start is not None and not isinstance(spec.baseline, dict)  # "plain" is it then
    if whole and saving is not None and spec.objectives[1] in COMPUTED:
        unit, updates = PLAIN_UPDATE, updates / saving
    return [
        Part(unit, updates, pieces),
        Part(CHECK, times * training.checks, pieces),
    ]
