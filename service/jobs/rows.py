"""Rows of jobs and events: read as values, and changed.

`change` is the one way to change a job's state: compare, set, and write the event of it and, where
it ends, the message to its owner's webhook.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, replace
from typing import Any

from sqlalchemy import ColumnElement, Connection, case, insert, update

from service.jobs.outbox import tell_end
from service.jobs.states import TRANSITIONS, Action, Job, JobEvent, Kind, State, Summary
from service.jobs.tables import events, jobs

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
            "tags": tuple(json.loads(row["tags"])),
            "summary": Summary(**json.loads(row["summary"])),
        }
    )


def event_of(row: Mapping[Any, Any]) -> JobEvent:
    """A row of the events."""
    return JobEvent(row["seq"], row["time"], row["attempt"], json.loads(row["data"]))


def search_text(*texts: str) -> str:
    """What a filter by text looks through; a text without line ends matches in one line.

    Args:
        texts: title, space, data set, id and tags of a job; notes are too long for an index.
    """
    return "\n".join(texts).lower()


def summary_text(summary: Summary) -> str:
    """The summary as it is kept."""
    return json.dumps(asdict(summary))


def change(
    connection: Connection,
    now: ColumnElement[float],
    action: Action,
    job: Job,
    values: Mapping[str, Any],
    *conditions: ColumnElement[bool],
    why: str = "",
) -> Job | None:
    """Do `action` if the job is still as it was read: same state, same attempt.

    Args:
        connection: a writing transaction.
        now: the database's clock.
        action: names the states it may begin in and the one it ends in.
        job: as it was read.
        values: further columns to set.
        conditions: what else must hold.
        why: a few words for the event.

    Returns:
        The job as it is now, or None when somebody else was faster.
    """
    sources, target = TRANSITIONS[action]
    if job.state not in sources:
        return None
    if job.state is State.running and job.summary.stage_at is not None:
        values = {"summary": summary_text(_with_broken_off(job)), **values}
    row = connection.execute(
        update(jobs)
        .where(jobs.c.id == job.id, jobs.c.state == job.state, jobs.c.attempt == job.attempt)
        .where(*conditions)
        .values(state=target, last_seq=jobs.c.last_seq + 1, **values)
        .returning(*JOB_COLUMNS, now.label("now"))
    ).one_or_none()
    if row is None:
        return None
    columns = dict(row._mapping)
    moment = columns.pop("now")
    changed = job_of(columns)
    event = {
        "event": "StateChanged",
        "action": action,
        "before": job.state,
        "state": target,
        "attempt": changed.attempt,
        "worker": changed.worker,
        **({"reason": why} if why else {}),
    }
    write_events(connection, changed, moment, [event])
    if changed.state.ended:
        tell_end(connection, changed, moment)
    return changed


def _with_broken_off(job: Job) -> Summary:
    """A job's progress when it is let go of in the middle of a stage, whose time it has cost."""
    summary = job.summary
    assert summary.stage_at is not None
    spent_s = max(0.0, (job.beat_at or summary.stage_at) - summary.stage_at)
    return replace(summary, stage_at=None, worked_s=summary.worked_s + spent_s)


def write_events(
    connection: Connection, job: Job, now: float, occurred: Sequence[Mapping[str, Any]]
) -> None:
    """Write the events whose numbers `job.last_seq` has already been raised by."""
    first = job.last_seq - len(occurred) + 1
    rows = [
        {
            "job": job.id,
            "seq": first + place,
            "time": float(data.get("time", now)),
            "attempt": job.attempt,
            "data": event_text(data),
        }
        for place, data in enumerate(occurred)
    ]
    if rows:
        connection.execute(insert(events), rows)


def event_text(data: Mapping[str, Any]) -> str:
    """An event as it is kept; its time has a column."""
    return json.dumps({name: value for name, value in data.items() if name != "time"})
