"""What each owner has: bytes, runs and turns; and the machine of a worker beside its name."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the table and the columns, and fill them for the jobs that are there."""
    op.create_table(
        "owners",
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("turn", sa.BigInteger(), server_default="0", nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_owners"),
    )
    host = sa.Column("host", sa.String(128), server_default="", nullable=False)
    op.add_column("workers", host)
    owner = sa.Column("owner", sa.String(64), server_default="", nullable=False)
    op.add_column("runs", owner)
    stored = sa.Column("stored_bytes", sa.BigInteger(), server_default="0", nullable=False)
    op.add_column("jobs", stored)
    _fill()
    op.drop_index("ix_runs_disk_bytes", "runs")
    op.create_index("ix_runs_owner_disk_bytes", "runs", ["owner", "disk_bytes"])
    op.create_index("ix_jobs_owner_state_stored_bytes", "jobs", ["owner", "state", "stored_bytes"])


def _fill() -> None:
    op.execute("INSERT INTO owners (name) SELECT DISTINCT owner FROM jobs")
    op.execute(
        "UPDATE runs SET owner = coalesce((SELECT owner FROM jobs WHERE jobs.id = runs.id), '')"
    )
    op.execute(
        "UPDATE jobs SET stored_bytes = 1000 + length(request)"
        " + coalesce((SELECT length(spec) FROM runs WHERE runs.id = jobs.id), 0)"
        " + coalesce((SELECT sum(length(data)) FROM events WHERE events.job = jobs.id), 0)"
    )


def downgrade() -> None:
    """Take them away again."""
    op.drop_index("ix_jobs_owner_state_stored_bytes", "jobs")
    op.drop_index("ix_runs_owner_disk_bytes", "runs")
    op.drop_column("jobs", "stored_bytes")
    op.drop_column("runs", "owner")
    op.drop_column("workers", "host")
    op.drop_table("owners")
    op.create_index("ix_runs_disk_bytes", "runs", ["disk_bytes"])
