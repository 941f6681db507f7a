"""What the store promises of jobs: submitted, listed, cancelled, retried and deleted."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import product
from typing import Any

import pytest

from search_spaces.errors import UsageError
from service.api.schemas import JobOut, Progress
from service.jobs.job_store import Words
from service.jobs.listing import Filter, Order
from service.jobs.states import Action, Job, JobStateError, Kind, LeaseLostError, State, Summary
from service.jobs.store import Store
from service.jobs.submissions import IdempotencyError, NoRoomError, Quotas
from tests.support import store_cases
from tests.support.service_cases import SMOKE, claim, fresh_store, must, postgres_url, submission
from tests.support.store_cases import in_state, states, submit

shared, store = store_cases.shared, store_cases.store


# -- submitting and looking -----------------------------------------------------------------------


def test_a_new_job_waits_and_has_said_so(store: Store) -> None:
    job = submit(store, title="mine")
    assert (job.state, job.run, job.title, job.attempt) == (State.queued, job.id, "mine", 0)
    assert store.jobs.get(job.id) == job
    assert states(store, job) == ["queued"]
    assert store.jobs.get("0" * 20) is None


@pytest.mark.postgres
def test_a_database_in_no_encoding_holds_any_text() -> None:
    none = "ENCODING 'SQL_ASCII' TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C'"
    with postgres_url(none) as url, fresh_store(url) as store:
        job = submit(store, title="größer")
        assert must(store.jobs.get(job.id)).title == "größer"
        assert claim(store) is not None


def test_a_key_gives_the_same_job_again(store: Store) -> None:
    first, new = store.jobs.submit(submission(key="k"))
    again, newer = store.jobs.submit(submission(key="k"))
    assert (new, newer) == (True, False)
    assert first == again
    assert submit(store, "bob", key="k").id != first.id


def test_a_key_is_not_for_another_request(store: Store) -> None:
    submit(store, key="k")
    with pytest.raises(IdempotencyError):
        submit(store, key="k", request={"space": "listops"})


def test_lists_are_newest_first_and_in_pages(store: Store) -> None:
    made = [submit(store).id for _ in range(5)]
    newest = sorted(made, reverse=True)
    first = [job.id for job in store.jobs.list(Filter(), 3)]
    rest = [job.id for job in store.jobs.list(Filter(before=first[-1]), 3)]
    assert first + rest == newest


def test_lists_are_filtered(store: Store) -> None:
    mine = submit(store, title="50% of_it")
    other = submit(store, "bob", space="listops")
    claim(store, jobs_per_owner=100)

    def found(**wanted: object) -> list[str]:
        return [job.id for job in store.jobs.list(Filter(**wanted), 10)]  # type: ignore[arg-type]

    assert found(owner="bob") == found(space="listops") == [other.id]
    assert (
        found(states=(State.running,)) == found(text="50% OF_") == found(run=mine.run) == [mine.id]
    )
    assert found(text="5_%") == found(kind=Kind.retrain) == []
    assert store.jobs.counts("bob")[State.queued] == 1


def test_every_list_is_that_of_reading_all_jobs(store: Store) -> None:
    for number, title in enumerate(("Été", "one", "o\u0301ne %_", "x" * 200, "", "ONE two")):
        made = submit(store, ("alice", "bob")[number % 2], title=title)
        if number % 3 == 0:
            store.jobs.cancel(made.id, 20.0)
    claim(store, jobs_per_owner=100)
    every = store.jobs.list(Filter(), 100)
    pairs = ((), (State.queued,), (State.queued, State.cancelled), tuple(State))
    texts = (None, "one", "ÉT", "%_", "digits", every[2].id[-7:].upper())
    befores = (None, every[1].id, every[-1].id)
    for among, text, before, owner in product(pairs, texts, befores, (None, "bob")):
        wanted = Filter(owner, among, None, None, None, text, before)
        expected = [job.id for job in every if fits(job, wanted)]
        for limit in (2, 10):
            assert [job.id for job in store.jobs.list(wanted, limit)] == expected[:limit]


def fits(job: Job, wanted: Filter) -> bool:
    """The obvious twin of a filter."""
    words = [text.lower() for text in (job.title, job.space, job.dataset, job.id)]
    return (
        wanted.owner in (None, job.owner)
        and (not wanted.states or job.state in wanted.states)
        and (wanted.before is None or job.id < wanted.before)
        and (wanted.text is None or any(wanted.text.lower() in word for word in words))
    )


def test_every_order_has_pages_that_lead_to_every_job_once(store: Store) -> None:
    for number, title in enumerate(("b", "", "A", "b", "c")):
        submit(store, ("alice", "bob")[number % 2], title=title, space=("s", "t")[number % 3 == 0])
    for worked_s in (2.5, 0.1, 7.0):
        job = must(claim(store))
        job = store.leases.append(job, [], 1, Summary(worked_s=worked_s, hypervolume=worked_s / 9))
        store.leases.end(job, Action.succeed if worked_s > 1 else Action.fail)
    every = store.jobs.list(Filter(), 10)
    keys: dict[Order, Callable[[Job], Any]] = {
        Order.created: lambda job: job.id,
        Order.ended: lambda job: job.ended_at or 1e12,
        Order.work: lambda job: job.summary.worked_s if job.summary.worked_s else -1.0,
        Order.hypervolume: lambda job: job.summary.hypervolume or -1.0,
        Order.titled: lambda job: job.title.lower(),
        Order.owner: lambda job: job.owner,
        Order.space: lambda job: job.space,
        Order.state: lambda job: str(job.state),
    }
    for order, backwards in product(Order, (False, True)):
        ascends = order.ascends is not backwards
        expected = [job.id for job in sorted(every, key=keys[order], reverse=not ascends)]
        seen: list[str] = []
        while len(seen) < len(every):
            before = seen[-1] if seen else None
            wanted = Filter(order=order, backwards=backwards, before=before)
            seen += [job.id for job in store.jobs.list(wanted, 2)]
        assert seen == expected, order
    with pytest.raises(UsageError, match="is gone; begin anew"):
        store.jobs.list(Filter(order=Order.ended, before="0" * 20), 2)


def test_owners_find_jobs_by_their_own_words_and_days(store: Store) -> None:
    job = submit(store, tags=("paper", "run-1"), notes="see line 3")
    plain = submit(store, "bob")
    today = datetime.fromtimestamp(job.created_at, UTC).date()
    day = timedelta(days=1)

    def found(**wanted: Any) -> list[str]:
        return [job.id for job in store.jobs.list(Filter(**wanted), 10)]

    assert (
        found(tags=("paper",)) == found(tags=("run-1", "paper")) == found(text="RUN-1") == [job.id]
    )
    assert found(tags=("run",)) == found(since=today + day) == found(until=today - day) == []
    assert found(since=today, until=today) == [plain.id, job.id]
    assert (store.jobs.tags(), store.jobs.tags("bob")) == (["paper", "run-1"], [])
    assert store.jobs.owners() == ["alice", "bob"]


def test_words_are_changed_with_an_event_and_found_again(store: Store) -> None:
    job = submit(store, title="old", tags=("a",))
    changed = must(store.jobs.edit(job.id, Words(title="Neu\u00dc", notes="n" * 4000), "root"))
    assert (changed.title, changed.tags, len(changed.notes)) == ("Neu\u00dc", ("a",), 4000)
    assert [one.id for one in store.jobs.list(Filter(text="neu\u00fc"), 1)] == [job.id]
    assert store.jobs.list(Filter(text="old"), 1) == []
    event = store.events.after(job.id, job.last_seq, 9)[-1]
    assert (event.seq, event.name, event.data["by"]) == (changed.last_seq, "JobEdited", "root")
    assert store.jobs.edit(job.id, Words(title="Neu\u00dc"), "root") == changed  # nothing to tell
    assert store.jobs.edit("0" * 20, Words(title="x"), "root") is None
    with pytest.raises(NoRoomError, match="of the database"):
        store.jobs.edit(job.id, Words(notes="x"), "root", Quotas(database_bytes=4000))
    taken = must(claim(store))
    store.jobs.edit(job.id, Words(tags=()), "root")  # who works on it notices nothing
    assert must(store.jobs.get(store.leases.beat(taken).id)).tags == ()


def test_the_longest_words_fit_the_indexes(store: Store) -> None:
    tags = tuple(secrets.token_hex(16) for _ in range(10))
    title = "".join(chr(0x20000 + secrets.randbelow(40_000)) for _ in range(200))
    job = submit(store, title=title, space=secrets.token_hex(50), dataset=title, tags=tags)
    assert [one.id for one in store.jobs.list(Filter(text=tags[-1]), 2)] == [job.id]


def test_a_job_is_told_with_its_progress_and_its_moments(store: Store) -> None:
    submit(store, title="a\u2028b")
    taken = must(claim(store))
    summary = Summary("observe", "Observe networks", 3, 9, "so", 2, 4, 0.25, 7.0, 8.0)
    job = store.leases.append(taken, [], 10, summary)
    told = json.loads(JobOut.of(job).model_dump_json())
    progress = {name: told["progress"].pop(name) for name in Progress.model_fields}
    assert progress == {name: getattr(summary, name) for name in Progress.model_fields}
    assert datetime.fromisoformat(told["created_at"]).timestamp() == pytest.approx(job.created_at)
    assert (told["title"], told["ended_at"]) == ("a\u2028b", None)
    assert (told["last_event"], told["request"]) == (job.last_seq, SMOKE)
    listed = JobOut.listed(job).model_dump(mode="json")
    assert listed == {**json.loads(JobOut.of(job).model_dump_json()), "request": None}


def test_a_list_does_not_read_what_was_requested(store: Store) -> None:
    long = {**SMOKE, "space_toml": "#" * 900_000}
    search = submit(store, request=long)
    format = {"pick": "best", "format": "onnx"}
    made = submit(store, kind=Kind.export, spec=None, run=search.run, pick="1" * 12, request=format)
    export, whole = store.jobs.list(Filter(), 10)
    assert (export.id, export.request) == (made.id, format)
    assert (whole.id, whole.request) == (search.id, {})
    assert must(store.jobs.get(search.id)).request == long


# -- cancelling, retrying, deleting ---------------------------------------------------------------


def test_a_waiting_job_is_cancelled_at_once(store: Store) -> None:
    job = submit(store)
    assert must(store.jobs.cancel(job.id, 20.0)).state is State.cancelled
    assert must(store.jobs.cancel(job.id, 20.0)).state is State.cancelled
    assert claim(store) is None


def test_a_running_job_is_asked_to_stop(store: Store) -> None:
    submit(store)
    job = must(claim(store))
    asked = must(store.jobs.cancel(job.id, 20.0))
    assert (asked.state, asked.cancel_requested) == (State.running, True)
    assert must(store.jobs.cancel(job.id, 20.0)).last_seq == asked.last_seq
    assert store.leases.beat(job).cancel_requested
    assert store.leases.end(asked, Action.stop).state is State.cancelled


def test_a_job_whose_worker_is_gone_is_cancelled_at_once(store: Store) -> None:
    submit(store)
    job = must(claim(store))
    assert must(store.jobs.cancel(job.id, -1.0)).state is State.cancelled
    with pytest.raises(LeaseLostError):
        store.leases.beat(job)


@pytest.mark.parametrize("state", [State.succeeded, State.failed])
def test_an_ended_job_is_not_cancelled(store: Store, state: State) -> None:
    job = in_state(store, state)
    with pytest.raises(JobStateError, match=state):
        store.jobs.cancel(job.id, 20.0)
    assert store.jobs.cancel("0" * 20, 20.0) is None


@pytest.mark.parametrize("state", list(State))
def test_failed_and_cancelled_jobs_are_retried(store: Store, state: State) -> None:
    job = in_state(store, state)
    if state in (State.failed, State.cancelled):
        again = must(store.jobs.retry(job.id))
        assert (again.state, again.error, again.ended_at) == (State.queued, None, None)
        assert must(claim(store)).attempt == job.attempt + 1
    else:
        with pytest.raises(JobStateError):
            store.jobs.retry(job.id)


@pytest.mark.parametrize("state", list(State))
def test_ended_jobs_are_deleted_whole(store: Store, state: State) -> None:
    job = in_state(store, state)
    if state.ended:
        store.jobs.delete(job.id)
        assert store.jobs.get(job.id) is None
        assert store.events.after(job.id, 0, 10) == []
        assert store.retention.known([job.run]) == set()
    else:
        with pytest.raises(JobStateError, match="cancel it first"):
            store.jobs.delete(job.id)


def test_a_search_is_deleted_with_its_retrainings(store: Store) -> None:
    search = in_state(store, State.succeeded)
    other = submit(store, kind=Kind.retrain, spec=None, run=search.run)
    with pytest.raises(JobStateError, match=other.id):
        store.jobs.delete(search.id)
    store.jobs.cancel(other.id, 20.0)
    store.jobs.delete(search.id)
    assert store.jobs.get(other.id) is None


def test_the_time_of_a_stage_that_was_broken_off_is_kept(store: Store) -> None:
    submit(store)
    job = must(claim(store))
    begun = (job.beat_at or 0.0) - 40.0
    job = store.leases.append(job, [], 0, Summary(stage="supernet", stage_at=begun, worked_s=2.0))
    stopped = store.leases.end(job, Action.stop)
    assert stopped.summary.stage_at is None
    assert stopped.summary.worked_s == pytest.approx(42.0, abs=1.0)
    again = must(store.jobs.retry(stopped.id))
    assert again.summary.worked_s == stopped.summary.worked_s  # counted once
