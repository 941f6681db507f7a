"""Brings a database's tables to the version this code needs."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import text
from sqlalchemy.exc import DatabaseError

from search_spaces.errors import DataError, UsageError
from service.jobs.database import Database

MIGRATIONS = Path(__file__).parent / "migrations"
MIGRATING = 7_321_002  # any number that nothing else in the database locks on
# What SQLite says of a file, in the lower byte of its codes.
UNREADABLE = {
    sqlite3.SQLITE_NOTADB: "is no SQLite database",
    sqlite3.SQLITE_CORRUPT: "is a damaged SQLite database",
}
PATIENCE_S = 60  # for another process that migrates, in place of the time-outs of every day


def upgrade(database: Database, revision: str = "head") -> None:
    """Make or change the tables; nothing to do when they are as they should be.

    Raises:
        UsageError: when the database was made by a newer version.
        DataError: when its file is damaged, or something else.
    """
    _run(database, revision, up=True)


def downgrade(database: Database, revision: str) -> None:
    """Undo migrations down to `revision`; ``base`` removes all tables."""
    _run(database, revision, up=False)


def current(database: Database) -> str | None:
    """The revision of the database's tables; None for an empty database."""
    with database.reading() as connection:
        return MigrationContext.configure(connection).get_current_revision()


def _run(database: Database, revision: str, *, up: bool) -> None:
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    known = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
    with _readable(database), database.writing() as connection:
        if not database.is_sqlite:  # two processes may start at the same time
            connection.execute(text("SET LOCAL statement_timeout = 0"))
            for name in ("lock_timeout", "idle_in_transaction_session_timeout"):
                connection.execute(text(f"SET LOCAL {name} = '{PATIENCE_S}s'"))
            connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": MIGRATING})
        found = MigrationContext.configure(connection).get_current_revision()
        if found is not None and found not in known:
            raise UsageError(
                f"the database is of the newer version {found}; run the version of this service "
                "that made it, or a newer one"
            )
        config.attributes["connection"] = connection
        (command.upgrade if up else command.downgrade)(config, revision)


@contextmanager
def _readable(database: Database) -> Iterator[None]:
    """Tell of a file that SQLite cannot read what it is."""
    try:
        yield
    except DatabaseError as error:
        code = getattr(error.orig, "sqlite_errorcode", 0) & 0xFF
        if code not in UNREADABLE:
            raise
        raise DataError(
            f"{database.engine.url.database} {UNREADABLE[code]} ({error.orig}): put a copy of the "
            "service's database in its place, or move it away to begin with an empty one"
        ) from error
