"""What a run tells while it works.

Stages yield these; the command line turns them into progress bars, the run folder keeps them in
``events.jsonl``, listeners pass them on to loggers, a service can stream them. Nobody prints.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, get_args


@dataclass(frozen=True, slots=True)
class StageStarted:
    """A stage begins; `total` is its number of steps where that is known."""

    stage: str
    label: str
    total: int | None = None


@dataclass(frozen=True, slots=True)
class StageSkipped:
    """A stage was found finished."""

    stage: str
    label: str


@dataclass(frozen=True, slots=True)
class StageFinished:
    """A stage ended well after `seconds` of this process's time."""

    stage: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Progress:
    """`done` of `total` steps of a stage, with a few words and numbers on how it goes."""

    stage: str
    done: int
    total: int
    message: str = ""
    values: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ArchitectureMeasured:
    """One network was really measured (not predicted, not taken from a cache)."""

    stage: str
    architecture_id: str
    metrics: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class EvaluationFailed:
    """A network could not be evaluated, however often it was tried; the search goes on.

    `kind` is one of `nas.executors.base.FailureKind`.
    """

    stage: str
    architecture_id: str
    kind: str
    reason: str
    tries: int


@dataclass(frozen=True, slots=True)
class FrontUpdated:
    """The Pareto front as known now: one mapping of metrics per network."""

    stage: str
    points: tuple[Mapping[str, float], ...]
    hypervolume: float


@dataclass(frozen=True, slots=True)
class DurationTold:
    """How long a search will take, before it works; or why that cannot be told.

    `stages` are those that are left, as in `nas.run.duration.StageDuration`, `seconds` of all that
    were told first, and `about` says what from.
    """

    stage: str
    stages: tuple[Mapping[str, Any], ...]
    seconds: float
    about: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Note:
    """Something the user should know, for example that pruning was refused and why.

    A loud one says that the result cannot be trusted as it is. What `message` names of a request,
    or advises to do, are marks of `search_spaces.wording`.
    """

    stage: str
    message: str
    details: Mapping[str, Any] = field(default_factory=dict)
    loud: bool = False


Event = (
    StageStarted
    | StageSkipped
    | StageFinished
    | Progress
    | ArchitectureMeasured
    | EvaluationFailed
    | FrontUpdated
    | DurationTold
    | Note
)


def worded(event: Event, words: Callable[[str], str]) -> Event:
    """The event as its reader is told of it.

    Args:
        event: what it says may have the marks of `search_spaces.wording`.
        words: which puts the reader's words there.
    """
    match event:
        case Note(message=message):
            return replace(event, message=words(message))
        case DurationTold(reason=reason):
            return replace(event, reason=words(reason))
        case _:
            return event


def event_to_json(event: Event) -> dict[str, Any]:
    """The event with its type's name under ``event``."""
    return {"event": type(event).__name__, **asdict(event)}


def event_from_json(data: Mapping[str, Any]) -> Event | None:
    """The event that `event_to_json` gave; None for one that this version does not know."""
    kind = _KINDS.get(str(data.get("event")))
    if kind is None:
        return None
    known = {one.name for one in fields(kind)}
    try:
        return kind(**{name: value for name, value in data.items() if name in known})
    except TypeError:  # a field is missing: it was written by another version
        return None


_KINDS: dict[str, type[Event]] = {kind.__name__: kind for kind in get_args(Event)}
