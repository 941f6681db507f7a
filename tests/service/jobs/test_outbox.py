"""Messages to webhooks: written with a job's end, held by one process at a time, within bounds."""

from __future__ import annotations

import json

import pytest
from sqlalchemy import update

from service.jobs import outbox
from service.jobs.outbox import MOST_TRIES, Sending
from service.jobs.states import Action, LeaseLostError, Outcome, State
from service.jobs.store import Store
from service.jobs.tables import deliveries, webhooks
from tests.support import store_cases
from tests.support.service_cases import STALE_S, claim, must
from tests.support.store_cases import submit

shared, store = store_cases.shared, store_cases.store

URL = "https://example.org/hook"


def bodies(store: Store, owner: str = "alice") -> list[str]:
    """What the messages of an owner are about, the oldest first."""
    found = []
    while (sending := store.outbox.claim()) is not None:
        assert sending.owner == owner
        found.append(json.loads(sending.body)["type"])
        assert store.outbox.finish(sending, 200, "", good=True)
    return found


def held(store: Store) -> Sending:
    sending = store.outbox.claim()
    assert sending is not None
    return sending


def pass_by(store: Store) -> None:
    """Let all leases and pauses be over."""
    with store.database.writing() as connection:
        connection.execute(update(webhooks).values(held_until=0))
        waiting = update(deliveries).where(deliveries.c.outcome == Outcome.waiting)
        connection.execute(waiting.values(next_at=0))


def test_every_end_of_a_job_is_told_once(store: Store) -> None:
    store.outbox.set("alice", URL)
    submit(store, "bob")
    for action in (Action.succeed, Action.fail, Action.stop, Action.release):
        submit(store)
        job = must(claim(store))
        while job.owner != "alice":
            job = must(claim(store))
        ended = store.leases.end(job, action, error="why" if action is Action.fail else None)
        with pytest.raises(LeaseLostError):
            store.leases.end(job, action)
    store.jobs.cancel(ended.id, STALE_S)
    kinds = ["webhook.set", "job.succeeded", "job.failed", *["job.cancelled"] * 2]
    assert bodies(store) == kinds
    last = store.outbox.last("alice", 10)
    assert last[0].job == ended.id and last[-1].job is None
    assert {one.outcome for one in last} == {Outcome.delivered}


def test_a_message_tells_of_the_job(store: Store) -> None:
    store.outbox.set("alice", URL)
    bodies(store)
    job = submit(store, title="T", tags=("a",))
    store.leases.end(must(claim(store)), Action.fail, error="x" * 5000)
    told = json.loads(held(store).body)
    assert (told["type"], told["data"]["id"], told["data"]["state"]) == (
        "job.failed",
        job.id,
        "failed",
    )
    assert (told["data"]["title"], told["data"]["tags"]) == ("T", ["a"])
    assert len(told["data"]["error"]) == 1000 and told["timestamp"].endswith("+00:00")


def test_one_process_delivers_to_an_owner_at_a_time(store: Store) -> None:
    for owner in ("alice", "bob"):
        store.outbox.set(owner, URL)
        store.outbox.set(owner, URL)
    first, second = held(store), held(store)
    assert {first.owner, second.owner} == {"alice", "bob"}
    assert store.outbox.claim() is None
    assert store.outbox.finish(first, 200, "", good=True)
    third = held(store)
    assert (third.owner, third.id > first.id) == (first.owner, True)
    assert not store.outbox.finish(first, 500, "late", good=False)


def test_who_was_frozen_or_killed_is_replaced_and_writes_nothing(store: Store) -> None:
    store.outbox.set("alice", URL)
    frozen = held(store)
    pass_by(store)
    other = held(store)
    assert (other.id, other.tries) == (frozen.id, 2)
    assert not store.outbox.finish(frozen, 500, "old", good=False)
    assert store.outbox.finish(other, 204, "new", good=True)
    (told,) = store.outbox.last("alice", 5)
    assert (told.outcome, told.status, told.answer) == (Outcome.delivered, 204, "new")


def test_a_failure_is_tried_again_ever_later_and_then_given_up(store: Store) -> None:
    store.outbox.set("alice", URL)
    pauses = []
    for _ in range(MOST_TRIES):
        pass_by(store)
        assert store.outbox.finish(held(store), None, "refused", good=False)
        (told,) = store.outbox.last("alice", 5)
        pauses.append((told.next_at or 0) - told.created_at)
        assert store.outbox.claim() is None
    assert pauses[:-1] == sorted(pauses[:-1]) and pauses[-2] > 12 * 3600
    assert (told.outcome, told.tries, told.next_at) == (Outcome.failed, MOST_TRIES, None)


def test_a_new_address_takes_what_waits_and_an_old_one_writes_nothing(store: Store) -> None:
    store.outbox.set("alice", URL)
    before = held(store)
    store.outbox.set("alice", URL + "/new")
    assert not store.outbox.finish(before, 200, "", good=True)
    pass_by(store)
    after = held(store)
    assert (after.id, after.url) == (before.id, URL + "/new") and after.secret != before.secret
    assert store.outbox.remove("alice") and not store.outbox.remove("alice")
    assert not store.outbox.finish(after, 200, "", good=True)
    assert store.outbox.last("alice", 5) == [] and store.outbox.claim() is None


def test_a_new_address_is_told_at_once_also_while_another_is_sent_to(store: Store) -> None:
    store.outbox.set("alice", URL)
    bodies(store)
    submit(store)
    store.leases.end(must(claim(store)), Action.succeed)
    before = held(store)
    store.outbox.set("alice", URL + "/new")
    first = held(store)
    assert (first.url, json.loads(first.body)["type"]) == (URL + "/new", "webhook.set")
    assert not store.outbox.finish(before, 500, "late", good=False)
    assert store.outbox.claim() is None  # who was late has not let go of what is another's
    assert store.outbox.finish(first, 200, "", good=True)
    then = held(store)
    assert (then.id, then.url, then.tries) == (before.id, URL + "/new", 2)


def test_who_sent_to_an_address_that_was_removed_lets_go_of_no_other(store: Store) -> None:
    store.outbox.set("alice", URL)
    before = held(store)
    store.outbox.remove("alice")
    store.outbox.set("alice", URL)
    after = held(store)
    store.outbox.set("bob", URL)
    assert not store.outbox.finish(before, 200, "", good=True)
    assert held(store).owner == "bob"
    assert store.outbox.finish(after, 200, "", good=True)


def test_clocks_that_are_set_back_hold_nothing_up(store: Store) -> None:
    store.outbox.set("alice", URL)
    with store.database.writing() as connection:
        connection.execute(update(webhooks).values(held_until=4e9))
        connection.execute(update(deliveries).values(next_at=4e9))
    assert held(store).tries == 1


def test_messages_are_kept_within_bounds(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox, "KEPT", 3)
    for owner in ("alice", "bob"):
        for _ in range(5):
            store.outbox.set(owner, URL)
    assert [len(store.outbox.last(owner, 9)) for owner in ("alice", "bob")] == [3, 3]
    assert store.outbox.finish(held(store), 200, "", good=True)
    store.outbox.tidy()
    assert len(store.outbox.last("alice", 9)) == 3
    with store.database.writing() as connection:
        old = update(deliveries).where(deliveries.c.outcome == Outcome.delivered)
        connection.execute(old.values(ended_at=1.0))
        connection.execute(webhooks.delete().where(webhooks.c.owner == "bob"))
    store.outbox.tidy()
    assert [len(store.outbox.last(owner, 9)) for owner in ("alice", "bob")] == [2, 0]


def test_an_end_without_a_webhook_writes_nothing(store: Store) -> None:
    submit(store)
    ended = store.leases.end(must(claim(store)), Action.succeed)
    assert ended.state is State.succeeded and store.outbox.claim() is None
