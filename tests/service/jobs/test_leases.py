"""What the store promises of work: each job has one worker, and only that one can write."""

from __future__ import annotations

import threading

import pytest

from service.jobs.states import Action, Kind, LeaseLostError, State, Summary
from service.jobs.store import Store
from tests.support import store_cases
from tests.support.service_cases import claim, must
from tests.support.store_cases import in_state, states, submit

shared, store = store_cases.shared, store_cases.store


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


def test_a_lost_job_is_given_back_as_often_as_workers_may_die(store: Store) -> None:
    job = submit(store)
    for losses in (1, 2):
        store.leases.give_back(must(claim(store)), 3, "no answer")
        back = must(store.jobs.get(job.id))
        assert (back.state, back.losses, back.ended_at) == (State.queued, losses, None)
    assert dict(store.events.after(job.id, 0, 100)[-1].data)["reason"] == "no answer"
    store.leases.give_back(must(claim(store)), 3, "no answer")
    failed = must(store.jobs.get(job.id))
    assert failed.state is State.failed and "3 workers died" in str(failed.error)


def test_what_came_to_a_lost_job_is_kept(store: Store) -> None:
    submit(store)
    claimed = must(claim(store))
    store.leases.append(claimed, [{"event": "Note"}], 9, Summary("observe", measured=7))
    store.leases.give_back(claimed, 10, "")
    back = must(store.jobs.get(claimed.id))
    assert (back.state, back.events_offset, back.summary.measured) == (State.queued, 9, 7)


def test_only_its_own_worker_gives_a_lost_job_back(store: Store) -> None:
    submit(store)
    lost = must(claim(store))
    taken = must(claim(store, "w2", stale_s=-1.0))
    store.leases.give_back(lost, 10, "")
    assert store.jobs.get(lost.id) == taken
    ended = store.leases.end(taken, Action.succeed)
    store.leases.give_back(taken, 10, "")
    assert store.jobs.get(lost.id) == ended


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


# Spelled out, and not asked of the table that the store follows: what a worker may say of a job
# that it holds, and what becomes of it. Of any other job it can say nothing.
ENDINGS = {
    Action.succeed: State.succeeded,
    Action.fail: State.failed,
    Action.stop: State.cancelled,
    Action.release: State.queued,
}


@pytest.mark.parametrize("action", ENDINGS)
def test_only_a_running_job_ends(store: Store, action: Action) -> None:
    job = in_state(store, State.running)
    ended = store.leases.end(job, action)
    assert ended.state is ENDINGS[action] and states(store, job)[-1] == ENDINGS[action]
    for state in (State.queued, State.succeeded, State.failed, State.cancelled):
        other = in_state(store, state)
        with pytest.raises(LeaseLostError):
            store.leases.end(other, action)
        assert store.jobs.get(other.id) == other
