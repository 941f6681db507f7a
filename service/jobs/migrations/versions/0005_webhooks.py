"""Webhooks of owners, and the outbox of what is to be delivered to them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the tables."""
    op.create_table(
        "webhooks",
        sa.Column("owner", sa.String(64), nullable=False),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("secret", sa.String(100), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("turn", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("held_until", sa.Double(), server_default="0", nullable=False),
        sa.PrimaryKeyConstraint("owner", name="pk_webhooks"),
    )
    op.create_table(
        "deliveries",
        sa.Column("id", sa.String(32), nullable=False),
        sa.Column("owner", sa.String(64), nullable=False),
        sa.Column("job", sa.String(32)),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("outcome", sa.String(16), nullable=False),
        sa.Column("tries", sa.Integer(), server_default="0", nullable=False),
        sa.Column("next_at", sa.Double()),
        sa.Column("status", sa.Integer()),
        sa.Column("answer", sa.Text(), server_default="", nullable=False),
        sa.Column("ended_at", sa.Double()),
        sa.PrimaryKeyConstraint("id", name="pk_deliveries"),
    )
    op.create_index("ix_deliveries_owner_id", "deliveries", ["owner", "id"])
    op.create_index("ix_deliveries_outcome_next_at", "deliveries", ["outcome", "next_at"])


def downgrade() -> None:
    """Take them away again."""
    op.drop_table("deliveries")
    op.drop_table("webhooks")
