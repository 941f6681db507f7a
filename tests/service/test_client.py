"""The client from Python: the commands' words, and the notebook of the docs."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas
import pytest

from nas.run.layout import weights_file
from search_spaces.errors import NasError, UsageError
from service.client import Client
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
        ({"space": "digits", "sead": 1}, "no setting 'sead'"),
        ({"space": "./none.toml"}, "no such file"),
    ],
)
def test_what_is_wrong_with_a_request_is_one_sentence(
    client: Client, fields: dict[str, Any], words: str
) -> None:
    with pytest.raises(UsageError, match=words) as caught:
        client.submit(preset="smoke", **fields)
    assert "\n" not in str(caught.value)


def test_what_is_no_id_leads_nowhere(client: Client) -> None:
    for job in ("../jobs", "", "0" * 19):
        with pytest.raises(UsageError, match="no job's id"):
            client.cancel(job)
