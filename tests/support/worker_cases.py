"""A worker in this process, whose jobs take no time; its store tells the time when asked to."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from nas.request.presets import budget_for
from nas.request.spec import build_spec
from search_spaces.loading import dump_space, load_space
from service.jobs.states import Job
from service.jobs.store import Store
from service.settings import Settings
from service.worker import attempt
from service.worker.worker import Worker
from tests.support.service_cases import Clock, InstantRunner, fresh_store, must, submission


class Shop:
    """A store, a worker and a runner."""

    def __init__(self, home: Path, store: Store, clock: Clock) -> None:
        self.settings = Settings(home=home, heartbeat_s=0.001, poll_s=0.001, stop_grace_s=0)
        self.store = store
        self.clock = clock
        self.runner = InstantRunner()
        self.worker = Worker(store, self.settings, self.runner, "w1")
        self.stopping = threading.Event()
        space = load_space("digits")
        self.spec = build_spec(
            space_toml=dump_space(space), dataset="digits", budget=budget_for(space, "smoke", {})
        ).model_dump_json()

    def submit(self, **values: object) -> Job:
        return self.store.jobs.submit(submission(**{"spec": self.spec, **values}))[0]

    def work(self) -> bool:
        return self.worker.work_once(self.stopping)

    def get(self, job: Job) -> Job:
        return must(self.store.jobs.get(job.id))

    def names(self, job: Job) -> list[str]:
        return [event.name for event in self.store.events.after(job.id, 0, 100)]


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    monkeypatch.setattr(attempt, "AGAIN_S", 0.0)
    clock = Clock()
    with fresh_store(f"sqlite:///{tmp_path / 'service.db'}", clock=clock) as store:
        yield Shop(tmp_path, store, clock)
