"""Which networks are trained from scratch, after a search or when somebody asks for it.

How one is, see `nas.executors.retraining.stage`; where, is the executor's business.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from nas.executors.base import ExecutorSettings
from nas.executors.opening import open_executor
from nas.executors.retraining.stage import change_asked
from nas.objectives import OBJECTIVES
from nas.objectives.quality import NOISE
from nas.request.picks import SENSIBLE
from nas.request.spec import SearchSpec
from nas.run.duration import CHECK, PLAIN_UPDATE, SCORE, Asked, Part, Plan, counted
from nas.run.events import Event, Note
from nas.run.folder import RunFolder, resuming
from nas.run.layout import WINNER_FILE, begun_file, record_file, result_file
from nas.run.stages import RETRAIN
from nas.search.front import (
    SAME_COST,
    Front,
    FrontEntry,
    pick,
    read_front,
    read_left,
    read_winner,
    winner,
)
from nas.stages.base import Run
from nas.stages.baseline import num_baselines
from nas.stages.halve import stops_of, training_parts
from search_spaces.errors import DamagedRunError, NasError


def retrain(
    folder: RunFolder,
    how: str | Sequence[str],
    settings: ExecutorSettings | None = None,
    trials: int | None = None,
    epochs: int | None = None,
) -> Iterator[Event]:
    """Retrain networks of a finished search.

    What was asked of the training of a network before, and is not asked anew, still holds.

    Args:
        folder: the run.
        how: ``knee``, ``best`` or an id, see `nas.search.front.pick`; or several.
        settings: where; in this process, one after the other, if not given.
        trials: settings to try for each; 0 for the run's own.
        epochs: of each training; 0 for the run's own.

    Raises:
        UsageError: when the run has no front yet, no such network, or no device for trials.
        DamagedRunError: when the front was changed since the search wrote it.
    """
    from nas.stages.report import report

    with folder.locked(), open_executor(settings or ExecutorSettings(), folder) as executor:
        run = Run(folder, executor)
        check_front(folder)
        front = read_front(folder)
        ids = [pick(front, one).id for one in ([how] if isinstance(how, str) else how)]
        if trials is not None or epochs is not None:
            executor.check(folder.spec)  # results go with what is asked for anew
            for network_id in ids:
                change_asked(folder, network_id, trials, epochs)
        try:
            yield from executor.retrain(run, list(dict.fromkeys(ids)))
        except NasError:  # a training that diverged; of all others the report tells
            yield from report(run)
            raise
        yield from report(run)


def search_ids(run: Run) -> list[str]:
    """What a search retrains: the picked network, the baselines, and those begun earlier.

    A record that cannot be read, of a network that is no longer on the front, is dropped.
    """
    front = read_front(run.folder)
    chosen = winner(front, run.spec.pick, read_winner(run.folder)).id
    first = [chosen, *(one.entry.id for one in front.baselines)]
    known = {entry.id for entry in front.networks}
    names = [file(f"{RETRAIN}*") for file in (record_file, begun_file)]
    begun = {Path(one).stem for name in names for one in run.folder.found(name)}
    others = {name.removeprefix(RETRAIN) for name in begun} - set(first)
    for network_id in others - known:
        try:
            run.folder.record(RETRAIN + network_id)
        except DamagedRunError:
            run.folder.forget(RETRAIN + network_id, ())
    return list(dict.fromkeys([*first, *sorted(others & known)]))


def settle(run: Run) -> Iterator[Event]:
    """Let the cheapest network win whose training ended within the noise of the best.

    All that may win are trained whole by now, what halving left and plain networks, and what was
    ahead at half of a training may not be at its end. Noise is the error of the best one's
    validation loss, or `NOISE` of it where that is more. Networks of a checkpoint are compared by
    what the search looks for. A winner that halving has not left is
    told of once.
    """
    left = read_left(run.folder)
    best = None if left is None else _cheapest_of_the_best(run, left)
    if left is None or best in (None, left):
        (run.folder.path / WINNER_FILE).unlink(missing_ok=True)
    elif read_winner(run.folder) != best:
        run.folder.write_json(WINNER_FILE, {"left": left, "winner": best})
        quality = run.spec.kept_by
        results = (run.folder.read_json(result_file(one)) for one in (best, left))
        mine, other = map(quality.of_measured, results)
        yield Note(
            f"{RETRAIN}{best}",
            f"the plain network {best} wins with a {quality.objective.label} of {mine:.4g}: "
            f"{left}, which the halving left, ended with {other:.4g}",
        )


def _cheapest_of_the_best(run: Run, left: str) -> str:
    """The id of the winner: a plain network, or what halving left."""
    front = read_front(run.folder)
    entries = {entry.id: entry for entry in front.networks}
    rivals = plain_rivals(front, run.spec)
    losses, errors, quality = {}, {}, run.spec.kept_by
    for one in dict.fromkeys([left, *rivals]):
        if one in entries and run.folder.has(result_file(one)):
            result = run.folder.read_json(result_file(one))
            if "asked_epochs" in result or quality.measured_name not in result:
                continue  # not trained as long as the others, or not known to be worth it
            losses[one] = quality.of_measured(result)
            if quality.name == "loss":
                errors[one] = float(result.get("loss_error", 0.0))
    if left not in losses:  # its training has diverged
        return left
    best = min(losses, key=losses.__getitem__)
    noise = max(errors.get(best, 0.0), NOISE * abs(losses[best]))
    good = [one for one, loss in losses.items() if loss <= losses[best] + noise]
    known = entries[left if left in good else best]
    costs = [objective.name for objective in front.objectives[1:]]
    cheaper = [one for one in rivals if one in good and no_dearer(entries[one], known, costs)]
    return min(cheaper, key=losses.__getitem__, default=known.id)


def plain_rivals(front: Front, spec: SearchSpec) -> list[str]:
    """The ids of the plain baselines where these may win beside the front.

    None where the request says itself what it picks, or trains the picked network alone; and none
    under a limit that is not counted, for baselines are not timed as often as what keeps limits.

    Args:
        front: where from.
        spec: the request.
    """
    counted_limits = all(OBJECTIVES[name].count is not None for name in spec.limits)
    if spec.pick != SENSIBLE or spec.retrain < 2 or not counted_limits:
        return []
    return [one.entry.id for one in front.baselines if one.plain]


def no_dearer(entry: FrontEntry, other: FrontEntry, costs: Iterable[str]) -> bool:
    """Whether a network costs at most what is called equal to what another costs, see `SAME_COST`.

    Of a doubtful cost the predicted one decides, where there is one.
    """
    for name in costs:
        mine, most = entry.value(name), other.value(name)
        if name in {*entry.doubtful, *other.doubtful} and name in entry.predicted:
            mine, most = entry.predicted[name], other.predicted.get(name, most)
        one = OBJECTIVES[name]
        if one.minimised(mine) > (1 + SAME_COST) * one.minimised(most):
            return False
    return True


def check_front(folder: RunFolder) -> None:
    """See that the front is the one that the search wrote.

    Raises:
        DamagedRunError: when it is not.
    """
    record = folder.record("front")
    damage = None if record is None else folder.damage(record)
    if damage is not None:
        raise DamagedRunError(f"{damage}; {resuming(folder.path)} makes it anew")


def plan(asked: Asked) -> Plan:
    """How much there is to do: the rest of the winner's training, and those of the baselines.

    Each network is scored on the validation and on the test split, which counts as large as the
    whole validation split.
    """
    training, beside = asked.training(asked.spec.budget.retrain), num_baselines(asked)
    stopped = stops_of(asked)[-1:] if asked.spec.retrain > 1 else []
    rest, networks = 1.0 - sum(stopped), 1 + beside
    # One of the baselines is the largest plain network, the other one is of the winner's cost.
    parts = training_parts(asked.spec, training, rest + max(0, beside - 1), networks)
    if beside:
        parts += [
            Part(PLAIN_UPDATE, training.updates, networks),
            Part(CHECK, training.checks, networks),
        ]
    parts.append(Part(SCORE, networks * (1 + asked.test_share), networks))
    what = f"the winner and {counted(beside, 'baseline')}" if beside else "the winner"
    return Plan(f"{what}, {training.text} each", tuple(parts))
