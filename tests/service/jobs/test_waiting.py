"""Many submissions at once: they keep no reader waiting, and their order."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from service.api.thread_pools import READING
from service.jobs.states import Job, new_id
from service.jobs.submissions import Quotas, Submission
from tests.support.service_cases import SMOKE, Server

PATIENCE_S = 60.0  # before a test that hangs fails instead


def test_waiting_submissions_leave_readers_their_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entered, go_on = threading.Semaphore(0), threading.Event()
    with Server(tmp_path) as server, ThreadPoolExecutor(READING + 1) as pool:
        alice = server.client()
        known = server.finished(alice)
        jobs = server.store.jobs
        really = jobs.submit

        def submit(given: Submission, quotas: Quotas) -> tuple[Job, bool]:
            entered.release()
            assert go_on.wait(PATIENCE_S)
            return really(given, quotas)

        monkeypatch.setattr(jobs, "submit", submit)
        made = [pool.submit(alice.post, "/jobs", json=SMOKE) for _ in range(READING + 1)]
        try:
            assert all(entered.acquire(timeout=PATIENCE_S) for _ in made)
            assert server.client().get(f"/jobs/{known}").status_code == 200
        finally:
            go_on.set()
        assert {one.result().status_code for one in made} == {201}


def test_jobs_of_one_moment_stand_in_the_order_in_which_they_came() -> None:
    drawn = [new_id() for _ in range(10_000)]
    assert drawn == sorted(set(drawn))
    assert {len(one) for one in drawn} == {20}
