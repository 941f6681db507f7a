"""Nobody waits for a thread because of others who wait for something else; health answers."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest

from service.api import health
from service.api.health import LEAST_FREE, Readiness
from service.api.problems import ProblemError
from service.api.routes import jobs
from service.api.thread_pools import READING, ThreadPool, ThreadPools
from service.dashboard.static import address_of
from service.jobs.database import DatabaseAwayError
from tests.support.service_cases import SMOKE, Server, problem

ANSWERS = ("/healthz", "/readyz", "/api/v1/jobs", "/api/v1/spaces")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with Server(tmp_path, requests_per_minute=10_000) as running:
        yield running


class Stuck:
    """Stands for something that does not return until it is let go.

    Attributes:
        entered: released once for each call.
    """

    def __init__(self) -> None:
        self.entered = threading.Semaphore(0)
        self._go = threading.Event()

    def __call__(self, *_: Any, **__: Any) -> Any:
        self.entered.release()
        self._go.wait()
        raise DatabaseAwayError("it was stuck")

    @contextmanager
    def asked_by(self, ask: Callable[[], httpx.Response], times: int) -> Iterator[list[Any]]:
        """Several requests that got stuck, until the end of the block."""
        with ThreadPoolExecutor(times) as pool:
            asked = [pool.submit(ask) for _ in range(times)]
            for _ in range(times):
                assert self.entered.acquire(timeout=30)
            try:
                yield asked
            finally:
                self.let_go()

    def let_go(self) -> None:
        self._go.set()


# -- writers and readers --------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["cancel", "retry", "delete", "submit"])
def test_who_waits_to_write_takes_nobodys_thread(
    server: Server, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    alice, stuck = server.client("alice"), Stuck()
    job = alice.post("/jobs", json=SMOKE).json()["id"]
    if where == "delete":  # which is refused for jobs that have not ended
        alice.post(f"/jobs/{job}/cancel")
    monkeypatch.setattr(server.store.jobs, where, stuck)
    asks: dict[str, Callable[[], httpx.Response]] = {
        "cancel": lambda: server.client("alice").post(f"/jobs/{job}/cancel"),
        "retry": lambda: server.client("alice").post(f"/jobs/{job}/retry"),
        "delete": lambda: server.client("alice").delete(f"/jobs/{job}"),
        "submit": lambda: server.client("alice").post("/jobs", json=SMOKE),
    }
    with stuck.asked_by(asks[where], READING + 2) as asked:
        for path in ANSWERS:
            assert alice.get(server.url + path).status_code == 200
    assert {one.result().status_code for one in asked} == {503}


def test_forms_of_the_dashboard_wait_there_too(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    alice, secret, stuck = server.client("alice"), server.token("alice"), Stuck()
    job = alice.post("/jobs", json=SMOKE).json()["id"]
    monkeypatch.setattr(jobs, "cancel", stuck)

    def ask() -> httpx.Response:
        headers = {"Cookie": f"nas_session={secret}", "Origin": server.url}
        return httpx.post(f"{server.url}/jobs/{job}/cancel", headers=headers, timeout=30)

    with stuck.asked_by(ask, READING + 2):
        assert alice.get("/jobs").status_code == 200


def test_looking_up_tokens_takes_no_readers_thread(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    stuck, style = Stuck(), server.url + address_of("dashboard.css")
    monkeypatch.setattr(server.store.tokens, "_good", stuck)
    with ThreadPoolExecutor(READING + 2) as pool:
        clients = [server.client(f"bob{n}") for n in range(READING + 2)]
        asked = [pool.submit(client.get, "/jobs") for client in clients]
        assert stuck.entered.acquire(timeout=30)
        assert httpx.get(style).status_code == 200  # read from a file in a reader's thread
        stuck.let_go()
        assert {one.result().status_code for one in asked} == {503}


def test_who_has_a_checkpoint_read_keeps_nobody_from_sending_files(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    state: Any = server._server.config.app.state  # type: ignore[union-attr]
    one = ThreadPools(uploads=ThreadPool(1, 64, 30.0))
    state.context = replace(state.context, thread_pools=one)
    stuck, alice = Stuck(), server.client("alice")
    monkeypatch.setattr(state.context.uploads, "finish", stuck)
    asked = {"name": "mine", "files": {"config.json": 2, "model.safetensors": 9}}
    place = f"/uploads/{alice.post('/uploads', json=asked).json()['id']}"
    with stuck.asked_by(lambda: server.client("alice").post(f"{place}/finish"), 1) as finishing:
        assert alice.put(f"{place}/files/config.json", content=b"{}").status_code == 200
    assert finishing[0].result().status_code == 503


# -- a pool ---------------------------------------------------------------------------------------


def test_a_lane_lets_so_many_work_and_so_many_wait() -> None:
    async def crowd() -> list[str]:
        pool, go, told = ThreadPool(1, 2, 30.0), threading.Event(), []

        async def one(name: str) -> None:
            try:
                await pool.run(go.wait)
                told.append(f"{name} done")
            except ProblemError as error:
                told.append(f"{name} {error.status}")

        async with anyio.create_task_group() as group:
            for name in "abcd":
                group.start_soon(one, name)
                await anyio.wait_all_tasks_blocked()
            go.set()
        return told

    assert anyio.run(crowd) == ["d 503", "a done", "b done", "c done"]


def test_who_has_waited_too_long_is_told_to_come_again() -> None:
    async def two() -> None:
        pool, go = ThreadPool(1, 2, 0.1), threading.Event()
        async with anyio.create_task_group() as group:
            group.start_soon(pool.run, go.wait)
            await anyio.wait_all_tasks_blocked()
            with pytest.raises(ProblemError) as caught:
                await pool.run(go.wait)
            assert caught.value.headers == {"Retry-After": "2"}
            go.set()
        assert await pool.run(lambda: 3) == 3  # and the place is free again

    anyio.run(two)


# -- health ---------------------------------------------------------------------------------------


def test_health_answers_when_all_threads_are_taken(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    alice, stuck = server.client("alice"), Stuck()
    assert alice.get("/jobs").status_code == 200
    monkeypatch.setattr(server.store.jobs, "list", stuck)
    monkeypatch.setattr(server.store.jobs, "cancel", stuck)
    with stuck.asked_by(lambda: server.client("alice").get("/jobs"), READING):
        assert httpx.get(server.url + "/healthz").json() == {"status": "ok"}
        assert httpx.get(server.url + "/readyz").status_code == 200


def test_readiness_does_not_wait_for_the_database(tmp_path: Path) -> None:
    with Server(tmp_path) as server:
        state: Any = server._server.config.app.state  # type: ignore[union-attr]
        stuck = Stuck()
        state.context.readiness._answer_s = 0.05
        server.store.database.ping = stuck  # type: ignore[method-assign]
        with stuck.asked_by(lambda: httpx.get(server.url + "/readyz"), 1) as asked:
            for _ in range(5):  # all join the one look that has begun
                answer = httpx.get(server.url + "/readyz")
                assert "has not answered" in problem(answer, 503)
            assert not stuck.entered.acquire(blocking=False)
            assert asked[0].result().status_code == 503
            assert httpx.get(server.url + "/healthz").status_code == 200


class Disk:
    """What the system tells of a disk."""

    def __init__(self, free: int = 2**40, files: int = 100, flag: int = 0) -> None:
        self.f_frsize, self.f_bavail = 4096, free // 4096
        self.f_files, self.f_favail, self.f_flag = 1000, files, flag


@pytest.mark.parametrize(
    ("disk", "words"),
    [
        (Disk(), None),
        (Disk(free=LEAST_FREE - 4096), "full"),
        (Disk(files=0), "full"),
        (Disk(flag=os.ST_RDONLY), "cannot be written"),
        (OSError(5, "Input/output error"), "Input/output error"),
    ],
)
def test_readiness_looks_at_the_disk(
    server: Server, disk: Any, words: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def look(_: Path) -> Any:
        if isinstance(disk, OSError):
            raise disk
        return disk

    monkeypatch.setattr(health.os, "statvfs", look)
    answer = httpx.get(server.url + "/readyz")
    if words is None:
        assert answer.json() == {"status": "ok", "workers": 0}
    else:
        assert words in problem(answer, 503) and answer.headers["retry-after"]
    assert httpx.get(server.url + "/healthz").status_code == 200


def test_readiness_tells_of_a_database_that_is_away(server: Server, tmp_path: Path) -> None:
    def away() -> None:
        raise DatabaseAwayError("secret place")

    server.store.database.ping = away  # type: ignore[method-assign]
    look = anyio.run(Readiness(server.store, server.settings).look)
    assert look.problem == "the database does not answer"
