"""Jobs as JSON, straight from rows of the table.

`service.schemas.JobOut` describes the same and is what a test compares it with. Lists are asked
for most and are long: checking each job against its own description would take most of their time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from fastapi import Response
from pydantic_core import from_json, to_json

from service.jobs import Job, Summary
from service.schemas import JobOut, Progress

_PLAIN = tuple(
    name for name in JobOut.model_fields if name not in ("last_event", "progress", "request")
)
_MOMENTS = ("created_at", "started_at", "ended_at")
_NOTHING_YET = {name: asdict(Summary())[name] for name in Progress.model_fields}


def listed(row: Mapping[Any, Any]) -> dict[str, Any]:
    """What a list tells of a job.

    Args:
        row: of `service.store.rows.LISTED_COLUMNS`.
    """
    told = {name: row[name] for name in _PLAIN}
    for name in _MOMENTS:
        seconds = told[name]
        told[name] = None if seconds is None else datetime.fromtimestamp(seconds, UTC)
    summary = from_json(row["summary"])
    told["last_event"] = row["last_seq"]
    told["progress"] = {name: summary.get(name, given) for name, given in _NOTHING_YET.items()}
    told["request"] = None
    return told


def page(rows: Sequence[Mapping[Any, Any]], after: str | None) -> Response:
    """A page of a list; `after` names where the next one begins."""
    return as_json({"jobs": [listed(row) for row in rows], "next": after})


def whole(job: Job, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """All that is told of a job."""
    text = JobOut.of(job).model_dump_json()
    return Response(text, status, dict(headers or {}), media_type="application/json")


def as_json(value: Any) -> Response:
    """Any value of plain parts as a response."""
    return Response(to_json(value), media_type="application/json")
