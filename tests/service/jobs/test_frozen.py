"""A process that is paused in the middle of something: what others may still do."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy import text

from service.jobs.database import DatabaseAwayError
from service.jobs.leases import _next_waiting
from service.jobs.states import Action, Job
from service.jobs.store import Store, open_store
from tests.support import store_cases
from tests.support.service_cases import claim, must, submission
from tests.support.store_cases import submit

shared, store = store_cases.shared, store_cases.store

SOON_S, LONG_S = 0.2, 60.0  # how long whoever is paused may stay, and others wait for it
ROOT = Path(__file__).resolve().parents[3]

FROZEN = """
import os, signal, sys
from service.jobs.store import open_store
from service.jobs.leases import _next_waiting
store = open_store(sys.argv[1], float(sys.argv[2]))
with store.database.writing() as connection:
    print(_next_waiting(connection, 10).id, flush=True)
    os.kill(os.getpid(), signal.SIGSTOP)
"""


@contextmanager
def frozen_worker(store: Store) -> Iterator[str]:
    """A process that was stopped while it claimed a job, which it names."""
    url = store.database.engine.url.render_as_string(hide_password=False)
    process = subprocess.Popen(
        [sys.executable, "-c", FROZEN, url, str(SOON_S)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    try:
        assert process.stdout is not None
        job = process.stdout.readline().strip()
        os.waitid(os.P_PID, process.pid, os.WSTOPPED)
        yield job
    finally:
        process.kill()
        process.communicate()


def only_postgres(store: Store) -> None:
    if store.database.is_sqlite:
        pytest.skip("SQLite has one writer")


def url_of(store: Store) -> str:
    return store.database.engine.url.render_as_string(hide_password=False)


def test_a_worker_that_is_frozen_while_it_claims_keeps_others_from_nothing_else(
    store: Store,
) -> None:
    only_postgres(store)
    mine, his = submit(store), submit(store, "bob")
    with frozen_worker(store) as held:
        assert held == mine.id
        assert must(claim(store, "w2")).id == his.id
        # PostgreSQL ends its transaction, after which what it held is free; until then this waits.
        patient = open_store(url_of(store), LONG_S)
        with patient.database.writing() as connection:
            connection.execute(text("SELECT name FROM owners FOR UPDATE"))
        patient.database.close()
        assert must(claim(store, "w2")).id == mine.id


def test_a_worker_that_passes_over_an_owner_keeps_nothing_of_it(store: Store) -> None:
    only_postgres(store)
    job = submit(store)
    with store.database.writing() as passing:
        with store.database.writing() as holding:
            holding.execute(text("SELECT name FROM owners FOR UPDATE"))
            assert _next_waiting(passing, 10) is None
        assert must(claim(store, "w2")).id == job.id


def test_a_writer_of_sqlite_that_is_frozen_is_not_waited_for_without_end(store: Store) -> None:
    if not store.database.is_sqlite:
        pytest.skip("PostgreSQL has many writers")
    job = submit(store)
    hasty = open_store(url_of(store), SOON_S)
    with frozen_worker(store):
        with pytest.raises(DatabaseAwayError, match="locked"):
            hasty.jobs.cancel(job.id, 20.0)
        assert hasty.jobs.get(job.id) == job
        assert hasty.leases.look(20.0) == {}
    assert must(hasty.jobs.cancel(job.id, 20.0)).state == "cancelled"
    hasty.database.close()


def test_threads_wait_for_each_other_with_an_end(store: Store) -> None:
    if not store.database.is_sqlite:
        pytest.skip("PostgreSQL has many writers")
    hasty = open_store(url_of(store), SOON_S)
    with hasty.database.writing(), pytest.raises(DatabaseAwayError, match="too long"):
        submit(hasty)
    submit(hasty)
    hasty.database.close()


@pytest.mark.parametrize("write", ["beat", "append", "end", "cancel"])
def test_a_row_that_somebody_holds_is_waited_for_with_an_end(store: Store, write: str) -> None:
    only_postgres(store)
    submit(store)
    job = must(claim(store))
    hasty = open_store(url_of(store), SOON_S)
    writes = {
        "beat": lambda: hasty.leases.beat(job),
        "append": lambda: hasty.leases.append(job, [{"event": "Note"}], 9, job.summary),
        "end": lambda: hasty.leases.end(job, Action.succeed),
        "cancel": lambda: hasty.jobs.cancel(job.id, 20.0),
    }
    with store.database.writing() as connection:
        connection.execute(text("SELECT id FROM jobs FOR UPDATE"))
        with pytest.raises(DatabaseAwayError, match="timeout"):
            writes[write]()
    writes[write]()
    hasty.database.close()


def test_every_connection_has_time_outs(store: Store) -> None:
    only_postgres(store)
    timed = open_store(url_of(store), 3.0)
    with timed.database.reading() as connection:
        shown = {
            name: connection.execute(text(f"SHOW {name}")).scalar_one()
            for name in ("lock_timeout", "statement_timeout", "idle_in_transaction_session_timeout")
        }
        driver = connection.connection.driver_connection
        assert driver is not None
        given = driver.info.get_parameters()
    timed.database.close()
    assert list(shown.values()) == ["1500ms", "3s", "3s"]
    assert (given["connect_timeout"], given["tcp_user_timeout"]) == ("3", "3000")
    assert (given["keepalives_idle"], given["keepalives_count"]) == ("3", "3")


# -- the limit of jobs at once --------------------------------------------------------------------


def test_many_workers_at_once_keep_to_the_limit_of_an_owner(store: Store) -> None:
    for _ in range(6):
        submit(store), submit(store, "bob")
    together = threading.Barrier(6)
    taken: list[Job] = []

    def work(name: str) -> None:
        together.wait(LONG_S)
        for _ in range(4):
            if (job := claim(store, name, jobs_per_owner=2)) is not None:
                taken.append(job)

    threads = [threading.Thread(target=work, args=(f"w{n}",)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    while (job := claim(store, "w", jobs_per_owner=2)) is not None:
        taken.append(job)
    assert sorted(job.owner for job in taken) == ["alice", "alice", "bob", "bob"]


# -- whose turn it is -----------------------------------------------------------------------------


def owners_in_turn(store: Store, count: int) -> list[str]:
    return [must(claim(store)).owner for _ in range(count)]


def test_owners_take_turns(store: Store) -> None:
    for owner in ("alice", "alice", "alice", "alice", "bob", "carol", "carol"):
        submit(store, owner)
    first, second = owners_in_turn(store, 3), owners_in_turn(store, 2)
    assert (first, second) == (["alice", "bob", "carol"], ["alice", "carol"])
    late = submit(store, "dave")
    assert must(claim(store)).id == late.id
    assert owners_in_turn(store, 2) == ["alice", "alice"]


def test_a_higher_priority_goes_before_any_turn(store: Store) -> None:
    submit(store, "bob")
    for _ in range(2):
        store.jobs.submit(submission("alice", priority=7))
    assert owners_in_turn(store, 3) == ["alice", "alice", "bob"]
