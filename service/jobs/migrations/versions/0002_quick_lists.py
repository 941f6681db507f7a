"""Lists without sorting: what a filter by text looks through, and indexes in the lists' order."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

BATCH = 1000
_JOBS = sa.table(
    "jobs", *(sa.column(name) for name in ("id", "title", "space", "dataset", "search"))
)


def upgrade() -> None:
    """Add the column, fill it for the jobs that are there, and make the indexes."""
    op.add_column("jobs", sa.Column("search", sa.Text(), server_default="", nullable=False))
    _fill()
    op.drop_index("ix_jobs_state_priority_id", "jobs")
    op.create_index("ix_jobs_claim", "jobs", ["state", sa.text("priority DESC"), "id"])
    op.create_index("ix_jobs_state_id", "jobs", ["state", "id"])
    op.create_index("ix_jobs_space_id", "jobs", ["space", "id"])
    op.create_index("ix_jobs_id_search", "jobs", ["id", "search"])
    op.create_index("ix_runs_disk_bytes", "runs", ["disk_bytes"])


def _fill() -> None:
    """Write each job's text; in Python, since SQLite knows small letters in ASCII alone."""
    connection, columns = op.get_bind(), _JOBS.c
    shown = sa.select(columns.id, columns.title, columns.space, columns.dataset)
    last = ""
    while rows := connection.execute(
        shown.where(columns.id > last).order_by(columns.id).limit(BATCH)
    ).all():
        last = rows[-1].id
        texts = [
            {"key": row.id, "text": "\n".join((row.title, row.space, row.dataset, row.id)).lower()}
            for row in rows
        ]
        connection.execute(
            sa.update(_JOBS)
            .where(columns.id == sa.bindparam("key"))
            .values(search=sa.bindparam("text")),
            texts,
        )


def downgrade() -> None:
    """Take the indexes and the column away again."""
    op.drop_index("ix_runs_disk_bytes", "runs")
    for name in ("claim", "state_id", "space_id", "id_search"):
        op.drop_index(f"ix_jobs_{name}", "jobs")
    op.drop_column("jobs", "search")
    op.create_index("ix_jobs_state_priority_id", "jobs", ["state", "priority", "id"])
