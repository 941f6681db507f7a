"""The stage that begins the training of several candidates and goes on with the better ones.

Successive halving, see `nas.request.halving`: at every stop the better half stays, and the last one
left is the winner, whose training then goes on to its end.

Beside the candidates of the front stand the plain networks that are trained in any case, to hold
the winner against, where they cost no more than what is picked: supernets may prefer a mix of kinds
of attention that is worse when it is trained alone (experiments/LOG.md, 2026-11-27).

The schedule of the learning rate is that of the whole training, so that the winner's goes on as if
it had been alone.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterator
from dataclasses import replace

from nas.objectives import OBJECTIVES, QUALITY
from nas.request.halving import legs, stops
from nas.request.picks import SENSIBLE
from nas.request.spec import SearchSpec
from nas.run.duration import CHECK, CHOSEN_UPDATE, Asked, Part, Plan, Training, counted
from nas.run.events import Event, Note, Progress
from nas.run.layout import HALVING_FILE, begun_file, checkpoints_folder
from nas.run.stages import RETRAIN
from nas.search.front import SAME_COST, Front, FrontEntry, pick, read_front, read_winner
from nas.stages.base import Run
from search_spaces.errors import UsageError

STAGE = "halve"


def work(run: Run) -> Iterator[Event]:
    """Train until one candidate is left; what was reached before a kill is not trained again."""
    from nas.executors.retraining.stage import REACHED  # imports torch

    try:
        front = read_front(run.folder)
        left = candidates(front, run.spec.pick, run.spec.retrain)
        number = len(left)
        left += [one for one in plain_rivals(front, run.spec) if one not in left]
    except UsageError:  # nothing on the front is what the request picks, which retraining tells
        run.folder.append(HALVING_FILE, [])
        return
    everyone, settings = list(left), run.spec.budget.retrain
    if read_winner(run.folder) is not None:  # killed when all was done
        return
    lines = run.folder.read_journal(HALVING_FILE)
    if settings.check_every >= settings.epochs and len(left) > 1:
        yield Note(STAGE, "no check comes before the end of a training: the picked network wins")
        left = left[:1]
    # What is trained in any case makes no stop earlier.
    for share in stops(min(len(left), max(number, 2))):
        known = {one["id"]: one["loss"] for one in lines if one.get("share") == share}
        missing = [one for one in left if one not in known]
        for event in run.executor.retrain(run, missing, share) if missing else ():
            if isinstance(event, Note):
                yield replace(event, stage=STAGE)
            if isinstance(event, Progress) and REACHED in event.values:
                name = event.stage.removeprefix(RETRAIN)
                known[name] = event.values[REACHED]
                line = {"share": share, "id": name, "loss": known[name]}
                run.folder.append(HALVING_FILE, [line])
                yield Progress(STAGE, len(known), len(left), f"{name}: {known[name]:.4g}")
        # One without a loss has diverged.
        left.sort(key=lambda one: (one not in known, known.get(one, 0.0), everyone.index(one)))
        left = left[: (len(left) + 1) // 2]
    trained = {left[0], *(baseline.entry.id for baseline in front.baselines)}
    for one in everyone:
        # What somebody had begun to train is trained behind the search, see `search_ids`.
        if one not in trained and not run.folder.has(begun_file(RETRAIN + one)):
            shutil.rmtree(run.folder.path / checkpoints_folder(one), ignore_errors=True)
    run.folder.append(HALVING_FILE, [{"winner": left[0]}])
    yield Progress(STAGE, len(everyone), len(everyone), f"{left[0]} is left of {len(everyone)}")


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


def plain_ones(front: Front, spec: SearchSpec) -> list[FrontEntry]:
    """The plain baselines, which may win beside the front.

    None where the request says itself what it picks, or trains the picked network alone; and none
    under a limit that is not counted, for baselines are not timed as often as what keeps limits.

    Args:
        front: where from.
        spec: the request.
    """
    counted_limits = all(OBJECTIVES[name].count is not None for name in spec.limits)
    if spec.pick != SENSIBLE or spec.retrain < 2 or not counted_limits:
        return []
    return [one.entry for one in front.baselines if one.plain]


def plain_rivals(front: Front, spec: SearchSpec, beside: FrontEntry | None = None) -> list[str]:
    """The ids of the plain networks that may win and cost no more than a network in any objective.

    Args:
        front: where from.
        spec: the request.
        beside: the network; that which is picked if not given.

    Raises as `nas.search.front.pick`.
    """
    plain = plain_ones(front, spec)
    if not plain:
        return []
    picked, costs = beside or pick(front, spec.pick), [one.name for one in front.objectives[1:]]

    def affordable(entry: FrontEntry) -> bool:
        for name in costs:
            one = OBJECTIVES[name]
            mine, most = entry.value(name), picked.value(name)
            # A doubtful value decides nothing where there is another.
            if name in {*entry.doubtful, *picked.doubtful} and name in entry.predicted:
                mine, most = entry.predicted[name], picked.predicted.get(name, most)
            if one.minimised(mine) > (1 + SAME_COST) * one.minimised(most):
                return False
        return True

    return [entry.id for entry in plain if affordable(entry)]


def plan(asked: Asked) -> Plan:
    """How much there is to do: every candidate up to the stop at which it is left.

    What plain networks are trained for beside them is told with the rest of their training.
    """
    number, settings = asked.spec.retrain, asked.spec.budget.retrain
    training = asked.training(settings)
    parts, trained = [], 0.0
    for left, share in legs(number, stops_of(asked)):
        trained += left * share
        parts += training_parts(training, left * share, left)
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


def training_parts(training: Training, times: float, pieces: int) -> list[Part]:
    """What so many trainings of a chosen network take; workers share the pieces.

    Nobody knows its size yet, see `nas.stages.calibration`.
    """
    return [
        Part(CHOSEN_UPDATE, times * training.updates, pieces),
        Part(CHECK, times * training.checks, pieces),
    ]
