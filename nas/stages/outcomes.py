"""Evaluation outcomes as lines of a journal and as events, and when failures end a stage.

A network that could not be evaluated is not tried again in this run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from nas.executors.base import Failure, Outcome
from nas.results.failures import FAILED, failed
from nas.run.events import ArchitectureMeasured, EvaluationFailed, Event
from nas.run.folder import RunFolder
from search_spaces.errors import DivergedError, EvaluationError, NasError
from search_spaces.genotypes import Network

# So many failures, and more of them than of the rest, are no accident.
MANY_FAILURES = 8
# Fewer than that cannot be compared.
FEWEST = 2


def values_of(outcome: Outcome) -> dict[str, Any]:
    """What a journal's line says of it."""
    return {FAILED: outcome.to_json()} if isinstance(outcome, Failure) else dict(outcome)


def to_event(stage: str, network: Network, outcome: Outcome) -> Event:
    """The event of an evaluation."""
    if isinstance(outcome, Failure):
        return EvaluationFailed(stage, network.id, outcome.kind, outcome.reason, outcome.tries)
    return ArchitectureMeasured(stage, network.id, outcome)


def too_many_failures(lines: Iterable[Mapping[str, Any]], alone: bool) -> NasError | None:
    """Why it makes no sense to go on; None while it does.

    Args:
        lines: of the networks so far.
        alone: whether each was trained alone.

    Returns:
        The error to end with, when there are many failures and more of them than of the rest.
    """
    every = list(lines)
    failures = [Failure.from_json(line[FAILED]) for line in every if failed(line)]
    good = len(every) - len(failures)
    many = len(failures) >= MANY_FAILURES and len(failures) > good
    if not many and not (len(every) >= MANY_FAILURES and good < FEWEST):
        return None
    if all(failure.kind == "not finite" for failure in failures):
        cause = (
            "their short trainings diverge: lower retrain.learning_rate"
            if alone
            else "the supernet has diverged: lower supernet.learning_rate"
        )
        return DivergedError(
            f"the validation loss of {len(failures)} of {len(every)} networks is not a number; "
            f"{cause}"
        )
    return _unusable(failures, len(every))


def too_few_observations(lines: Iterable[Mapping[str, Any]], least: int) -> NasError | None:
    """The error to end with when failures leave fewer networks than a ranker needs."""
    every = list(lines)
    failures = [Failure.from_json(line[FAILED]) for line in every if failed(line)]
    if not failures or len(every) - len(failures) >= least:
        return None
    return _unusable(failures, len(every))


def abort_stage(
    folder: RunFolder, stage: str, journals: Iterable[str], error: NasError | None
) -> None:
    """End a stage with an error, if there is one, and keep nothing: a later try is a new one."""
    if error is not None:
        folder.forget(stage, journals)
        raise error


def _unusable(failures: list[Failure], count: int) -> EvaluationError:
    first = failures[0]
    return EvaluationError(
        f"{len(failures)} of {count} networks could not be evaluated, too many to go on; the first "
        f"one ({first.kind}): {first.reason}; mend that and resume, and they are tried again"
    )
