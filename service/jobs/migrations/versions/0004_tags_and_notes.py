"""Tags and notes of jobs, which their owners change."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns, and the index of what is tagged."""
    for name, empty in (("tags", "[]"), ("notes", "")):
        op.add_column("jobs", sa.Column(name, sa.Text(), server_default=empty, nullable=False))
    tagged = sa.text("tags <> '[]'")
    op.create_index(
        "ix_jobs_tagged", "jobs", ["owner", "tags"], sqlite_where=tagged, postgresql_where=tagged
    )


def downgrade() -> None:
    """Take them away again."""
    op.drop_index("ix_jobs_tagged", "jobs")
    op.drop_column("jobs", "notes")
    op.drop_column("jobs", "tags")
