"""Room on the disk: what is deleted by itself, what only when it is asked for, and what never."""

from __future__ import annotations

import errno
import logging
import os
import shutil
from collections.abc import Collection, Iterator
from pathlib import Path

import pytest

from nas.run.folder import locked
from nas.run.layout import LOCK_FILE
from service.jobs import retention
from service.jobs.database import DatabaseFullError
from service.jobs.retention import delete_job, disk_bytes, make_room, tell_unknown
from service.jobs.states import Action, Job, JobStateError, Kind, State, Summary
from service.jobs.store import Store
from service.settings import GIB, Settings
from tests.support.service_cases import claim, fresh_store, must, submission


class Disk:
    """Runs of a megabyte each, half of it the supernet."""

    def __init__(self, home: Path, store: Store) -> None:
        self.store = store
        self.home = home

    def run(self, end: Action | None, owner: str = "alice") -> Job:
        job = self.store.jobs.submit(submission(owner))[0]
        if end is not None:
            job = self.store.leases.end(must(claim(self.store)), end)
        folder = self.home / "runs" / job.run
        for name in ("supernet/last.pt", "pareto.json"):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(b"x" * 500_000)
        self.store.retention.note(job.run, disk_bytes(folder))
        return job

    def left(self, job: Job) -> list[str]:
        folder = self.home / "runs" / job.run
        files = (path.name for path in folder.rglob("*") if path.is_file())
        return sorted(name for name in files if name != LOCK_FILE)

    def make_room(self, runs: float) -> None:
        make_room(self.store, Settings(home=self.home, quota_gib=runs * 1_000_000 / GIB))


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    with fresh_store(f"sqlite:///{tmp_path / 'service.db'}") as store:
        yield Disk(tmp_path, store)


BOTH = ["last.pt", "pareto.json"]


def test_within_the_quota_nothing_is_deleted(disk: Disk) -> None:
    jobs = [disk.run(Action.fail), disk.run(Action.succeed)]
    disk.make_room(2.1)
    assert [disk.left(job) for job in jobs] == [BOTH, BOTH]


def test_the_oldest_failures_go_first(disk: Disk) -> None:
    good, old, new = disk.run(Action.succeed), disk.run(Action.stop), disk.run(Action.fail)
    disk.make_room(2.1)
    assert [disk.left(job) for job in (good, old, new)] == [BOTH, [], BOTH]
    assert disk.store.retention.kept(old.run) == "nothing"


def test_results_are_never_deleted(disk: Disk) -> None:
    good, bad, waiting = disk.run(Action.succeed), disk.run(Action.fail), disk.run(None)
    disk.make_room(0.1)
    assert [disk.left(job) for job in (good, bad, waiting)] == [["pareto.json"], [], BOTH]
    assert disk.store.retention.total() == 1_500_000


def test_a_run_that_was_deleted_is_begun_anew(disk: Disk) -> None:
    job = disk.run(Action.fail)
    disk.make_room(0.1)
    disk.store.jobs.retry(job.id)
    again = must(claim(disk.store))
    assert (again.state, again.events_offset) == (State.running, 0)
    assert disk.store.retention.kept(job.run) == "all"


@pytest.mark.parametrize(("runs", "measured"), [(0.1, 0), (2.0, 3)])
def test_a_run_that_is_begun_anew_counts_its_networks_once(
    disk: Disk, runs: float, measured: int
) -> None:
    job = disk.run(None)
    summary = Summary(stage="verify", measured=3, hypervolume=0.4, worked_s=7.0)
    taken = disk.store.leases.append(must(claim(disk.store)), [], 10, summary)
    disk.store.leases.end(taken, Action.fail)
    disk.make_room(runs)
    disk.store.jobs.retry(job.id)
    again = must(claim(disk.store)).summary
    assert (again.measured, again.worked_s) == (measured, 7.0)
    assert again == (summary if measured else Summary(worked_s=7.0))


def test_what_belongs_to_no_job_is_swept_up(disk: Disk) -> None:
    known = disk.run(Action.succeed)
    orphan, young = disk.home / "runs" / "orphan", disk.home / "runs" / "young"
    for folder in (orphan, young, disk.home / "trash" / "left"):
        folder.mkdir(parents=True)
    os.utime(orphan, (0, 0))
    disk.make_room(10)
    assert sorted(p.name for p in (disk.home / "runs").iterdir()) == sorted([known.run, "young"])
    assert not (disk.home / "trash" / "left").exists()


def test_runs_of_another_database_are_kept_and_told_of(
    disk: Disk, caplog: pytest.LogCaptureFixture
) -> None:
    jobs = [disk.run(end) for end in (Action.succeed, Action.fail, None)]
    for job in jobs:
        os.utime(disk.home / "runs" / job.run, (0, 0))
    settings = Settings(home=disk.home, quota_gib=1e-9)
    tell_unknown(disk.store, settings)
    assert not caplog.records
    with fresh_store(f"sqlite:///{disk.home / 'empty.db'}") as other:
        for _ in range(2):
            make_room(other, settings)
        with caplog.at_level(logging.WARNING):
            tell_unknown(other, settings)
    assert [disk.left(job) for job in jobs] == [BOTH] * 3
    (told,) = caplog.records
    first = sorted(job.run for job in jobs)
    assert vars(told)["runs"] == 3 and vars(told)["first"] == first
    assert "NAS_DATABASE_URL" in told.message and "move them away" in told.message


def test_an_owner_above_its_quota_makes_room_of_its_own(disk: Disk) -> None:
    his = disk.run(Action.fail, "bob")
    mine = [disk.run(Action.fail), disk.run(Action.succeed)]
    settings = Settings(home=disk.home, quota_gib_per_owner=1_100_000 / GIB)
    make_room(disk.store, settings)
    assert [disk.left(job) for job in (his, *mine)] == [BOTH, [], BOTH]


def test_a_run_that_is_held_is_left_for_later(disk: Disk) -> None:
    bad, good = disk.run(Action.fail), disk.run(Action.succeed)
    with locked(disk.home / "runs" / bad.run), locked(disk.home / "runs" / good.run):
        disk.make_room(0.1)
        assert [disk.left(job) for job in (bad, good)] == [BOTH, BOTH]
        assert disk.store.retention.kept(bad.run) == "all"
    disk.make_room(0.1)
    assert [disk.left(job) for job in (bad, good)] == [[], ["pareto.json"]]


@pytest.mark.parametrize(("end", "left"), [(Action.fail, []), (Action.succeed, ["pareto.json"])])
def test_what_a_killed_process_said_and_did_not_do_is_done(
    disk: Disk, end: Action, left: list[str]
) -> None:
    job = disk.run(end)
    assert disk.store.retention.shrink(job.run, "nothing" if end is Action.fail else "results")
    disk.make_room(0.1)
    assert disk.left(job) == left


def test_two_workers_that_tidy_at_once_do_not_disturb_each_other(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = disk.run(Action.fail)
    orphan, trash = disk.home / "runs" / "orphan", disk.home / "trash"
    (trash / "left").mkdir(parents=True)
    orphan.mkdir()
    os.utime(orphan, (0, 0))
    known = disk.store.retention.known

    def meanwhile(names: Collection[str]) -> set[str]:
        shutil.rmtree(orphan)  # the other one was faster
        return known(names)

    monkeypatch.setattr(disk.store.retention, "known", meanwhile)
    disk.make_room(0.1)
    assert (disk.left(bad), list(trash.iterdir())) == ([], [])


# -- deleting -------------------------------------------------------------------------------------


def test_deleting_a_search_deletes_the_logs_of_all_its_jobs(disk: Disk) -> None:
    settings, search = Settings(home=disk.home), disk.run(Action.succeed)
    other = disk.run(Action.succeed)
    retraining, _ = disk.store.jobs.submit(submission(kind=Kind.retrain, spec=None, run=search.run))
    disk.store.jobs.cancel(retraining.id, 20.0)
    settings.logs.mkdir()
    for job in (search, retraining, other):
        (settings.logs / f"{job.id}.log").write_text("secret")
    assert delete_job(disk.store, settings, search.id) is not None
    assert [path.name for path in settings.logs.iterdir()] == [f"{other.id}.log"]
    assert [path.name for path in settings.runs.iterdir()] == [other.run]
    assert delete_job(disk.store, settings, search.id) is None


def test_a_run_whose_job_was_deleted_by_a_process_that_was_killed_then_is_swept_up(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, job = Settings(home=disk.home), disk.run(Action.succeed)
    with monkeypatch.context() as killed:
        killed.setattr(retention, "_remove_files", lambda *_: None)
        assert delete_job(disk.store, settings, job.id) is not None
    folder = settings.runs / job.run
    disk.make_room(10)
    assert folder.is_dir()  # it may be just about to be moved
    os.utime(folder, (0, 0))
    disk.make_room(10)
    assert not folder.exists()


def test_a_job_that_is_retried_while_it_is_deleted_keeps_no_mark_of_that(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, job = Settings(home=disk.home), disk.run(Action.fail)
    delete = disk.store.jobs.delete

    def retried(identity: str) -> Job | None:
        disk.store.jobs.retry(identity)
        return delete(identity)

    monkeypatch.setattr(disk.store.jobs, "delete", retried)
    with pytest.raises(JobStateError, match="queued"):
        delete_job(disk.store, settings, job.id)
    assert disk.left(job) == BOTH


def test_a_job_that_has_not_ended_keeps_its_files(disk: Disk) -> None:
    settings, waiting = Settings(home=disk.home), disk.run(None)
    with pytest.raises(JobStateError, match="cancel it first"):
        delete_job(disk.store, settings, waiting.id)
    assert disk.left(waiting) == BOTH


def test_deleting_works_on_a_full_disk(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    settings, job = Settings(home=disk.home), disk.run(Action.fail)
    folder, delete = settings.runs / job.run, disk.store.jobs.delete

    def without_room(identity: str) -> Job | None:
        if folder.exists():
            raise DatabaseFullError("database or disk is full")
        return delete(identity)

    monkeypatch.setattr(disk.store.jobs, "delete", without_room)
    assert delete_job(disk.store, settings, job.id) is not None
    assert disk.store.jobs.get(job.id) is None and not folder.exists()


def test_a_full_disk_deletes_nothing_of_a_job_that_goes_on(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, job = Settings(home=disk.home), disk.run(Action.fail)
    disk.store.jobs.retry(job.id)

    def without_room(identity: str) -> Job | None:
        raise DatabaseFullError("database or disk is full")

    monkeypatch.setattr(disk.store.jobs, "delete", without_room)
    with pytest.raises(JobStateError, match="queued"):
        delete_job(disk.store, settings, job.id)
    assert disk.left(job) == BOTH


def test_a_folder_without_room_for_a_new_name_is_deleted_where_it_is(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, job = Settings(home=disk.home), disk.run(Action.fail)

    def full(self: Path, target: Path) -> Path:
        raise OSError(errno.ENOSPC, "no space left on device")

    monkeypatch.setattr(Path, "rename", full)
    delete_job(disk.store, settings, job.id)
    assert list(settings.runs.iterdir()) == []
