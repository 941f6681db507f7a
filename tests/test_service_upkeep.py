"""Migrations, retention, and reading journals: what keeps a service going for years."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Collection, Iterator
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import inspect, text

from nas.run.folder import LOCK_FILE, locked
from search_spaces.errors import UsageError
from service.jobs import Action, Job, JobStateError, Kind, State, Summary
from service.progress import summarise
from service.retention import delete_job, disk_bytes, make_room
from service.settings import GIB, Settings
from service.store import Store, open_store
from service.store.database import Database, DatabaseFullError
from service.store.jobs import JobStore
from service.store.listing import Filter
from service.store.migrate import current, downgrade, upgrade
from service.store.tables import metadata
from service.tail import read_new
from tests.service_cases import claim, fresh_store, must, postgres_url, submission

# -- migrations -----------------------------------------------------------------------------------


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    if request.param == "sqlite":
        opened = Database(f"sqlite:///{tmp_path / 'service.db'}")
        yield opened
        opened.close()
    else:
        with postgres_url() as url:
            opened = Database(url)
            yield opened
            opened.close()


def test_migrations_make_the_tables_that_the_code_uses(database: Database) -> None:
    upgrade(database)
    with database.reading() as connection:
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []


def test_migrations_go_up_and_down_and_up(database: Database) -> None:
    assert current(database) is None
    for _ in range(2):
        upgrade(database)
        upgrade(database)
        assert current(database) == "0003"
        downgrade(database, "base")
        assert inspect(database.engine).get_table_names() == ["alembic_version"]


def test_jobs_of_an_older_version_are_found_by_their_text(database: Database) -> None:
    upgrade(database, "0001")
    job = {"id": "a1", "kind": "search", "state": "queued", "owner": "o", "run": "r", "space": "S"}
    job |= {"dataset": "d", "preset": "p", "title": "Été", "pick": "", "request": "{}"}
    job |= {"priority": 5, "created_at": 0.0, "request_digest": "x"}
    names = ", ".join(job)
    values = ", ".join(f":{name}" for name in job)
    with database.writing() as connection:
        connection.execute(text("INSERT INTO runs (id, spec) VALUES ('r', '{}')"))
        connection.execute(text(f"INSERT INTO jobs ({names}) VALUES ({values})"), job)
    upgrade(database)
    jobs = JobStore(database)
    assert [found.id for found in jobs.list(Filter(text="ÉT"), 5)] == ["a1"]
    assert jobs.list(Filter(text="nothing"), 5) == []
    downgrade(database, "0001")
    upgrade(database)
    assert [found.id for found in jobs.list(Filter(text="été"), 5)] == ["a1"]


def test_a_database_of_the_future_is_left_alone(database: Database) -> None:
    upgrade(database)
    with database.writing() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(UsageError, match="newer version 9999"):
        upgrade(database)


@pytest.mark.parametrize("url", ["mysql://x/y", "nonsense", "sqlite"])
def test_other_databases_are_refused(url: str) -> None:
    with pytest.raises(UsageError, match="postgresql://"):
        open_store(url)


# -- retention ------------------------------------------------------------------------------------


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


def test_what_belongs_to_no_job_is_swept_up(disk: Disk) -> None:
    known = disk.run(Action.succeed)
    orphan, young = disk.home / "runs" / "orphan", disk.home / "runs" / "young"
    for folder in (orphan, young, disk.home / "trash" / "left"):
        folder.mkdir(parents=True)
    os.utime(orphan, (0, 0))
    disk.make_room(10)
    assert sorted(p.name for p in (disk.home / "runs").iterdir()) == sorted([known.run, "young"])
    assert not (disk.home / "trash" / "left").exists()


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


# -- journals -------------------------------------------------------------------------------------


def test_a_journal_is_read_in_whole_lines(tmp_path: Path) -> None:
    file = tmp_path / "events.jsonl"
    assert read_new(file, 0, tmp_path) == ([], 0)
    file.write_text('{"event": "A"}\n{"event": "B"')
    events, offset = read_new(file, 0, tmp_path)
    assert ([event["event"] for event in events], offset) == (["A"], 15)
    assert read_new(file, offset, tmp_path) == ([], offset)
    file.write_text('{"event": "A"}\n{"event": "B"}\n')
    assert [event["event"] for event in read_new(file, offset, tmp_path)[0]] == ["B"]


def test_what_is_no_event_is_passed_over(tmp_path: Path) -> None:
    file = tmp_path / "events.jsonl"
    lines = ['{"event": "A", "x": NaN}', '{"eve', "[1]", "", '{"event": 3}', '{"event": "B"}']
    file.write_text("\n".join(lines) + "\n")
    events, offset = read_new(file, 0, tmp_path)
    assert events == [{"event": "A", "x": None}, {"event": "B"}]
    assert offset == file.stat().st_size


def test_a_journal_that_was_made_anew_is_read_from_its_start(tmp_path: Path) -> None:
    file = tmp_path / "events.jsonl"
    file.write_text('{"event": "A"}\n')
    assert len(read_new(file, 999, tmp_path)[0]) == 1


def test_the_place_of_the_home_folder_is_left_out(tmp_path: Path) -> None:
    file = tmp_path / "events.jsonl"
    file.write_text(json.dumps({"event": "A", "message": f"see {tmp_path}/runs"}) + "\n")
    assert read_new(file, 0, tmp_path)[0][0]["message"] == "see HOME/runs"


def test_events_are_summed_up() -> None:
    events = [
        {"event": "StageStarted", "stage": "observe", "label": "Observe", "total": None},
        {"event": "ArchitectureMeasured", "stage": "observe"},
        {"event": "Progress", "stage": "observe", "done": 1, "total": 4, "message": "one"},
        {"event": "Progress", "stage": "observe", "done": 2, "total": 4, "message": ""},
        {"event": "FrontUpdated", "stage": "front", "points": [{}, {}], "hypervolume": 0.5},
        {"event": "SomethingNew"},
    ]
    expected = Summary("observe", "Observe", 2, 4, "one", 1, 2, 0.5)
    assert summarise(Summary(), events) == expected
