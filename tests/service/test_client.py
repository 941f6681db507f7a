"""The client from Python: the commands' words, and the notebook of the docs."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pandas
import pytest

from nas.run.layout import weights_file
from search_spaces.errors import NasError, UsageError
from service import client as module
from service.client import AGAIN_S, CHECKED_S, Client
from service.jobs.states import Job, Kind, State
from service.worker.runner import Child, Outcome
from service.worker.worker import Worker
from tests.layering_rules import ROOT, loaded
from tests.support.service_cases import InstantRunner, Server

NOTEBOOK = ROOT / "docs" / "guide" / "client.ipynb"


class Training(InstantRunner):
    """Leaves weights as well, without which nothing is exported."""

    def start(self, job: Job, folder: Path) -> Child:
        child = super().start(job, folder)
        if job.kind is Kind.retrain:
            (folder / weights_file(job.pick)).write_bytes(b"weights")
        return child


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A service whose jobs are worked on beside the test."""
    stopping = threading.Event()
    with Server(tmp_path_factory.mktemp("home"), poll_s=0.01) as running:
        running.runner = Training()
        running.worker = Worker(running.store, running.settings, running.runner, "worker-1")
        worker = threading.Thread(target=running.worker.run, args=(stopping,))
        worker.start()
        yield running
        stopping.set()
        worker.join()


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with Client(server.url, server.token("alice")) as connected:
        yield connected


def test_importing_it_loads_nothing_heavy() -> None:
    heavy = {"torch", "fastapi", "starlette", "sqlalchemy", "pandas", "jinja2"}
    assert not heavy & set(loaded("-c", "import service.client"))


def test_the_notebook_of_the_docs_runs(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NAS_SERVER", server.url)
    monkeypatch.setenv("NAS_TOKEN", server.token("nora"))
    values: dict[str, Any] = {}
    for cell in json.loads(NOTEBOOK.read_text("utf-8"))["cells"]:
        if cell["cell_type"] == "code":
            assert cell["outputs"] == []
            exec("".join(cell["source"]), values)
    assert values["job"].state is State.succeeded and (tmp_path / "report.html").is_file()
    assert (values["folder"] / "model.safetensors").read_bytes() == b"weights"
    assert [one.kind for one in values["found"].jobs] == ["export", "retrain", "search"]
    values["client"].__exit__()


def test_a_search_is_followed_and_its_front_is_a_table(client: Client, tmp_path: Path) -> None:
    told: list[dict[str, Any]] = []
    job = client.watch(client.submit(space="digits", preset="smoke", tags=["t"]), told.append)
    assert job.state is State.succeeded and told[-1] == {"state": "succeeded"}
    front = client.front(job)
    answer = client.ask("GET", f"/jobs/{job.id}/front")
    assert isinstance(front, pandas.DataFrame) and front.index.name == "id"
    assert list(front.index) == [entry["id"] for entry in answer["front"]]
    assert list(front["latency_ms"]) == pytest.approx(
        [entry["measured"]["latency_ms"] for entry in answer["front"]]
    )
    assert client.download(job, "pareto.json", tmp_path) == tmp_path / "pareto.json"
    assert [path.name for path in tmp_path.iterdir()] == ["pareto.json"]
    with pytest.raises(UsageError, match="no file"):
        client.download(job, "nothing", tmp_path)
    retrained = client.watch(client.retrain(job, "knee"))
    assert (retrained.kind, retrained.tags, retrained.run) == ("retrain", ["t"], job.id)
    with pytest.raises(UsageError, match="is there already"):
        client.export(job, tmp_path)


def test_a_front_has_other_forms_and_a_webhook_is_named(client: Client) -> None:
    job = client.watch(client.submit(space="digits", preset="smoke"))
    found = client.front_json(job)
    rows = client.front_csv(job).splitlines()
    assert found["final"] and len(rows) == 1 + len(found["front"])
    assert client.checkpoints() == []
    with pytest.raises(UsageError, match="you have no webhook"):
        client.webhook()
    assert client.set_webhook("https://hooks.invalid/nas").secret.startswith("whsec_")
    assert client.webhook().url == "https://hooks.invalid/nas"
    client.remove_webhook()


def test_pages_lead_on_and_words_are_changed(client: Client) -> None:
    made = [client.submit(space="digits", preset="smoke", title=f"page {n}") for n in range(3)]
    assert {client.watch(job).state for job in made} == {State.succeeded}
    first = client.jobs(text="page", sort="title", limit=2)
    rest = client.jobs(text="page", sort="title", before=first.next)
    assert [job.title for job in (*first.jobs, *rest.jobs)] == ["page 0", "page 1", "page 2"]
    assert client.edit(made[0], tags=["b", "a"]).tags == ["a", "b"]
    client.delete(made[0].id)
    with pytest.raises(UsageError, match="there is no job"):
        client.job(made[0])


def test_one_word_is_a_list_of_it(client: Client) -> None:
    job = client.watch(client.submit(space="digits", preset="smoke", tags=["single"]))
    found = client.jobs(tag="single", state="succeeded")
    assert [one.id for one in found.jobs] == [job.id]
    assert client.jobs(tag="single", state=State.failed).jobs == []
    with pytest.raises(UsageError, match=r"state.* is 'x'"):
        client.jobs(state="x")


def test_failures_are_told(server: Server, client: Client, tmp_path: Path) -> None:
    job = client.watch(client.submit(space="digits", preset="smoke"))
    client.watch(client.retrain(job))
    server.runner.outcome = Outcome(ok=False, error="no room")
    try:
        with pytest.raises(NasError, match="has failed: no room"):
            client.export(job, tmp_path / "x")
        assert client.watch(client.submit(space="digits", preset="smoke")).error == "no room"
    finally:
        server.runner.outcome = Outcome(ok=True)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"space": "digitz"}, "did you mean 'digits'"),
        ({"space": "digits", "seed": -1}, "seed is -1"),
        ({"space": "digits", "sead": 1}, "there is no field 'sead'; did you mean 'seed'"),
        ({"space": "./none.toml"}, "no such file"),
    ],
)
def test_what_is_wrong_with_a_request_is_one_sentence(
    client: Client, fields: dict[str, Any], words: str
) -> None:
    with pytest.raises(UsageError, match=words) as caught:
        client.submit(preset="smoke", **fields)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        (lambda client: client.jobs(tags=["paper"]), "no field 'tags'; did you mean 'tag'"),
        (lambda client: client.edit("0" * 20, note="x"), "no field 'note'; did you mean 'notes'"),
        (lambda client: client.retrain("0" * 20, prio=3), "'prio'; did you mean 'priority'"),
    ],
)
def test_a_field_that_there_is_not_is_told(
    client: Client, ask: Callable[[Client], object], words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        ask(client)


def test_what_is_no_id_leads_nowhere(client: Client) -> None:
    for job in ("../jobs", "", "0" * 19):
        with pytest.raises(UsageError, match="no job's id"):
            client.cancel(job)


@pytest.mark.parametrize("name", ["../../service.db", "a/../b", "./a", "/a", "a//b", "", ".."])
def test_what_is_no_file_of_a_run_leads_nowhere(client: Client, tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match=r"is no file of a run; artifacts tells"):
        client.download("0" * 20, name, tmp_path)


# -- what stands in the place of a service, or between ---------------------------------------------

JOB = "0" * 20
Handler = Callable[[httpx.Request], httpx.Response]
ASKS: dict[str, Callable[[Client, Path], object]] = {
    "a job": lambda client, folder: client.job(JOB),
    "events": lambda client, folder: client.watch(JOB),
    "a table": lambda client, folder: client.front(JOB),
    "a file": lambda client, folder: client.download(JOB, "report.html", folder),
    "a new job": lambda client, folder: client.submit(space="digits"),
}


def through(client: Client, transport: httpx.BaseTransport) -> Client:
    """The same client by another way to its service."""
    before = client._http
    client._http = httpx.Client(
        base_url=before.base_url, headers=before.headers, transport=transport
    )
    before.close()
    return client


def talking(answer: Handler) -> Client:
    """A client to whom that answers."""
    return through(Client("http://nas.example", "token"), httpx.MockTransport(answer))


def once(answer: Handler) -> Handler:
    """The same for one request, which has to be enough."""
    asked: list[str] = []

    def answering(request: httpx.Request) -> httpx.Response:
        assert not asked, f"{asked} and then {request.url}"
        asked.append(str(request.url))
        return answer(request)

    return answering


@pytest.mark.parametrize("ask", ASKS.values(), ids=ASKS)
def test_where_a_service_is_instead_is_told(
    ask: Callable[[Client, Path], object], tmp_path: Path
) -> None:
    def moved(request: httpx.Request) -> httpx.Response:
        return httpx.Response(301, headers={"Location": str(request.url.copy_with(scheme="https"))})

    words = r"redirects to https://nas\.example: give"
    with talking(once(moved)) as client, pytest.raises(UsageError, match=words):
        ask(client, tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("ask", ASKS.values(), ids=ASKS)
def test_what_is_no_service_is_told(ask: Callable[[Client, Path], object], tmp_path: Path) -> None:
    def page(_: httpx.Request) -> httpx.Response:
        return httpx.Response(200, html="<p>Welcome</p>")

    words = r"something else than a nas service answers at http://nas\.example;"
    with talking(once(page)) as client, pytest.raises(NasError, match=words):
        ask(client, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_stream_that_ends_early_is_asked_for_again_after_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waits: list[float] = []
    monkeypatch.setattr(module, "time", SimpleNamespace(sleep=waits.append))
    parts = [": follow\n\n", 'id: 7\ndata: {"event": "a"}\n\n', 'data: {"state": "failed"}\n\n']
    left, begun = iter(parts), []

    def stream(request: httpx.Request) -> httpx.Response:
        begun.append(request.headers["last-event-id"])
        return httpx.Response(200, headers={"Content-Type": "text/event-stream"}, text=next(left))

    with talking(stream) as client:
        assert list(client.follow(JOB)) == [{"event": "a"}, {"state": "failed"}]
    assert (begun, waits) == (["0", "0", "7"], [AGAIN_S, AGAIN_S])


class Losing(httpx.HTTPTransport):
    """Loses answers after the service has had the request.

    Attributes:
        losses: how many of the next answers to a POST.
        keys: those that came with each.
    """

    def __init__(self) -> None:
        super().__init__()
        self.losses = 0
        self.keys: list[str] = []

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        answer = super().handle_request(request)
        if request.method == "POST":
            self.keys.append(request.headers["idempotency-key"])
            if self.losses:
                self.losses -= 1
                answer.close()
                raise httpx.ReadError("connection reset", request=request)
        return answer


def test_an_answer_that_is_lost_makes_no_second_job(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SEND_AGAIN_S", (0.0, 0.0))
    way = Losing()
    with through(Client(server.url, server.token("lena")), way) as client:
        way.losses = 2
        search = client.watch(client.submit(space="digits", preset="smoke"))
        way.losses = 2
        again = client.retrain(search)
        assert len(way.keys) == 6 and len(set(way.keys)) == 2
        assert [job.id for job in client.jobs().jobs] == [again.id, search.id]
        way.keys.clear()
        with pytest.raises(UsageError, match="did you mean 'digits'"):
            client.submit(space="digitz")
        assert len(way.keys) == 1  # what is refused is not sent again
        way.losses = 9
        with pytest.raises(NasError, match="does not answer"):
            client.submit(space="digits", preset="smoke")
        assert way.losses == 6


class Breaking(httpx.HTTPTransport):
    """Breaks off the second file that is downloaded, and the next ones.

    Attributes:
        left: how many are broken off.
        files: how many have come as a whole.
    """

    left = files = 0

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        answer = super().handle_request(request)
        if "/artifacts/" in request.url.path:
            self.files += 1
            if self.files > 1 and self.left:
                self.left -= 1
                answer.close()
                raise httpx.RemoteProtocolError("peer closed connection", request=request)
        return answer


@pytest.mark.parametrize(("broken", "whole"), [(2, True), (3, False)])
def test_an_export_is_there_as_a_whole_or_not_at_all(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: int, whole: bool
) -> None:
    monkeypatch.setattr(module, "SEND_AGAIN_S", (0.0, 0.0))
    way, folder = Breaking(), tmp_path / "new" / "network"
    with through(Client(server.url, server.token("emil")), way) as client:
        search = client.watch(client.submit(space="digits", preset="smoke"))
        client.watch(client.retrain(search))
        way.left = broken
        with nullcontext() if whole else pytest.raises(NasError, match="does not answer"):
            client.export(search, folder, format="torch")
    assert (way.left, list(folder.parent.iterdir())) == (0, [folder] if whole else [])
    if whole:
        assert {"model.safetensors", "checksums.json"} <= {one.name for one in folder.iterdir()}


def test_who_has_no_time_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SEND_AGAIN_S", (0.0, 0.0))
    keys: list[str] = []

    def busy(request: httpx.Request) -> httpx.Response:
        keys.append(request.headers["idempotency-key"])
        return httpx.Response(503, json={"detail": "the machine is busy"})

    with talking(busy) as client, pytest.raises(NasError, match="the machine is busy"):
        client.submit(space="digits")
    assert len(keys) == 3 and len(set(keys)) == 1


def test_a_large_file_has_the_time_that_its_sum_takes(tmp_path: Path) -> None:
    waits: dict[str, float] = {}

    def answer(request: httpx.Request) -> httpx.Response:
        digest = hashlib.sha256(b"x")
        waits[request.method] = request.extensions["timeout"]["read"]
        if request.method == "GET":
            told = f"sha-256=:{base64.b64encode(digest.digest()).decode()}:"
            return httpx.Response(200, content=b"x", headers={"Repr-Digest": told})
        if request.method == "PUT":
            return httpx.Response(200, json={"sha256": digest.hexdigest()})
        return httpx.Response(201, json={"id": "1", "name": "mine"})

    with talking(answer) as client:
        file = client.download(JOB, "weights.pt", tmp_path)
        assert client.upload("mine", {"config.json": file})["name"] == "mine"
    assert (waits["GET"], waits["PUT"]) == (CHECKED_S, CHECKED_S)
