"""The tables. `migrations/` makes them; a test compares the two.

Times are seconds since 1970. JSON is kept as text, so that both databases treat it alike.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Double,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
    text,
)

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "pk": "pk_%(table_name)s",
    }
)

tokens = Table(
    "tokens",
    metadata,
    Column("id", String(32), primary_key=True),
    Column("name", String(64), nullable=False),
    Column("role", String(16), nullable=False),
    Column("digest", String(64), nullable=False, unique=True),
    Column("created_at", Double, nullable=False),
    Column("expires_at", Double),
    Column("revoked_at", Double),
)

runs = Table(
    "runs",
    metadata,
    Column("id", String(32), primary_key=True),
    Column("spec", Text, nullable=False),
    Column("disk_bytes", BigInteger, nullable=False, server_default="0"),
    Column("kept", String(16), nullable=False, server_default="all"),
    Column("owner", String(64), nullable=False, server_default=""),
    Index(None, "owner", "disk_bytes"),  # to add them up without reading the specs
)

owners = Table(
    "owners",
    metadata,
    Column("name", String(64), primary_key=True),
    # Grows with each job of anybody that is claimed: who has the smallest is next.
    Column("turn", BigInteger, nullable=False, server_default="0"),
)

jobs = Table(
    "jobs",
    metadata,
    Column("id", String(32), primary_key=True),
    Column("kind", String(16), nullable=False),
    Column("state", String(16), nullable=False),
    Column("owner", String(64), nullable=False),
    Column("run", String(32), ForeignKey("runs.id"), nullable=False),
    Column("space", String(200), nullable=False),
    Column("dataset", String(200), nullable=False),
    Column("preset", String(32), nullable=False),
    Column("title", String(200), nullable=False),
    Column("tags", Text, nullable=False, server_default="[]"),  # a list in JSON
    Column("notes", Text, nullable=False, server_default=""),
    Column("pick", String(16), nullable=False),
    Column("request", Text, nullable=False),
    Column("priority", Integer, nullable=False),
    Column("attempt", Integer, nullable=False, server_default="0"),
    Column("losses", Integer, nullable=False, server_default="0"),
    Column("worker", String(128)),
    Column("beat_at", Double),
    Column("cancel_requested", Boolean, nullable=False, server_default=text("false")),
    Column("error", Text),
    Column("created_at", Double, nullable=False),
    Column("started_at", Double),
    Column("ended_at", Double),
    Column("last_seq", Integer, nullable=False, server_default="0"),
    Column("events_offset", BigInteger, nullable=False, server_default="-1"),
    Column("summary", Text, nullable=False, server_default="{}"),
    Column("idempotency_key", String(200)),
    Column("request_digest", String(64), nullable=False),
    # What a filter by text looks through: see `service.jobs.rows.search_text`.
    Column("search", Text, nullable=False, server_default=""),
    # Of its request, spec and events.
    Column("stored_bytes", BigInteger, nullable=False, server_default="0"),
    UniqueConstraint("owner", "idempotency_key"),
    # In the orders in which jobs are listed.
    Index(None, "state", "id"),
    Index(None, "owner", "id"),
    Index(None, "space", "id"),
    Index(None, "id", "search"),
    # To count what an owner has without reading the requests.
    Index(None, "owner", "state", "stored_bytes"),
    # Two jobs never work on one run folder at once, whatever else goes wrong.
    Index(
        "uq_jobs_running_run",
        "run",
        unique=True,
        sqlite_where=text("state = 'running'"),
        postgresql_where=text("state = 'running'"),
    ),
    Index(None, "run"),
)
# To tell which tags an owner has without reading all jobs.
Index(
    "ix_jobs_tagged",
    jobs.c.owner,
    jobs.c.tags,
    sqlite_where=text("tags <> '[]'"),
    postgresql_where=text("tags <> '[]'"),
)
# In the order in which an owner's are claimed.
Index("ix_jobs_claim", jobs.c.state, jobs.c.priority.desc(), jobs.c.id)

events = Table(
    "events",
    metadata,
    Column("job", String(32), ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True),
    Column("seq", Integer, primary_key=True),
    Column("time", Double, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("data", Text, nullable=False),
)

webhooks = Table(
    "webhooks",
    metadata,
    Column("owner", String(64), primary_key=True),
    Column("url", Text, nullable=False),
    Column("secret", String(100), nullable=False),
    Column("created_at", Double, nullable=False),
    Column("turn", BigInteger, nullable=False, server_default="0"),  # of who delivers
    Column("held_until", Double, nullable=False, server_default="0"),
)

# They name no row of another table: nobody who ends a job waits for who changes a webhook.
deliveries = Table(
    "deliveries",
    metadata,
    Column("id", String(32), primary_key=True),
    Column("owner", String(64), nullable=False),
    Column("job", String(32)),
    Column("body", Text, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("outcome", String(16), nullable=False),
    Column("tries", Integer, nullable=False, server_default="0"),
    Column("next_at", Double),
    Column("status", Integer),
    Column("answer", Text, nullable=False, server_default=""),
    Column("ended_at", Double),
    Index(None, "owner", "id"),
    Index(None, "outcome", "next_at"),
)

workers = Table(
    "workers",
    metadata,
    Column("name", String(128), primary_key=True),
    Column("started_at", Double, nullable=False),
    Column("beat_at", Double, nullable=False),
    Column("job", String(32)),
    Column("host", String(128), nullable=False, server_default=""),
)
