"""What the store promises of tokens, workers, room and the disk."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import Connection

from service.auth import Role, digest_of, new_token
from service.jobs.database import DatabaseFullError, Reserve
from service.jobs.states import State
from service.jobs.store import Store
from service.jobs.tables import runs
from tests.support import store_cases
from tests.support.service_cases import fresh_store
from tests.support.store_cases import in_state, submit

shared, store = store_cases.shared, store_cases.store


# -- tokens, workers, space -----------------------------------------------------------------------


def test_tokens_are_found_by_their_digest_while_they_are_good(store: Store) -> None:
    token, secret = new_token("alice", Role.submitter)
    old, old_secret = new_token("bob", Role.reader, expires_at=1.0)
    store.tokens.add(token, digest_of(secret))
    store.tokens.add(replace(old, created_at=2.0), digest_of(old_secret))
    assert store.tokens.valid(digest_of(secret)) == token
    assert store.tokens.valid(digest_of(old_secret)) is None
    assert store.tokens.valid(digest_of("nas_guess")) is None
    assert [one.name for one in store.tokens.list()] == ["bob", "alice"]


def test_a_revoked_token_is_good_no_more(store: Store) -> None:
    token, secret = new_token("alice", Role.submitter)
    store.tokens.add(token, digest_of(secret))
    assert store.tokens.good(token.id)
    assert store.tokens.revoke(token.id)
    assert store.tokens.valid(digest_of(secret)) is None
    assert not store.tokens.revoke(token.id)
    assert store.tokens.count() == 1


def test_workers_are_alive_until_they_leave_or_fall_silent(store: Store) -> None:
    store.workers.beat("w1", None)
    store.workers.beat("w1", "job")
    assert [(one.name, one.job) for one in store.workers.alive(20.0)] == [("w1", "job")]
    assert store.workers.alive(-1.0) == []
    store.workers.leave("w1")
    assert store.workers.alive(20.0) == []


def test_only_ended_runs_are_made_smaller(store: Store) -> None:
    failed, waiting = in_state(store, State.failed), submit(store)
    for job in (failed, waiting):
        store.retention.note(job.run, 10)
    assert store.retention.total() == 20
    assert store.retention.candidates("nothing") == [(failed.run, "all")]
    assert store.retention.shrink(failed.run, "nothing")
    assert not store.retention.shrink(waiting.run, "nothing")
    assert (store.retention.kept(failed.run), store.retention.kept(waiting.run)) == (
        "nothing",
        "all",
    )


# -- the disk -------------------------------------------------------------------------------------


def test_what_is_told_is_on_the_disk(store: Store) -> None:
    if not store.database.is_sqlite:
        pytest.skip("PostgreSQL does so by itself")
    with store.database.writing() as connection:
        assert connection.exec_driver_sql("PRAGMA synchronous").scalar_one() == 2  # FULL
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar_one() == "wal"


def test_a_full_disk_is_told_apart(store: Store) -> None:
    if not store.database.is_sqlite:
        pytest.skip("a limit of pages is SQLite's")
    submit(store)
    with pytest.raises(DatabaseFullError), store.database.writing() as connection:
        pages = connection.exec_driver_sql("PRAGMA page_count").scalar_one()
        connection.exec_driver_sql(f"PRAGMA max_page_count = {pages}")
        try:
            connection.execute(runs.insert().values(id="big", spec="x" * 1_000_000))
        finally:
            connection.exec_driver_sql(f"PRAGMA max_page_count = {2**31}")


def test_jobs_are_cancelled_and_deleted_with_the_room_that_is_kept_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with fresh_store(f"sqlite:///{tmp_path / 'service.db'}") as store:
        reserve, job = tmp_path / "service.db-reserve", submit(store)
        writing = store.database.writing

        @contextmanager
        def without_room() -> Iterator[Connection]:
            if reserve.exists():
                raise DatabaseFullError("database or disk is full")
            with writing() as connection:
                yield connection

        for call in (lambda: store.jobs.cancel(job.id, 20.0), lambda: store.jobs.delete(job.id)):
            store.database.reserve.keep()
            assert reserve.stat().st_blocks * 512 >= 2**21
            monkeypatch.setattr(store.database, "writing", without_room)
            assert call() is not None
            with pytest.raises(DatabaseFullError):
                submit(store)  # nobody else gets it
            monkeypatch.setattr(store.database, "writing", writing)


def test_without_room_none_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: int) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr("os.posix_fallocate", full)
    Reserve(str(tmp_path / "service.db")).keep()
    Reserve(None).keep()
    assert list(tmp_path.iterdir()) == []


def test_nobody_else_reads_the_database(tmp_path: Path) -> None:
    file = tmp_path / "service.db"
    file.touch(mode=0o644)
    with fresh_store(f"sqlite:///{file}"):
        modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
    assert modes == dict.fromkeys(("service.db", "service.db-wal", "service.db-shm"), 0o600)
