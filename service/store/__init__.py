"""Everything the service remembers, in SQL: SQLite for one machine, PostgreSQL for several."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from service.store.database import TIMEOUT_S, Database
from service.store.events import EventStore
from service.store.jobs import JobStore
from service.store.leases import LeaseStore
from service.store.retention import RetentionStore
from service.store.tokens import TokenStore
from service.store.workers import WorkerStore

__all__ = ["Store", "open_store"]


@dataclass(frozen=True)
class Store:
    """The parts of the store over one database.

    Attributes:
        database: connections and transactions.
        jobs: what users do with jobs.
        leases: what workers do with jobs.
        events: what happened to jobs.
        tokens: who may use the service.
        workers: who does the work.
        retention: how much space the runs take.
    """

    database: Database
    jobs: JobStore
    leases: LeaseStore
    events: EventStore
    tokens: TokenStore
    workers: WorkerStore
    retention: RetentionStore


def open_store(
    url: str, timeout_s: float = TIMEOUT_S, clock: Callable[[], float] = time.monotonic
) -> Store:
    """Open the database; its tables are made by `service.store.migrate.upgrade`.

    Args:
        url: SQLAlchemy's.
        timeout_s: seconds after which a database that does not answer counts as away.
        clock: seconds that only grow, by which signs of life are watched.

    Raises:
        UsageError: for a URL that names no database we can use.
    """
    database = Database(url, timeout_s)
    return Store(
        database,
        JobStore(database),
        LeaseStore(database, clock),
        EventStore(database),
        TokenStore(database),
        WorkerStore(database),
        RetentionStore(database),
    )
