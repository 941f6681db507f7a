"""What the store promises, on every database it runs on."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import pytest

from service import job_json
from service.auth import Role, digest_of, new_token
from service.jobs import (
    TRANSITIONS,
    Action,
    Job,
    JobStateError,
    Kind,
    LeaseLostError,
    State,
    Summary,
)
from service.schemas import JobOut
from service.store import Store, database
from service.store.database import DatabaseAwayError
from service.store.listing import Filter
from service.store.submissions import IdempotencyError
from service.store.tables import metadata
from tests.service_cases import claim, fresh_store, must, postgres_url, submission

DATABASES = ["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)]


@pytest.fixture(scope="module", params=DATABASES)
def shared(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Store]:
    if request.param == "sqlite":
        with fresh_store(f"sqlite:///{tmp_path_factory.mktemp('store') / 'service.db'}") as opened:
            yield opened
    else:
        with postgres_url() as url, fresh_store(url) as opened:
            yield opened


@pytest.fixture
def store(shared: Store) -> Store:
    """The same database for all tests, empty for each."""
    with shared.database.writing() as connection:
        for table in reversed(metadata.sorted_tables):
            connection.execute(table.delete())
    return shared


def submit(store: Store, owner: str = "alice", **values: object) -> Job:
    return store.jobs.submit(submission(owner, **values))[0]


def states(store: Store, job: Job) -> list[str]:
    return [str(e.data["state"]) for e in store.events.after(job.id, 0, 100) if "state" in e.data]


# -- submitting and looking -----------------------------------------------------------------------


def test_a_new_job_waits_and_has_said_so(store: Store) -> None:
    job = submit(store, title="mine")
    assert (job.state, job.run, job.title, job.attempt) == (State.queued, job.id, "mine", 0)
    assert store.jobs.get(job.id) == job
    assert states(store, job) == ["queued"]
    assert store.jobs.get("0" * 20) is None


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
    for states, text, before, owner in product(pairs, texts, befores, (None, "bob")):
        wanted = Filter(owner, states, None, None, None, text, before)
        expected = [job.id for job in every if fits(job, wanted)]
        for limit in (2, 10):
            assert [job.id for job in store.jobs.list(wanted, limit)] == expected[:limit]
            assert [row["id"] for row in store.jobs.listed(wanted, limit)] == expected[:limit]


def fits(job: Job, wanted: Filter) -> bool:
    """The obvious twin of a filter."""
    words = [text.lower() for text in (job.title, job.space, job.dataset, job.id)]
    return (
        wanted.owner in (None, job.owner)
        and (not wanted.states or job.state in wanted.states)
        and (wanted.before is None or job.id < wanted.before)
        and (wanted.text is None or any(wanted.text.lower() in word for word in words))
    )


def test_a_listed_job_is_told_as_one_that_is_checked(store: Store) -> None:
    submit(store, title="a\u2028b")
    submit(store, "bob")
    taken = must(claim(store))
    summary = Summary("observe", "Observe networks", 3, 9, "so", 2, 4, 0.25, 7.0, 8.0)
    store.leases.append(taken, [], 10, summary)
    jobs = store.jobs.list(Filter(), 10)
    slow = [json.loads(JobOut.of(job, whole=False).model_dump_json()) for job in jobs]
    fast = json.loads(bytes(job_json.page(store.jobs.listed(Filter(), 10), None).body))
    assert fast == {"jobs": slow, "next": None}
    assert json.loads(bytes(job_json.whole(jobs[0]).body)) == json.loads(
        JobOut.of(jobs[0]).model_dump_json()
    )


# -- claiming -------------------------------------------------------------------------------------


def test_a_claimed_job_is_not_claimed_again(store: Store) -> None:
    job = submit(store)
    taken = must(claim(store))
    assert (taken.id, taken.state, taken.attempt, taken.worker) == (job.id, "running", 1, "w1")
    assert taken.started_at is not None
    assert claim(store, "w2") is None


def test_the_urgent_come_first_then_the_oldest(store: Store) -> None:
    first, second = submit(store), submit(store)
    urgent = submit(store, priority=9)
    assert [must(claim(store)).id for _ in range(3)] == [urgent.id, *sorted([first.id, second.id])]


def test_an_owner_has_only_so_many_at_once(store: Store) -> None:
    submit(store), submit(store)
    other = submit(store, "bob")
    claim(store, jobs_per_owner=1)
    assert must(claim(store, jobs_per_owner=1)).id == other.id
    assert claim(store, jobs_per_owner=1) is None


def test_a_run_has_one_job_at_once(store: Store) -> None:
    search = submit(store)
    store.leases.end(must(claim(store)), Action.succeed)
    twice = [submit(store, kind=Kind.retrain, spec=None, run=search.run) for _ in range(2)]
    first = must(claim(store))
    assert claim(store) is None
    store.leases.end(first, Action.succeed)
    assert {first.id, must(claim(store)).id} == {job.id for job in twice}


def test_a_job_is_taken_over_from_a_silent_worker(store: Store) -> None:
    submit(store)
    lost = must(claim(store))
    assert claim(store, "w2", stale_s=100.0) is None
    taken = must(claim(store, "w2", stale_s=-1.0))
    assert (taken.id, taken.attempt, taken.losses, taken.worker) == (lost.id, 2, 1, "w2")
    assert states(store, taken) == ["queued", "running", "running"]


def test_a_job_that_kills_its_workers_fails(store: Store) -> None:
    job = submit(store)
    claim(store)
    claim(store, stale_s=-1.0, max_losses=2)
    assert claim(store, stale_s=-1.0, max_losses=2) is None
    failed = must(store.jobs.get(job.id))
    assert failed.state is State.failed
    assert "2 workers died" in str(failed.error)


def test_many_workers_claim_each_job_once(store: Store) -> None:
    made = {submit(store).id for _ in range(12)}
    taken: list[str] = []

    def work(name: str) -> None:
        while (job := claim(store, name)) is not None:
            taken.append(job.id)

    threads = [threading.Thread(target=work, args=(f"w{n}",)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(taken) == 12
    assert set(taken) == made


# -- working --------------------------------------------------------------------------------------


def test_events_are_numbered_and_summed_up(store: Store) -> None:
    submit(store)
    job = must(claim(store))
    job = store.leases.append(job, [{"event": "Note"}, {"event": "Note"}], 80, Summary("observe"))
    job = store.leases.append(job, [{"event": "Note", "time": 5.0}], 99, Summary("rank"))
    found = store.events.after(job.id, 2, 10)
    assert [event.seq for event in found] == [3, 4, 5]
    assert (found[-1].time, found[-1].attempt, found[-1].name) == (5.0, 1, "Note")
    assert (job.events_offset, job.last_seq, job.summary.stage) == (99, 5, "rank")
    assert [event.seq for event in store.events.after(job.id, 4, 10)] == [5]


@pytest.mark.parametrize("write", ["beat", "append", "end"])
def test_a_late_worker_can_write_nothing(store: Store, write: str) -> None:
    submit(store)
    late = must(claim(store))
    taken = must(claim(store, "w2", stale_s=-1.0))
    writes = {
        "beat": lambda: store.leases.beat(late),
        "append": lambda: store.leases.append(late, [{"event": "Note"}], 9, Summary()),
        "end": lambda: store.leases.end(late, Action.succeed),
    }
    with pytest.raises(LeaseLostError):
        writes[write]()
    assert store.jobs.get(late.id) == taken


def test_the_same_events_are_not_written_twice(store: Store) -> None:
    submit(store)
    before = must(claim(store))
    after = store.leases.append(before, [{"event": "Note"}], 9, Summary())
    with pytest.raises(LeaseLostError):
        store.leases.append(before, [{"event": "Note"}], 9, Summary())
    assert store.jobs.get(before.id) == after


def test_a_released_job_waits_again(store: Store) -> None:
    job = submit(store)
    released = store.leases.end(must(claim(store)), Action.release)
    assert (released.state, released.ended_at) == (State.queued, None)
    assert must(claim(store)).id == job.id


def in_state(store: Store, state: State) -> Job:
    job = submit(store)
    if state is State.queued:
        return job
    job = must(claim(store))
    actions = {State.succeeded: Action.succeed, State.failed: Action.fail}
    actions[State.cancelled] = Action.stop
    return store.leases.end(job, actions[state], "why") if state in actions else job


@pytest.mark.parametrize("state", list(State))
@pytest.mark.parametrize("action", [Action.succeed, Action.fail, Action.stop, Action.release])
def test_only_what_the_table_allows_happens(store: Store, state: State, action: Action) -> None:
    job = in_state(store, state)
    sources, target = TRANSITIONS[action]
    if state in sources:
        assert store.leases.end(job, action).state is target
        assert states(store, job)[-1] == target
    else:
        with pytest.raises(LeaseLostError):
            store.leases.end(job, action)
        assert store.jobs.get(job.id) == job


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
