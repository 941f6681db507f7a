"""The worker: every job to its end, also when things go wrong."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

import pytest

from nas.request.spec import build_spec
from nas.run.folder import RunFolder
from service.jobs.database import DatabaseAwayError
from service.jobs.states import Action, Job, Kind, State
from service.worker.runner import Outcome
from service.worker.worker import Worker, worker_name
from tests.support import worker_cases
from tests.support.service_cases import (
    STALE_S,
    Endless,
    InstantRunner,
    claim,
    must,
)
from tests.support.worker_cases import Shop

shop = worker_cases.shop


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


@pytest.mark.parametrize("stopping", [True, False])
def test_who_is_asked_to_end_with_its_job_gives_it_back(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, stopping: bool
) -> None:
    """As by a system that ends all processes of a service at once."""
    monkeypatch.setattr("service.worker.attempt.ALL_ASKED_S", 0.0)
    job = shop.submit()
    shop.runner.outcome = Outcome(ok=False, asked=True, error="it was ended by SIGTERM")
    start = shop.runner.start

    def begun(job: Job, folder: Path):  # type: ignore[no-untyped-def]
        if stopping:
            shop.stopping.set()
        return start(job, folder)

    monkeypatch.setattr(shop.runner, "start", begun)
    shop.work()
    assert shop.get(job).state is (State.queued if stopping else State.failed)


def test_a_job_that_was_taken_away_is_let_go(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    job = shop.submit()
    child = follow(shop, monkeypatch, lambda: claim(shop.store, "w2", stale_s=-1.0))
    assert child.stopped
    assert (shop.get(job).state, shop.get(job).worker) == (State.running, "w2")


@pytest.mark.parametrize("stopping", [False, True])
def test_a_job_that_was_lost_with_the_database_goes_on_before_younger_ones(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, stopping: bool
) -> None:
    """The database does not answer for longer than the lease holds, and then does again."""
    first, second = shop.submit(), shop.submit()
    shop.worker = Worker(
        shop.store, shop.settings.model_copy(update={"stale_s": 0.5}), shop.runner, "w1"
    )

    def away(*_: object) -> Job:
        raise DatabaseAwayError("gone away")

    with monkeypatch.context() as patched:
        patched.setattr(shop.store.leases, "beat", away)
        child = follow(shop, patched, lambda: None)
    assert child.stopped and shop.get(first).state is State.running
    if stopping:
        shop.stopping.set()
        shop.worker.run(shop.stopping)
        assert shop.get(first).state is State.queued
        return
    shop.work()
    assert [shop.get(job).state for job in (first, second)] == [State.succeeded, State.queued]
    assert (shop.get(first).attempt, shop.get(first).losses) == (2, 1)
    told = [dict(event.data) for event in shop.store.events.after(first.id, 0, 100)]
    assert any("did not confirm the lease" in str(one.get("reason")) for one in told)


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


def test_a_run_that_stays_held_keeps_no_worker_from_other_jobs(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process of a frozen worker holds it; both jobs are one owner's."""
    monkeypatch.setattr("service.worker.attempt.HELD_S", 0.0)
    held, other = shop.submit(), shop.submit()

    class Held(InstantRunner):
        def start(self, job: Job, folder: Path):  # type: ignore[no-untyped-def]
            self.outcome = Outcome(ok=job.id != held.id, busy=job.id == held.id)
            return super().start(job, folder)

    worker = Worker(shop.store, shop.settings, Held(), "w1")
    assert worker.work_once(shop.stopping) and worker.work_once(shop.stopping)
    assert not worker.work_once(shop.stopping)
    assert [shop.get(job).state for job in (held, other)] == [State.queued, State.succeeded]
    told = [dict(event.data) for event in shop.store.events.after(held.id, 0, 10)]
    assert told[-1]["reason"] == "another process still holds its run"
    assert Worker(shop.store, shop.settings, Held(), "w2").work_once(shop.stopping)
    assert shop.get(held).attempt == 2  # others try it too


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


def test_a_worker_works_until_it_is_asked_to_end(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "service")
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
    assert vars(caplog.records[0])["host"] == socket.gethostname()
