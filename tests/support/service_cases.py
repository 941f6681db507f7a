"""What the tests of the service share: stores, a runner that takes no time, a server that listens.

For pages: `Server` is the whole service in this process. `server.submit()` makes a job,
`server.work()` lets a worker finish all that wait, each with the made-up files of
`tests.support.run_fixture`.
"""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from sqlalchemy import create_engine, make_url, text

from nas.run.events import (
    ArchitectureMeasured,
    Event,
    FrontUpdated,
    Progress,
    StageFinished,
    StageStarted,
)
from nas.run.folder import RunFolder
from nas.search.front import pick, read_front
from service.auth import Role, digest_of, new_token
from service.jobs.migrate import upgrade
from service.jobs.states import Job, Kind, State
from service.jobs.store import Store, open_store
from service.jobs.submissions import Submission
from service.serving import listen, make_server
from service.settings import Settings
from service.worker.runner import Child, Outcome
from service.worker.worker import Worker
from tests.support import run_fixture

STALE_S = 20.0
SMOKE = {"space": "digits", "preset": "smoke", "seed": 1}


@contextmanager
def fresh_store(url: str, **values: Any) -> Iterator[Store]:
    """A store over an empty database with its tables."""
    store = open_store(url, **values)
    upgrade(store.database)
    try:
        yield store
    finally:
        store.database.close()


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def watch(self, seconds: float, look: Callable[[], object]) -> None:
        """Let so many seconds pass, with a look after each of them."""
        for _ in range(round(seconds)):
            self.now += 1.0
            look()


@contextmanager
def postgres_url(options: str = "") -> Iterator[str]:
    """A database of its own on the server that the environment names."""
    server = make_url(os.environ["NAS_TEST_POSTGRES_URL"]).set(drivername="postgresql+psycopg")
    name = f"nas_test_{uuid.uuid4().hex[:12]}"
    engine = create_engine(server, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {name} {options}"))
    try:
        yield server.set(database=name).render_as_string(hide_password=False)
    finally:
        with engine.connect() as connection:
            connection.execute(text(f"DROP DATABASE {name} WITH (FORCE)"))
        engine.dispose()


def submission(owner: str = "alice", **values: Any) -> Submission:
    """A search of the digits whose spec nobody reads."""
    given = {"kind": Kind.search, "owner": owner, "request": SMOKE, "spec": "{}"}
    names = {"space": "digits", "dataset": "digits", "preset": "smoke"}
    return Submission(**{**given, **names, **values})


def claim(store: Store, worker: str = "w1", **values: Any) -> Job | None:
    """Claim with the usual limits."""
    limits = {"stale_s": STALE_S, "jobs_per_owner": 100, "max_losses": 10}
    return store.leases.claim(worker, **{**limits, **values})


def must(job: Job | None) -> Job:
    """A job that has to be there."""
    assert job is not None
    return job


class Done:
    """A process that has ended."""

    def __init__(self, outcome: Outcome) -> None:
        self.outcome = outcome

    def wait(self, timeout_s: float) -> Outcome | None:
        return self.outcome

    def stop(self, grace_s: float) -> None:
        pass


class Endless(Done):
    """A process that goes on until it is stopped; `meanwhile` is called at each look."""

    def __init__(self, meanwhile: Callable[[], None]) -> None:
        super().__init__(Outcome(ok=True))
        self.meanwhile = meanwhile
        self.stopped = False

    def wait(self, timeout_s: float) -> Outcome | None:
        self.meanwhile()
        return None

    def stop(self, grace_s: float) -> None:
        self.stopped = True


@dataclass
class InstantRunner:
    """Does jobs in no time, in this process, with made-up results.

    Attributes:
        outcome: how the next jobs end; only good ones leave results.
        ran: the jobs it was given.
    """

    outcome: Outcome = field(default_factory=lambda: Outcome(ok=True))
    ran: list[str] = field(default_factory=list)

    def start(self, job: Job, folder: Path) -> Child:
        self.ran.append(job.id)
        if self.outcome.ok:
            do_job(RunFolder.open(folder), job.kind, job.pick)
        return Done(self.outcome)


def do_job(folder: RunFolder, kind: str, chosen: str) -> None:
    """Write the files and events of a whole job."""
    if kind == Kind.export:
        run_fixture.export(folder, pick(read_front(folder), chosen).id, "torch")
        return
    if kind == Kind.attention:
        run_fixture.look_into(folder, pick(read_front(folder), chosen).id)
        return
    if kind == Kind.retrain:
        entry = pick(read_front(folder), chosen)
        run_fixture.retrain(folder, entry)
        for event in (StageStarted("retrain", f"Retrain {chosen}"), StageFinished("retrain", 1.0)):
            folder.log(event)
        return
    run_fixture.fill(folder)
    (folder.path / "report.html").write_text("<html><body>report</body></html>", "utf-8")
    for event in told(folder):
        folder.log(event)


def told(folder: RunFolder) -> Iterator[Event]:
    """What a short search tells."""
    front = read_front(folder)
    points = tuple(dict(entry.measured) for entry in front.entries)
    yield StageStarted("supernet", "Train the supernet", 2)
    yield Progress("supernet", 1, 2, f"loss 2.0, kept in {folder.path}")
    yield StageFinished("supernet", 1.5)
    yield ArchitectureMeasured("verify", front.entries[0].id, dict(front.entries[0].measured))
    yield FrontUpdated("front", points, front.hypervolume)


def problem(answer: httpx.Response, status: int, field: str | None = None) -> str:
    """The sentence of a problem document."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json", answer.headers
    document = answer.json()
    assert document["status"] == status, document
    assert document["type"].startswith("urn:nas:problem:"), document
    if field is not None:
        assert [one["field"] for one in document["errors"]] == [field], document
    return str(document["detail"])


class Server:
    """The service on a free port of this machine, with a runner that takes no time."""

    def __init__(self, home: Path, **values: Any) -> None:
        self.settings = Settings(home=home, port=0, **values)
        home.mkdir(parents=True, exist_ok=True)
        self.store = open_store(self.settings.url)
        upgrade(self.store.database)
        self.runner = InstantRunner()
        self.worker = Worker(self.store, self.settings, self.runner, "worker-1")
        self._server = make_server(self.settings, self.store)
        self._socket = listen("127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self._thread = threading.Thread(
            target=self._server.run, kwargs={"sockets": [self._socket]}, daemon=True
        )
        self._clients: list[httpx.Client] = []

    def __enter__(self) -> Server:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        for client in self._clients:
            client.close()
        self._server.should_exit = True
        self._thread.join()

    def token(self, name: str = "alice", role: Role = Role.submitter, **values: Any) -> str:
        """The secret of a new token."""
        token, secret = new_token(name, role, **values)
        self.store.tokens.add(token, digest_of(secret))
        return secret

    def client(
        self, name: str = "alice", role: Role = Role.submitter, **values: Any
    ) -> httpx.Client:
        """A client of the API with a new token."""
        return self.client_of(self.token(name, role, **values))

    def client_of(self, secret: str | None) -> httpx.Client:
        """A client of the API with a token, or without any."""
        headers = {} if secret is None else {"Authorization": f"Bearer {secret}"}
        client = httpx.Client(base_url=self.url + "/api/v1", headers=headers, timeout=30)
        self._clients.append(client)
        return client

    def work(self) -> None:
        """Do all jobs that wait."""
        while self.worker.work_once(threading.Event()):
            pass

    def finished(self, client: httpx.Client, **request: Any) -> str:
        """The id of a search that was submitted and has succeeded."""
        answer = client.post("/jobs", json={**SMOKE, **request})
        assert answer.status_code == 201, answer.text
        self.work()
        identity = str(answer.json()["id"])
        assert client.get(f"/jobs/{identity}").json()["state"] == State.succeeded
        return identity
