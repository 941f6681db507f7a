"""How much space the runs take, and which of them may be made smaller."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager

from sqlalchemy import func, select, update

from service.jobs import Kind, State
from service.store.database import Database
from service.store.tables import jobs, runs

# What is left of a run's files.
ALL, RESULTS, NOTHING = "all", "results", "nothing"

_MAY_SHRINK = {
    NOTHING: ((State.failed, State.cancelled), (ALL,)),
    RESULTS: ((State.succeeded,), (ALL,)),
}


class RetentionStore:
    """The sizes of the runs."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def total(self) -> int:
        """Bytes of all runs."""
        with self._database.reading() as connection:
            return int(connection.execute(select(func.sum(runs.c.disk_bytes))).scalar_one() or 0)

    def note(self, run: str, disk_bytes: int) -> None:
        """Keep how much space a run takes."""
        with self._database.writing() as connection:
            connection.execute(update(runs).where(runs.c.id == run).values(disk_bytes=disk_bytes))

    def kept(self, run: str) -> str:
        """What is left of a run's files: ``all``, ``results`` or ``nothing``."""
        with self._database.reading() as connection:
            return str(connection.execute(select(runs.c.kept).where(runs.c.id == run)).scalar_one())

    def known(self, names: Collection[str]) -> set[str]:
        """Those of the names that are runs."""
        with self._database.reading() as connection:
            return set(connection.execute(select(runs.c.id).where(runs.c.id.in_(names))).scalars())

    def candidates(self, level: str) -> Sequence[str]:
        """Runs that may be made smaller to that level, those that ended first before others."""
        states, before = _MAY_SHRINK[level]
        query = (
            select(jobs.c.run)
            .join(runs, runs.c.id == jobs.c.run)
            .where(jobs.c.kind == Kind.search, jobs.c.state.in_(states))
            .where(runs.c.kept.in_(before), runs.c.disk_bytes > 0)
            .order_by(jobs.c.ended_at)
        )
        with self._database.reading() as connection:
            return list(connection.execute(query).scalars())

    @contextmanager
    def shrinking(self, run: str, level: str) -> Iterator[bool]:
        """Mark a run as smaller and let its files be moved away, while nobody can claim a job.

        Yields:
            False when one of its jobs waits or runs by now: then nothing may be deleted.
        """
        states, before = _MAY_SHRINK[level]
        with self._database.claiming() as connection:
            rows = connection.execute(
                select(jobs.c.kind, jobs.c.state).where(jobs.c.run == run).with_for_update()
            ).all()
            fits = all(State(state).ended for _, state in rows) and any(
                kind == Kind.search and State(state) in states for kind, state in rows
            )
            if fits:
                connection.execute(
                    update(runs).where(runs.c.id == run, runs.c.kept.in_(before)).values(kept=level)
                )
                if level == NOTHING:
                    connection.execute(
                        update(jobs).where(jobs.c.run == run).values(events_offset=0)
                    )
            yield fits
