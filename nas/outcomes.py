"""What became of an evaluation, as a line of a journal and as an event.

A network that could not be evaluated has a line like any other, with ``failed`` in the place of
what it is worth. It is not tried again in this run; searchers are told that it is worth nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nas.executors.base import Failure, Outcome
from nas.run.events import ArchitectureMeasured, EvaluationFailed, Event
from nas.run.folder import RunFolder
from search_spaces.architecture import Architecture
from search_spaces.errors import DivergedError, EvaluationError, NasError
from search_spaces.json_text import parse_json

FAILED = "failed"
JOURNALS = ("observations.jsonl", "verification.jsonl")
# So many failures, and more of them than of the rest, are no accident.
MANY_FAILURES = 8
# Fewer than that cannot be compared.
FEWEST = 2


@dataclass(frozen=True)
class FailedNetwork:
    """A network that could not be evaluated."""

    architecture: Architecture
    failure: Failure


def values_of(outcome: Outcome) -> dict[str, Any]:
    """What a journal's line says of it."""
    return {FAILED: outcome.to_json()} if isinstance(outcome, Failure) else dict(outcome)


def failed(line: Mapping[str, Any]) -> bool:
    """Whether the line is that of a network which could not be evaluated."""
    return FAILED in line


def read_failed(run: Path) -> tuple[FailedNetwork, ...]:
    """The networks of a run folder that could not be evaluated, each once.

    A line that cannot be read is left to those who need it.
    """
    found = {}
    for name in JOURNALS:
        for line in _lines(run / name):
            try:
                network = Architecture.from_json(line["architecture"])
                found[network.id] = FailedNetwork(network, Failure.from_json(line[FAILED]))
            except (LookupError, TypeError, NasError):
                continue
    return tuple(found.values())


def _lines(file: Path) -> Iterator[Mapping[str, Any]]:
    """The whole lines of a journal that are those of failures."""
    text = file.read_text("utf-8", "replace") if file.exists() else ""
    for line in text[: text.rfind("\n") + 1].splitlines():
        if f'"{FAILED}"' not in line:  # most are not, and reading them takes long
            continue
        try:
            values = parse_json(line)
        except ValueError:
            continue
        if isinstance(values, dict) and failed(values):
            yield values


def told(stage: str, network: Architecture, outcome: Outcome) -> Event:
    """The event of an evaluation."""
    if isinstance(outcome, Failure):
        return EvaluationFailed(stage, network.id, outcome.kind, outcome.reason, outcome.tries)
    return ArchitectureMeasured(stage, network.id, outcome)


def hopeless(lines: Iterable[Mapping[str, Any]]) -> NasError | None:
    """Why it makes no sense to go on; None while it does.

    Args:
        lines: of the networks so far.

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
        return DivergedError(
            f"the validation loss of {len(failures)} of {len(every)} networks is not a number; "
            "the supernet has diverged: lower supernet.learning_rate"
        )
    return _unusable(failures, len(every))


def too_few(lines: Iterable[Mapping[str, Any]], least: int) -> NasError | None:
    """The error to end with when failures leave fewer networks than a ranker needs."""
    every = list(lines)
    failures = [Failure.from_json(line[FAILED]) for line in every if failed(line)]
    if not failures or len(every) - len(failures) >= least:
        return None
    return _unusable(failures, len(every))


def give_up(folder: RunFolder, stage: str, journals: Iterable[str], error: NasError | None) -> None:
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
