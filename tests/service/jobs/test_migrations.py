"""Migrations, retention, and reading journals: what keeps a service going for years."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import inspect, text

from search_spaces.errors import DataError, NasError, UsageError
from service.jobs.database import Database
from service.jobs.job_store import JobStore
from service.jobs.listing import Filter
from service.jobs.migrate import current, downgrade, upgrade
from service.jobs.states import Summary
from service.jobs.store import open_store
from service.jobs.tables import metadata
from service.worker.event_reader import read_new, summarise
from tests.support.service_cases import postgres_url

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
        assert current(database) == "0005"
        downgrade(database, "base")
        assert inspect(database.engine).get_table_names() == ["alembic_version"]


def test_a_file_that_is_no_database_or_a_damaged_one_is_told(tmp_path: Path) -> None:
    file = tmp_path / "service.db"
    file.write_text("junk\n")
    with pytest.raises(DataError, match=f"{file} is no SQLite database"):
        upgrade(Database(f"sqlite:///{file}"))
    file.unlink()
    made = Database(f"sqlite:///{file}")
    upgrade(made)
    made.close()
    content = file.read_bytes()
    file.write_bytes(content[:100] + b"x" * 8000 + content[8100:])
    with pytest.raises(DataError, match=f"{file} is a damaged SQLite database"):
        upgrade(Database(f"sqlite:///{file}"))
    file.unlink()
    file.mkdir(mode=0o750)
    with pytest.raises(NasError, match="unable to open"):
        upgrade(Database(f"sqlite:///{file}"))
    assert file.stat().st_mode & 0o777 == 0o750


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
        {"event": "ArchitectureMeasured", "stage": "observe", "metrics": {"quality": 0.5}},
        {"event": "Progress", "stage": "observe", "done": 1, "total": 4, "message": "one"},
        {"event": "Progress", "stage": "observe", "done": 2, "total": 4, "message": ""},
        {"event": "FrontUpdated", "stage": "front", "points": [{}, {}], "hypervolume": 0.5},
        {"event": "SomethingNew"},
    ]
    expected = Summary("observe", "Observe", 2, 4, "one", 1, 2, 0.5)
    assert summarise(Summary(), events) == expected
