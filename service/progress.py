"""Folds a run's events into the few numbers that a list of jobs shows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from service.jobs import Summary

LONGEST_MESSAGE = 300


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
        case "ArchitectureMeasured":
            return replace(summary, measured=summary.measured + 1)
        case "FrontUpdated":
            return replace(
                summary,
                front_size=len(event["points"]),
                hypervolume=float(event["hypervolume"]),
            )
        case _:
            return summary
