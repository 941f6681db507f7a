"""Clocks that jump: no job is lost by it, and none is done twice."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import text

from service.jobs.leases import LeaseStore, Signs
from service.jobs.states import Job, LeaseLostError, State
from service.jobs.store import Store
from tests.support import store_cases
from tests.support.service_cases import STALE_S, Clock, must
from tests.support.store_cases import submit

shared, store = store_cases.shared, store_cases.store
HOUR_S = 3600.0
BACK, FORWARD = HOUR_S, -HOUR_S  # a sign of before the jump, as it looks after it


class Watch:
    """A worker that looks for work, by a clock of its own."""

    def __init__(self, store: Store) -> None:
        self.clock = Clock()
        self.leases = LeaseStore(store.database, self.clock)

    def claim(self) -> Job | None:
        return self.leases.claim("watch", stale_s=STALE_S, jobs_per_owner=9, max_losses=9)

    def claim_within(self, seconds: float) -> Job | None:
        """What it gets when it asks each second."""
        for _ in range(round(seconds)):
            self.clock.now += 1
            if (job := self.claim()) is not None:
                return job
        return None


@pytest.fixture
def watch(store: Store) -> Iterator[Watch]:
    yield Watch(store)


def held(store: Store) -> Job:
    submit(store)
    return must(store.leases.claim("w1", stale_s=STALE_S, jobs_per_owner=9, max_losses=9))


def jump(store: Store, seconds: float) -> None:
    """Move what is written of the past, which is all that a clock that jumps the other way does."""
    with store.database.writing() as connection:
        for table in ("jobs", "workers"):
            connection.execute(
                text(f"UPDATE {table} SET beat_at = beat_at + :moved"), {"moved": seconds}
            )


@pytest.mark.parametrize("moved", [0.0, BACK, FORWARD])
def test_a_dead_worker_is_found_whatever_the_clock_says(
    store: Store, watch: Watch, moved: float
) -> None:
    job = held(store)
    jump(store, moved)
    assert watch.claim_within(STALE_S) is None
    taken = must(watch.claim_within(5))
    assert (taken.id, taken.attempt, taken.losses) == (job.id, 2, 1)
    assert watch.claim_within(STALE_S) is None  # it is not silent anew, but for as long as any


@pytest.mark.parametrize("moved", [BACK, FORWARD])
def test_a_living_worker_keeps_its_job_whatever_the_clock_says(
    store: Store, watch: Watch, moved: float
) -> None:
    job = held(store)
    for _ in range(5):
        assert watch.claim_within(STALE_S / 2) is None
        jump(store, moved)
        assert watch.claim_within(STALE_S / 4) is None
        job = store.leases.beat(job)
    assert must(store.jobs.get(job.id)).attempt == 1


def test_who_was_paused_has_seen_nothing_meanwhile(store: Store, watch: Watch) -> None:
    held(store)
    assert watch.claim() is None
    watch.clock.now += HOUR_S  # it wakes before the one that it watches
    assert watch.claim() is None


@pytest.mark.parametrize("moved", [BACK, FORWARD])
def test_the_job_of_a_dead_worker_is_cancelled_and_deleted_whatever_the_clock_says(
    store: Store, moved: float
) -> None:
    job = held(store)
    jump(store, moved)
    assert must(store.jobs.cancel(job.id, STALE_S)).state is State.cancelled
    with pytest.raises(LeaseLostError):  # had it lived, it would stop now
        store.leases.beat(job)
    assert store.jobs.delete(job.id) is not None
    assert store.jobs.get(job.id) is None


@pytest.mark.parametrize("moved", [BACK, FORWARD])
def test_a_worker_of_another_hour_does_not_count_as_alive(store: Store, moved: float) -> None:
    store.workers.beat("w1", None)
    assert len(store.workers.alive(STALE_S)) == 1
    jump(store, moved)
    assert store.workers.alive(STALE_S) == []


def test_signs_are_watched_job_by_job() -> None:
    clock = Clock()
    signs = Signs(clock)
    gone = []
    for second in range(9):
        found = {"dead": 1, "alive": second, "late": second // 3}
        gone.append(sorted(signs.look(found, 4.0)))
        clock.now += 1
    assert gone == [[]] * 5 + [["dead"]] * 4
    assert signs.look({"dead": 2, "alive": 8}, 4.0) == {}
