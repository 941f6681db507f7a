"""Rows of the tables as the values the rest of the service knows."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

from sqlalchemy import case

from service.jobs import Job, JobEvent, Kind, State, Summary
from service.store.tables import jobs

JOB_COLUMNS = [jobs.c[field.name] for field in fields(Job)]
# What was requested is listed of exports alone, whose format is shown: a search's may be as long as
# a request.
_REQUEST = case((jobs.c.kind == Kind.export.value, jobs.c.request), else_="{}").label("request")
LISTED_COLUMNS = [_REQUEST if column.name == "request" else column for column in JOB_COLUMNS]


def job_of(row: Mapping[Any, Any]) -> Job:
    """A row of `JOB_COLUMNS`."""
    return Job(
        **{
            **row,
            "kind": Kind(row["kind"]),
            "state": State(row["state"]),
            "request": json.loads(row["request"]),
            "summary": Summary(**json.loads(row["summary"])),
        }
    )


def event_of(row: Mapping[Any, Any]) -> JobEvent:
    """A row of the events."""
    return JobEvent(row["seq"], row["time"], row["attempt"], json.loads(row["data"]))


def search_text(title: str, space: str, dataset: str, identity: str) -> str:
    """What a filter by text looks through; a text without line ends matches in one line."""
    return "\n".join((title, space, dataset, identity)).lower()


def summary_text(summary: Summary) -> str:
    """The summary as it is kept."""
    return json.dumps(asdict(summary))
