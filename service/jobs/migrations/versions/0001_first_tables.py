"""The first tables: tokens, runs, jobs, events, workers."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_RUNNING = sa.text("state = 'running'")


def upgrade() -> None:
    """Make the tables."""
    _tokens_and_workers()
    _runs_and_jobs()
    op.create_table(
        "events",
        sa.Column("job", sa.String(32), nullable=False),
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("time", sa.Double(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("data", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["job"], ["jobs.id"], name="fk_events_job", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("job", "seq", name="pk_events"),
    )


def _tokens_and_workers() -> None:
    op.create_table(
        "tokens",
        sa.Column("id", sa.String(32), nullable=False),
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("role", sa.String(16), nullable=False),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("expires_at", sa.Double()),
        sa.Column("revoked_at", sa.Double()),
        sa.PrimaryKeyConstraint("id", name="pk_tokens"),
        sa.UniqueConstraint("digest", name="uq_tokens_digest"),
    )
    op.create_table(
        "workers",
        sa.Column("name", sa.String(128), nullable=False),
        sa.Column("started_at", sa.Double(), nullable=False),
        sa.Column("beat_at", sa.Double(), nullable=False),
        sa.Column("job", sa.String(32)),
        sa.PrimaryKeyConstraint("name", name="pk_workers"),
    )


def _runs_and_jobs() -> None:
    op.create_table(
        "runs",
        sa.Column("id", sa.String(32), nullable=False),
        sa.Column("spec", sa.Text(), nullable=False),
        sa.Column("disk_bytes", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("kept", sa.String(16), server_default="all", nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_runs"),
    )
    op.create_table(
        "jobs",
        *_job_columns(),
        sa.ForeignKeyConstraint(["run"], ["runs.id"], name="fk_jobs_run"),
        sa.PrimaryKeyConstraint("id", name="pk_jobs"),
        sa.UniqueConstraint("owner", "idempotency_key", name="uq_jobs_owner_idempotency_key"),
    )
    op.create_index("ix_jobs_owner_id", "jobs", ["owner", "id"])
    op.create_index("ix_jobs_run", "jobs", ["run"])
    op.create_index("ix_jobs_state_priority_id", "jobs", ["state", "priority", "id"])
    op.create_index(
        "uq_jobs_running_run",
        "jobs",
        ["run"],
        unique=True,
        sqlite_where=_RUNNING,
        postgresql_where=_RUNNING,
    )


def _job_columns() -> list[sa.Column[Any]]:
    texts = {"kind": 16, "state": 16, "owner": 64, "run": 32, "space": 200, "dataset": 200}
    texts |= {"preset": 32, "title": 200, "pick": 16}
    return [
        sa.Column("id", sa.String(32), nullable=False),
        *(sa.Column(name, sa.String(size), nullable=False) for name, size in texts.items()),
        sa.Column("request", sa.Text(), nullable=False),
        sa.Column("priority", sa.Integer(), nullable=False),
        sa.Column("attempt", sa.Integer(), server_default="0", nullable=False),
        sa.Column("losses", sa.Integer(), server_default="0", nullable=False),
        sa.Column("worker", sa.String(128)),
        sa.Column("beat_at", sa.Double()),
        sa.Column(
            "cancel_requested", sa.Boolean(), server_default=sa.text("false"), nullable=False
        ),
        sa.Column("error", sa.Text()),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("started_at", sa.Double()),
        sa.Column("ended_at", sa.Double()),
        sa.Column("last_seq", sa.Integer(), server_default="0", nullable=False),
        sa.Column("events_offset", sa.BigInteger(), server_default="-1", nullable=False),
        sa.Column("summary", sa.Text(), server_default="{}", nullable=False),
        sa.Column("idempotency_key", sa.String(200)),
        sa.Column("request_digest", sa.String(64), nullable=False),
    ]


def downgrade() -> None:
    """Remove the tables."""
    for table in ("events", "jobs", "runs", "workers", "tokens"):
        op.drop_table(table)
