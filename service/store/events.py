"""What happened to jobs, in order."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import select

from service.jobs import JobEvent
from service.store.database import Database
from service.store.rows import event_of
from service.store.tables import events


class EventStore:
    """The event logs of all jobs."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def after(self, job: str, seq: int, limit: int) -> Sequence[JobEvent]:
        """The events of a job that come after number `seq`, in order."""
        query = (
            select(events.c.seq, events.c.time, events.c.attempt, events.c.data)
            .where(events.c.job == job, events.c.seq > seq)
            .order_by(events.c.seq)
            .limit(limit)
        )
        with self._database.reading() as connection:
            return [event_of(row._mapping) for row in connection.execute(query)]
