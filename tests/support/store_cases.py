"""A store on every database it runs on, empty for each test, with jobs in any state."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from service.jobs.states import Action, Job, State
from service.jobs.store import Store
from service.jobs.tables import metadata
from tests.support.service_cases import claim, fresh_store, must, postgres_url, submission

DATABASES = ["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)]


@pytest.fixture(scope="module", params=DATABASES)
def shared(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Store]:
    if request.param == "sqlite":
        with fresh_store(f"sqlite:///{tmp_path_factory.mktemp('store') / 'service.db'}") as opened:
            yield opened
    else:
        with postgres_url() as url, fresh_store(url) as opened:
            yield opened


@pytest.fixture
def store(shared: Store) -> Store:
    """The same database for all tests, empty for each."""
    with shared.database.writing() as connection:
        for table in reversed(metadata.sorted_tables):
            connection.execute(table.delete())
    return shared


def submit(store: Store, owner: str = "alice", **values: object) -> Job:
    """A new job that waits."""
    return store.jobs.submit(submission(owner, **values))[0]


def states(store: Store, job: Job) -> list[str]:
    """The states that a job's events tell of, in order."""
    return [str(e.data["state"]) for e in store.events.after(job.id, 0, 100) if "state" in e.data]


def in_state(store: Store, state: State) -> Job:
    """A new job that is brought to that state."""
    job = submit(store)
    if state is State.queued:
        return job
    job = must(claim(store))
    actions = {State.succeeded: Action.succeed, State.failed: Action.fail}
    actions[State.cancelled] = Action.stop
    return store.leases.end(job, actions[state], "why") if state in actions else job
