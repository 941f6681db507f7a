"""A worker that does not know any more whether its job is its own: it stops the job's process."""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
from sqlalchemy import text

from service.jobs.database import DatabaseAwayError
from service.jobs.states import Job, LeaseLostError, State
from service.jobs.store import open_store
from service.worker.attempt import Attempt, Watchdog
from service.worker.runner import Outcome
from service.worker.worker import Worker
from tests.support import worker_cases
from tests.support.service_cases import Clock, Done, Endless, claim, fresh_store, must, postgres_url
from tests.support.worker_cases import Shop

shop = worker_cases.shop
PATIENCE_S = 60.0  # before a test that hangs fails instead


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
            watchdog.guard(process)
        watchdog.confirm(time.monotonic())
        with pytest.raises(LeaseLostError, match="did not confirm"):
            watchdog.check()


def test_a_worker_that_wakes_too_late_starts_nothing(shop: Shop) -> None:
    """It was frozen between its claim and the start of the job's process."""
    shop.submit()
    job = must(claim(shop.store))
    late = time.monotonic() - PATIENCE_S
    given = job, shop.store, shop.settings, shop.runner, shop.stopping, lambda _: None, late
    with pytest.raises(LeaseLostError):
        Attempt(*given).finish()
    assert shop.runner.ran == []


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
