"""What the store promises of tokens, workers, room and the disk."""

from __future__ import annotations

from dataclasses import replace

import pytest

from service.auth import Role, digest_of, new_token
from service.jobs import State
from service.store import Store, database
from service.store.database import DatabaseAwayError
from tests import store_cases
from tests.service_cases import claim, must
from tests.store_cases import in_state, submit

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
    assert store.retention.candidates("nothing") == [failed.run]
    with store.retention.shrinking(failed.run, "nothing") as allowed:
        assert allowed
    with store.retention.shrinking(waiting.run, "nothing") as allowed:
        assert not allowed
    assert (store.retention.kept(failed.run), store.retention.kept(waiting.run)) == (
        "nothing",
        "all",
    )


# -- the disk -------------------------------------------------------------------------------------


def test_nothing_is_told_before_it_is_on_the_disk(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not store.database.is_sqlite:
        pytest.skip("PostgreSQL does so by itself")
    synced: list[int] = []
    monkeypatch.setattr(database, "_sync", synced.append)
    job = submit(store)
    must(claim(store))
    assert len(synced) == 2

    def refuse(_: int) -> None:
        raise OSError("no space")

    monkeypatch.setattr(database, "_sync", refuse)
    with pytest.raises(DatabaseAwayError, match="no space"):
        submit(store)
    with pytest.raises(DatabaseAwayError, match="no space"):
        store.jobs.cancel(job.id, 20.0)
