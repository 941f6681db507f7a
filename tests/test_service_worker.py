"""The worker: every job to its end, also when things go wrong."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from sqlalchemy import text

from nas.run.folder import RunFolder
from nas.run.presets import budget_for
from nas.run.spec import build_spec
from search_spaces.loading import dump_space, load_space
from service import attempt
from service.jobs import Action, Job, Kind, LeaseLostError, State
from service.runner import Outcome
from service.settings import Settings
from service.store import Store, open_store
from service.store.database import DatabaseAwayError
from service.watchdog import Watchdog
from service.worker import Worker, worker_name
from tests.service_cases import (
    STALE_S,
    Clock,
    Done,
    Endless,
    InstantRunner,
    claim,
    fresh_store,
    must,
    postgres_url,
    submission,
)

PATIENCE_S = 60.0  # before a test that hangs fails instead


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


def test_without_work_there_is_none(shop: Shop) -> None:
    assert not shop.work()


def test_a_job_is_done_and_told_of(shop: Shop) -> None:
    job = shop.submit()
    assert shop.work()
    done = shop.get(job)
    assert (done.state, done.summary.measured, done.summary.stage) == (
        State.succeeded,
        1,
        "supernet",
    )
    assert done.summary.hypervolume is not None
    assert shop.names(job)[:3] == ["StateChanged", "StateChanged", "StageStarted"]
    assert shop.names(job)[-2:] == ["FrontUpdated", "StateChanged"]
    assert shop.store.retention.total() > 0


def test_where_the_server_keeps_things_is_not_told(shop: Shop) -> None:
    job = shop.submit()
    shop.work()
    told = json.dumps([dict(e.data) for e in shop.store.events.after(job.id, 0, 100)])
    assert "HOME/runs" in told
    assert str(shop.settings.home) not in told


def test_a_job_that_fails_says_why_and_is_retried(shop: Shop) -> None:
    job = shop.submit()
    shop.runner.outcome = Outcome(ok=False, error="the data are gone")
    shop.work()
    assert (shop.get(job).state, shop.get(job).error) == (State.failed, "the data are gone")
    shop.runner.outcome = Outcome(ok=True)
    shop.store.jobs.retry(job.id)
    shop.work()
    assert shop.get(job).state is State.succeeded


def test_a_request_that_cannot_be_read_fails_its_job(shop: Shop) -> None:
    job = shop.submit(spec='{"dataset": "digits"}')
    shop.work()
    assert shop.get(job).state is State.failed
    assert "space_toml" in str(shop.get(job).error)


def test_a_job_that_breaks_the_worker_fails_alone(shop: Shop) -> None:
    job = shop.submit()

    def start(job: Job, folder: Path) -> None:
        raise OSError("no process can be started")

    shop.runner.start = start  # type: ignore[method-assign, assignment]
    shop.work()
    assert shop.get(job).state is State.failed
    assert "no process" in str(shop.get(job).error)


def follow(shop: Shop, monkeypatch: pytest.MonkeyPatch, meanwhile: object) -> Endless:
    child = Endless(meanwhile)  # type: ignore[arg-type]
    monkeypatch.setattr(shop.runner, "start", lambda job, folder: child)
    shop.work()
    return child


def test_a_cancelled_job_is_stopped(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    job = shop.submit()
    child = follow(shop, monkeypatch, lambda: shop.store.jobs.cancel(job.id, 20.0))
    assert child.stopped
    assert shop.get(job).state is State.cancelled
    assert shop.names(job)[-2:] == ["CancelRequested", "StateChanged"]


def test_a_worker_that_ends_gives_its_job_back(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    job = shop.submit()
    child = follow(shop, monkeypatch, shop.stopping.set)
    assert child.stopped
    assert shop.get(job).state is State.queued


def test_a_job_that_was_taken_away_is_let_go(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    job = shop.submit()
    child = follow(shop, monkeypatch, lambda: claim(shop.store, "w2", stale_s=-1.0))
    assert child.stopped
    assert (shop.get(job).state, shop.get(job).worker) == (State.running, "w2")


def test_what_a_dead_worker_left_untold_is_told_once(shop: Shop) -> None:
    job = shop.submit()
    lost = must(claim(shop.store, "dead"))
    folder = RunFolder.create(shop.settings.runs / lost.run, build_spec(**json.loads(shop.spec)))
    (folder.path / "events.jsonl").write_text('{"event": "Note", "message": "a"}\n{"event": "No')
    shop.clock.watch(1 + STALE_S, lambda: shop.store.leases.look(STALE_S))
    assert not shop.work()
    shop.clock.watch(1, lambda: shop.work())
    assert shop.get(job).state is State.succeeded
    assert shop.names(job).count("Note") == 1
    assert shop.get(job).attempt == 2


def test_a_run_that_is_still_held_is_waited_for(shop: Shop) -> None:
    shop.submit()
    outcomes = [Outcome(ok=False, busy=True), Outcome(ok=False, busy=True), Outcome(ok=True)]

    class Busy(InstantRunner):
        def start(self, job: Job, folder: Path):  # type: ignore[no-untyped-def]
            self.outcome = outcomes[len(self.ran)]
            return super().start(job, folder)

    runner = Busy()
    Worker(shop.store, shop.settings, runner, "w1").work_once(shop.stopping)
    assert len(runner.ran) == 3


def test_a_retraining_tells_its_own_events_only(shop: Shop) -> None:
    search = shop.submit()
    shop.work()
    front = json.loads((shop.settings.runs / search.run / "pareto.json").read_text())["front"]
    pick = front[-1]["id"]
    job = shop.submit(kind=Kind.retrain, spec=None, run=search.run, pick=pick)
    shop.work()
    assert shop.get(job).state is State.succeeded
    assert shop.names(job) == ["StateChanged"] * 2 + [
        "StageStarted",
        "StageFinished",
        "StateChanged",
    ]


def test_a_database_that_is_away_for_a_moment_is_asked_again(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = shop.submit()
    end, failures = shop.store.leases.end, [1, 2, 3]

    def unsteady(*arguments: object) -> Job:
        if failures:
            failures.pop()
            raise DatabaseAwayError("gone away")
        return end(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(shop.store.leases, "end", unsteady)
    shop.work()
    assert shop.get(job).state is State.succeeded


# -- a database that is gone ----------------------------------------------------------------------


class Guarded(Endless):
    """A process that tells when it is stopped."""

    def __init__(self) -> None:
        super().__init__(lambda: None)
        self.told = threading.Event()

    def stop(self, grace_s: float) -> None:
        self.stopped = True
        self.told.set()


@pytest.mark.parametrize("where", ["leases", "workers"])
def test_the_watchdog_does_not_hang_with_the_database(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    job, process = shop.submit(), Guarded()
    monkeypatch.setattr(shop.runner, "start", lambda job, folder: process)

    def hang(*_: object) -> Job:
        """The call comes back only after the process was stopped, by whom it does not matter."""
        assert process.told.wait(PATIENCE_S)
        raise DatabaseAwayError("after very long")

    beat = shop.store.workers.beat
    if where == "leases":
        monkeypatch.setattr(shop.store.leases, "beat", hang)
    else:
        monkeypatch.setattr(shop.store.workers, "beat", lambda *a: hang() if a[1] else beat(*a))
    hasty = shop.settings.model_copy(update={"stale_s": 0.5})
    Worker(shop.store, hasty, shop.runner, "w1").work_once(shop.stopping)
    assert process.stopped
    assert (shop.get(job).state, shop.get(job).attempt) == (State.running, 1)


def test_a_lease_that_is_confirmed_in_time_is_kept() -> None:
    process = Guarded()
    with Watchdog(PATIENCE_S, time.monotonic()) as watchdog:
        watchdog.guard(process)
        watchdog.check()
    assert not process.stopped


def test_a_lease_that_is_lost_stays_lost() -> None:
    process = Guarded()
    with Watchdog(PATIENCE_S, time.monotonic() - PATIENCE_S) as watchdog:
        with pytest.raises(LeaseLostError):
            while True:
                watchdog.guard(process)
        watchdog.confirm(time.monotonic())
        with pytest.raises(LeaseLostError, match="did not confirm"):
            watchdog.check()


@pytest.mark.postgres
def test_a_lock_that_nobody_gives_up_does_not_keep_a_job_running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = Guarded()
    with postgres_url() as url, fresh_store(url, timeout_s=0.1) as store:
        other = open_store(url, PATIENCE_S)
        shop = Shop(tmp_path, store, Clock())
        shop.submit()
        hasty = shop.settings.model_copy(update={"stale_s": 1.0})
        with ExitStack() as held:

            def start(job: Job, folder: Path) -> Guarded:
                connection = held.enter_context(other.database.writing())
                connection.execute(text("SELECT id FROM jobs FOR UPDATE"))
                return process

            monkeypatch.setattr(shop.runner, "start", start)
            Worker(store, hasty, shop.runner, "w1").work_once(shop.stopping)
        other.database.close()
    assert process.stopped


def test_the_second_process_of_a_job_is_stopped_with_its_worker(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.submit()
    busy, second = Done(Outcome(ok=False, busy=True)), Guarded()
    second.meanwhile = lambda: claim(shop.store, "w2", stale_s=-1.0)
    processes: list[Done] = [busy, second]
    monkeypatch.setattr(shop.runner, "start", lambda job, folder: processes.pop(0))
    shop.work()
    assert second.stopped


# -- what is told of workers ----------------------------------------------------------------------


def test_owners_are_not_told_the_name_of_the_machine(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "secret-host")
    job = shop.submit()
    name = worker_name()
    Worker(shop.store, shop.settings, shop.runner, name).work_once(shop.stopping)
    told = [dict(event.data) for event in shop.store.events.after(job.id, 0, 100)]
    assert name in json.dumps(told) and "secret" not in json.dumps(told)
    assert "secret" not in name and str(os.getpid()) not in name
    assert [one.host for one in shop.store.workers.alive(20.0)] == ["secret-host"]


def test_a_worker_works_until_it_is_asked_to_end(shop: Shop) -> None:
    jobs = [shop.submit() for _ in range(3)]
    last = shop.runner.start

    def start(job: Job, folder: Path):  # type: ignore[no-untyped-def]
        if job.id == jobs[-1].id:
            shop.stopping.set()
        return last(job, folder)

    shop.runner.start = start  # type: ignore[method-assign]
    shop.worker.run(shop.stopping)
    assert [shop.get(job).state for job in jobs] == [State.succeeded] * 3
    assert shop.store.workers.alive(20.0) == []
    assert Action.release not in shop.names(jobs[-1])
