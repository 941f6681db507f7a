"""Reads the new events of a run, and folds them into the numbers that a list of jobs shows."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from nas.objectives import QUALITY
from search_spaces.files import whole_lines
from service.jobs.states import Summary
from service.settings import places_of

MOST_BYTES = 1_000_000
LONGEST_MESSAGE = 300
# The stages that ask for the quality of networks of the space. Others measure costs alone, or score
# the checkpoint that a search begins with, or a network on the test split.
_JUDGING = ("observe", "verify")


def read_new(file: Path, offset: int, home: Path) -> tuple[list[dict[str, Any]], int]:
    """The whole lines of a journal from a byte on, at most `MOST_BYTES` of them.

    A line that is still being written waits for the next look. One that a killed process left
    unfinished is passed over, as is anything else that is no event.

    Args:
        file: the journal; may not be there yet.
        offset: where the last look ended; beyond the file's end if it was made anew since.
        home: folder whose place on the server is left out of what is told.

    Returns:
        The events and where the next look begins.
    """
    if not file.exists():
        return [], 0
    if offset > file.stat().st_size:
        offset = 0
    with file.open("rb") as stream:
        stream.seek(offset)
        data = stream.read(MOST_BYTES)
        while data and b"\n" not in data and (more := stream.read(MOST_BYTES)):
            data += more
    whole = whole_lines(data)
    told = whole
    for place in places_of(home):
        told = told.replace(json.dumps(place)[1:-1].encode(), b"HOME")
    events = [event for line in told.splitlines() if (event := _event(line)) is not None]
    return events, offset + len(whole)


def _event(line: bytes) -> dict[str, Any] | None:
    try:
        event = json.loads(line, parse_constant=lambda _: None)  # NaN is no JSON to a browser
    except ValueError:
        return None
    return event if isinstance(event, dict) and isinstance(event.get("event"), str) else None


def summarise(summary: Summary, events: Iterable[Mapping[str, Any]]) -> Summary:
    """The summary after some more events.

    Args:
        summary: so far.
        events: in the form of `nas.run.events.event_to_json`; unknown ones change nothing.
    """
    for event in events:
        summary = _next(summary, event)
    return summary


def _next(summary: Summary, event: Mapping[str, Any]) -> Summary:
    stage = event.get("stage")
    match event.get("event"):
        case "StageStarted":
            return replace(
                summary,
                stage=stage,
                label=event.get("label"),
                done=0,
                total=event.get("total") or 0,
                message="",
                stage_at=event.get("time"),
            )
        case "Progress":
            message = str(event.get("message") or summary.message)[:LONGEST_MESSAGE]
            label = summary.label if stage == summary.stage else stage
            done, total = int(event["done"]), int(event["total"])
            return replace(
                summary, stage=stage, label=label, done=done, total=total, message=message
            )
        case "StageFinished":
            steps = max(summary.total, 1)
            worked_s = summary.worked_s + float(event.get("seconds") or 0.0)
            return replace(summary, done=steps, total=steps, stage_at=None, worked_s=worked_s)
        case "ArchitectureMeasured" if stage in _JUDGING and QUALITY in event.get("metrics", {}):
            return replace(summary, measured=summary.measured + 1)
        case "FrontUpdated":
            return replace(
                summary,
                front_size=len(event["points"]),
                hypervolume=float(event["hypervolume"]),
            )
        case _:
            return summary
