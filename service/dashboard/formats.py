"""How numbers and moments are written on the pages."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from service.jobs.states import Job, State

SIZES = ("bytes", "kB", "MB", "GB")


def duration(seconds: float) -> str:
    """Seconds as the report says them."""
    from nas.report import words  # brings along what plots reports

    return words.duration(max(seconds, 0.0))


def moment(seconds: float | None) -> str:
    """A moment as ``2026-03-01 12:00`` in UTC."""
    if seconds is None:
        return "–"
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M")


def clock(seconds: float) -> str:
    """The time of day of a moment, in UTC."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%H:%M:%S")


def iso(seconds: float) -> str:
    """A moment as machines read it."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


def size(count: int) -> str:
    """Bytes in the largest unit that leaves a number of at least one."""
    number, unit = float(count), 0
    while number >= 1000 and unit < len(SIZES) - 1:
        number, unit = number / 1000, unit + 1
    return f"{number:.0f} {SIZES[unit]}" if unit == 0 else f"{number:.1f} {SIZES[unit]}"


def share(number: float | None) -> str:
    """A share between 0 and 1 with three decimals."""
    return "–" if number is None else f"{number:.3f}"


def digits(number: int) -> str:
    """A count as the report writes it: whole, or as a power of ten."""
    from nas.report import words

    return words.count(number)


def worked_s(job: Job) -> float:
    """Seconds of work that a job has taken: of its ended stages, and of the one it is in."""
    begun = job.summary.stage_at
    running = job.state is State.running and begun is not None
    return job.summary.worked_s + (time.time() - begun if running and begun else 0.0)


def left_s(job: Job) -> float | None:
    """Seconds until the present stage will end if it goes on as it did; None when unknown."""
    summary = job.summary
    if job.state is not State.running or summary.stage_at is None:
        return None
    if not 0 < summary.done < summary.total:
        return None
    return (time.time() - summary.stage_at) / summary.done * (summary.total - summary.done)


def told(event: Mapping[str, Any]) -> str:
    """What an event of `nas.run.events` or of the store tells, in a few words."""
    match event.get("event"):
        case "StateChanged":
            change = f"{event['before']} → {event['state']}" if event["before"] else event["state"]
            return f"{change}: {event['reason']}" if event.get("reason") else str(change)
        case "Progress":
            steps = f"{event['stage']}: {event['done']} of {event['total']}"
            return f"{steps}, {event['message']}" if event.get("message") else steps
        case "ArchitectureMeasured":
            numbers = ", ".join(f"{name} {value:.4g}" for name, value in event["metrics"].items())
            return f"{event['architecture_id']}: {numbers}"
        case "EvaluationFailed":
            return f"{event['architecture_id']} failed ({event['kind']}): {event['reason']}"
        case "FrontUpdated":
            return f"{len(event['points'])} networks, hypervolume {event['hypervolume']:.3f}"
        case "StageFinished":
            return f"{event['stage']}: {event['seconds']:.1f} s"
        case _:
            return str(event.get("message") or event.get("label") or event.get("stage") or "")


FILTERS: dict[str, Callable[..., Any]] = {
    "duration": duration,
    "moment": moment,
    "clock": clock,
    "iso": iso,
    "size": size,
    "share": share,
    "digits": digits,
    "worked_s": worked_s,
    "left_s": left_s,
    "told": told,
}
