"""Runs migrations over the connection that `service.jobs.migrate` has opened."""

from __future__ import annotations

from alembic import context

from service.jobs.tables import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    render_as_batch=True,
    transaction_per_migration=False,
)
context.run_migrations()
