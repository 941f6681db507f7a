"""How much space the runs take, and which of them may be made smaller."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from sqlalchemy import func, select, update

from service.jobs import Kind, State
from service.store.database import Database
from service.store.tables import jobs, runs

# What is left of a run's files.
ALL, RESULTS, NOTHING = "all", "results", "nothing"

# From which states, and from what is left; from the same again, should a process have been killed
# between saying so and doing it.
_MAY_SHRINK = {
    NOTHING: ((State.failed, State.cancelled), (ALL, NOTHING)),
    RESULTS: ((State.succeeded,), (ALL, RESULTS)),
}


class RetentionStore:
    """The sizes of the runs."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def total(self, owner: str | None = None) -> int:
        """Bytes of all runs, or of those of one owner."""
        query = select(func.sum(runs.c.disk_bytes))
        if owner is not None:
            query = query.where(runs.c.owner == owner)
        with self._database.reading() as connection:
            return int(connection.execute(query).scalar_one() or 0)

    def owners(self) -> Sequence[str]:
        """Whoever has runs."""
        with self._database.reading() as connection:
            return list(connection.execute(select(runs.c.owner).distinct()).scalars())

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

    def candidates(self, level: str, owner: str | None = None) -> Sequence[tuple[str, str]]:
        """Runs that may be made smaller to that level, those that ended first before others.

        Returns:
            Each run with what is left of its files so far.
        """
        states, before = _MAY_SHRINK[level]
        query = (
            select(jobs.c.run, runs.c.kept)
            .join(runs, runs.c.id == jobs.c.run)
            .where(jobs.c.kind == Kind.search, jobs.c.state.in_(states))
            .where(runs.c.kept.in_(before), runs.c.disk_bytes > 0)
            .order_by(jobs.c.ended_at)
        )
        if owner is not None:
            query = query.where(runs.c.owner == owner)
        with self._database.reading() as connection:
            return [(run, kept) for run, kept in connection.execute(query)]

    def shrink(self, run: str, level: str) -> bool:
        """Say that a run is smaller from now on, before its files are moved away.

        Whoever says so holds the run's lock until they are: a job that is claimed meanwhile waits.

        Returns:
            False when one of its jobs waits or runs by now: then nothing may be deleted.
        """
        states, before = _MAY_SHRINK[level]
        with self._database.writing() as connection:
            held = select(runs.c.id).where(runs.c.id == run).with_for_update(key_share=True)
            connection.execute(held)
            mine = select(jobs.c.kind, jobs.c.state).where(jobs.c.run == run)
            rows = connection.execute(mine.order_by(jobs.c.id).with_for_update()).all()
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
            return fits
