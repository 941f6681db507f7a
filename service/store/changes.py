"""The one way to change a job's state: compare, set, and tell."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Connection, insert, update
from sqlalchemy.sql.elements import ColumnElement as Column

from service.jobs import TRANSITIONS, Action, Job
from service.store.rows import JOB_COLUMNS, job_of
from service.store.tables import events, jobs


def change(
    connection: Connection,
    now: Column[float],
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
    told = {
        "event": "StateChanged",
        "action": action,
        "before": job.state,
        "state": target,
        "attempt": changed.attempt,
        "worker": changed.worker,
        **({"reason": why} if why else {}),
    }
    write_events(connection, changed, moment, [told])
    return changed


def write_events(
    connection: Connection, job: Job, now: float, told: Sequence[Mapping[str, Any]]
) -> None:
    """Write the events whose numbers `job.last_seq` has already been raised by."""
    first = job.last_seq - len(told) + 1
    rows = [
        {
            "job": job.id,
            "seq": first + place,
            "time": float(data.get("time", now)),
            "attempt": job.attempt,
            "data": event_text(data),
        }
        for place, data in enumerate(told)
    ]
    if rows:
        connection.execute(insert(events), rows)


def event_text(data: Mapping[str, Any]) -> str:
    """An event as it is kept; its time has a column."""
    return json.dumps({name: value for name, value in data.items() if name != "time"})
