"""Who does the work."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import delete, insert, literal, select, update

from service.store.database import Database
from service.store.tables import workers


@dataclass(frozen=True, slots=True)
class WorkerState:
    """A worker: its name, since when, its last sign of life, its job, and its machine."""

    name: str
    started_at: float
    beat_at: float
    job: str | None
    host: str


class WorkerStore:
    """The workers of the service."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def beat(self, name: str, job: str | None, host: str = "") -> None:
        """Say that a worker lives, what it is at, and on which machine."""
        now = self._database.now()
        with self._database.writing() as connection:
            known = connection.execute(
                update(workers)
                .where(workers.c.name == name)
                .values(beat_at=now, job=job, host=host)
                .returning(workers.c.name)
            ).one_or_none()
            if known is None:
                connection.execute(
                    insert(workers).values(
                        name=name, started_at=now, beat_at=now, job=job, host=host
                    )
                )

    def leave(self, name: str) -> None:
        """Say that a worker ends."""
        with self._database.writing() as connection:
            connection.execute(delete(workers).where(workers.c.name == name))

    def alive(self, stale_s: float) -> Sequence[WorkerState]:
        """The workers that gave a sign of life lately; one of the future is of a clock set back."""
        now = self._database.now()
        query = select(workers).where(
            workers.c.beat_at > now - literal(stale_s), workers.c.beat_at < now + literal(stale_s)
        )
        with self._database.reading() as connection:
            return [WorkerState(**row._mapping) for row in connection.execute(query)]
