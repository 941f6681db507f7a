"""Owners of jobs: whose turn it is, and how much each may have in the database."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection, func, insert, select

from search_spaces.errors import NasError
from service.jobs import State
from service.store.tables import jobs, owners, runs

MIB, GIB = 2**20, 2**30
ROW_BYTES = 1000  # of a job besides its request and spec, roughly


class QueueFullError(NasError):
    """An owner has as many jobs waiting as one may have."""


class NoRoomError(NasError):
    """The disk or the database holds as much as it may, of one owner or of all."""


@dataclass(frozen=True, slots=True)
class Quotas:
    """How much there may be; None means any number.

    Attributes:
        queued: jobs of one owner that wait.
        database_bytes: of one owner's requests, specs and events.
        owner_disk_bytes: of one owner's runs.
        disk_bytes: of all runs.
    """

    queued: int | None = None
    database_bytes: int | None = None
    owner_disk_bytes: int | None = None
    disk_bytes: int | None = None

    def check_queue(self, connection: Connection, owner: str) -> None:
        """See that one more of the owner's jobs may wait.

        Requests that come at the very same moment may both be let in.

        Raises:
            QueueFullError: when it may not.
        """
        if self.queued is None:
            return
        query = select(func.count()).where(jobs.c.owner == owner, jobs.c.state == State.queued)
        waiting = connection.execute(query).scalar_one()
        if waiting >= self.queued:
            raise QueueFullError(
                f"{waiting} jobs of {owner} wait already, and {self.queued} are the most; wait "
                "until some have begun, or cancel some"
            )

    def check_room(self, connection: Connection, owner: str) -> None:
        """See that there is room for one more of the owner's jobs.

        Raises:
            NoRoomError: when there is none.
        """
        stored = select(func.sum(jobs.c.stored_bytes)).where(jobs.c.owner == owner)
        mine = select(func.sum(runs.c.disk_bytes)).where(runs.c.owner == owner)
        total = select(func.sum(runs.c.disk_bytes))
        most = self.database_bytes
        if most is not None and (connection.execute(stored).scalar_one() or 0) >= most:
            raise NoRoomError(
                f"the jobs of {owner} fill their {most / MIB:.4g} MiB of the database; delete "
                "finished jobs, or ask an administrator for a larger quota"
            )
        most = self.owner_disk_bytes
        if most is not None and (connection.execute(mine).scalar_one() or 0) >= most:
            raise NoRoomError(
                f"the runs of {owner} fill their {most / GIB:.4g} GiB and nothing more can be "
                "deleted by itself; delete finished jobs, or ask an administrator for a larger "
                "quota"
            )
        most = self.disk_bytes
        if most is not None and (connection.execute(total).scalar_one() or 0) >= most:
            raise NoRoomError(
                f"the runs fill their {most / GIB:.4g} GiB and nothing more can be deleted by "
                "itself; delete finished jobs, or ask an administrator for a larger quota"
            )


def register(connection: Connection, owner: str) -> None:
    """See that an owner has a row; who has never had a turn is first in line."""
    query = select(owners.c.name).where(owners.c.name == owner)
    if connection.execute(query).one_or_none() is None:
        connection.execute(insert(owners).values(name=owner))
