"""The API hands out what a search found, and takes jobs about single networks."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import json
from typing import Any

import httpx
import pytest

from search_spaces import load_space
from search_spaces.architecture import Architecture
from search_spaces.omni import omni_layers
from service.jobs.states import State
from tests.support import service_api_cases
from tests.support.service_cases import SMOKE, Server, problem

server, alice, done = service_api_cases.server, service_api_cases.alice, service_api_cases.done


def test_the_front_is_that_of_the_run(server: Server, alice: httpx.Client, done: str) -> None:
    told = alice.get(f"/jobs/{done}/front").json()
    kept = json.loads((server.settings.runs / done / "pareto.json").read_text())
    assert told["final"]
    assert (told["front"], told["hypervolume"]) == (kept["front"], kept["hypervolume"])


@pytest.mark.parametrize(
    ("accept", "kind"),
    [
        ("text/csv;q=0, application/json", "json"),
        ("text/csv;q=0", "json"),
        ("text/csv;q=0.4, application/json; q=0.5", "json"),
        ("application/json;q=0.4,TEXT/CSV", "csv"),
        ("text/csv, */*", "csv"),
        ("text/*;q=0.9, */*;q=0.8", "csv"),
        ("*/*, text/csv;q=0.1", "json"),
        ("application/json, text/csv", "json"),
        ("text/csv, application/json", "csv"),
        ("text/csv;q=much, application/json;q=0.1", "json"),
        ("text/html", "json"),
        ("", "json"),
    ],
)
def test_the_form_of_a_front_is_the_one_that_is_liked_best(
    alice: httpx.Client, done: str, accept: str, kind: str
) -> None:
    answer = alice.get(f"/jobs/{done}/front", headers={"Accept": accept})
    assert kind in answer.headers["content-type"]


@pytest.mark.parametrize(
    "how", [{"params": {"format": "csv"}}, {"headers": {"Accept": "text/csv"}}]
)
def test_the_front_comes_as_a_table(alice: httpx.Client, done: str, how: dict[str, Any]) -> None:
    answer = alice.get(f"/jobs/{done}/front", **how)
    rows = list(csv.DictReader(io.StringIO(answer.text)))
    front = alice.get(f"/jobs/{done}/front").json()["front"]
    assert answer.headers["content-type"] == "text/csv; charset=utf-8"
    assert [row["id"] for row in rows] == [entry["id"] for entry in front]
    assert float(rows[0]["quality"]) == front[0]["measured"]["quality"]


def test_a_front_is_known_while_the_search_measures(server: Server, alice: httpx.Client) -> None:
    job = server.finished(alice)
    final = alice.get(f"/jobs/{job}/front").json()
    (server.settings.runs / job / "pareto.json").unlink()
    live = alice.get(f"/jobs/{job}/front").json()
    assert (live["final"], live["hypervolume"]) == (False, None)
    assert live["front"]
    assert live["objectives"][0]["name"] == final["objectives"][0]["name"]


def test_a_network_is_told_of(alice: httpx.Client, done: str) -> None:
    entry = alice.get(f"/jobs/{done}/front").json()["front"][0]
    told = alice.get(f"/jobs/{done}/architectures/{entry['id']}").json()
    assert {key: told[key] for key in entry} == entry
    assert (told["on_front"], told["retrained"]["id"]) == (True, entry["id"])
    problem(alice.get(f"/jobs/{done}/architectures/{'0' * 12}"), 404)


def test_a_report_may_do_nothing_here(alice: httpx.Client, done: str) -> None:
    answer = alice.get(f"/jobs/{done}/report")
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert "sandbox" in answer.headers["content-security-policy"]


def test_files_come_whole_and_in_parts(server: Server, alice: httpx.Client, done: str) -> None:
    content = (server.settings.runs / done / "pareto.json").read_bytes()
    path = f"/jobs/{done}/artifacts/pareto.json"
    whole = alice.get(path)
    digest = base64.b64encode(hashlib.sha256(content).digest()).decode()
    assert (whole.content, whole.headers["repr-digest"]) == (content, f"sha-256=:{digest}:")
    part = alice.get(path, headers={"Range": "bytes=10-19"})
    assert (part.status_code, part.content) == (206, content[10:20])
    assert alice.get(path, headers={"Range": "bytes=999999-"}).status_code == 416


def test_files_are_listed_with_their_checksums(alice: httpx.Client, done: str) -> None:
    files = {file["path"]: file for file in alice.get(f"/jobs/{done}/artifacts").json()}
    assert {"pareto.json", "report.html", "spec.json"} <= files.keys()
    assert not any(name.startswith(".") for name in files)


def test_a_job_that_has_not_begun_has_no_files(alice: httpx.Client) -> None:
    job = alice.post("/jobs", json=SMOKE).json()["id"]
    for path in ("front", "report", "artifacts"):
        assert "not begun" in problem(alice.get(f"/jobs/{job}/{path}"), 404)


def test_a_network_is_retrained_by_a_job_of_its_own(server: Server, alice: httpx.Client) -> None:
    search = server.finished(alice)
    worst = alice.get(f"/jobs/{search}/front").json()["front"][-1]["id"]
    answer = alice.post(f"/jobs/{search}/retrain", json={"pick": worst})
    job = answer.json()
    assert (answer.status_code, job["kind"], job["run"]) == (201, "retrain", search)
    server.work()
    assert alice.get(f"/jobs/{job['id']}").json()["state"] == State.succeeded
    told = alice.get(f"/jobs/{search}/architectures/{worst}").json()
    assert told["retrained"]["test_accuracy"] == 0.975


def test_only_a_finished_search_is_retrained(alice: httpx.Client, done: str) -> None:
    waiting = alice.post("/jobs", json=SMOKE).json()["id"]
    problem(alice.post(f"/jobs/{waiting}/retrain", json={"pick": "best"}), 409)
    answer = alice.post(f"/jobs/{done}/retrain", json={"pick": "ffffffffffff"})
    assert "nearest id" in problem(answer, 422)


def omni_network(client: httpx.Client, job: str, *, deep: bool) -> str:
    """A network of a front with, or without, omni layers that look at several layers."""
    span = load_space("digits").model.omni_span
    entries = client.get(f"/jobs/{job}/front").json()["front"]
    networks = [Architecture.from_json(entry["architecture"]) for entry in entries]
    return next(one.id for one in networks if bool(omni_layers(one, span)) is deep)


def test_a_network_is_looked_into_by_a_job_of_its_own(server: Server, alice: httpx.Client) -> None:
    search = server.finished(alice)
    network = omni_network(alice, search, deep=True)
    path = f"/jobs/{search}/architectures/{network}/attention"
    assert f"{search}/attention" in problem(alice.get(path), 404)
    job = alice.post(f"/jobs/{search}/attention", json={"pick": network}).json()
    assert (job["kind"], job["run"], job["pick"]) == ("attention", search, network)
    server.work()
    found = alice.get(path).json()
    assert (found["id"], found["layers"][0]["pooling"]) == (network, [0.2, 0.1, 0.7])
    files = {file["path"]: file for file in alice.get(f"/jobs/{search}/artifacts").json()}
    assert files[f"attention/{network}.json"]["sha256"]


def test_what_has_no_omni_layers_is_not_looked_into(alice: httpx.Client, done: str) -> None:
    network = omni_network(alice, done, deep=False)
    answer = alice.post(f"/jobs/{done}/attention", json={"pick": network})
    refused = problem(answer, 422)
    assert "no omnidirectional layer" in refused
    assert problem(alice.get(f"/jobs/{done}/architectures/{network}/attention"), 404) == refused
    unknown = alice.get(f"/jobs/{done}/architectures/ffffffffffff/attention")
    assert problem(unknown, 404) == f"the job {done} has no network ffffffffffff"


def test_a_network_is_exported_by_a_job_of_its_own(server: Server, alice: httpx.Client) -> None:
    search = server.finished(alice)
    network = alice.get(f"/jobs/{search}/front").json()["front"][0]["id"]
    wanted = {"pick": network, "format": "torch"}
    assert "retrain it first" in problem(alice.post(f"/jobs/{search}/export", json=wanted), 409)
    weights = server.settings.runs / search / "retrained" / network / "weights.pt"
    weights.parent.mkdir(exist_ok=True)
    weights.write_bytes(b"")
    job = alice.post(f"/jobs/{search}/export", json=wanted).json()
    assert (job["kind"], job["request"]["format"], job["pick"]) == ("export", "torch", network)
    server.work()
    assert alice.get(f"/jobs/{job['id']}").json()["state"] == State.succeeded
    files = {file["path"]: file for file in alice.get(f"/jobs/{search}/artifacts").json()}
    file = files[f"export/{network}/torch/model.safetensors"]
    assert (file["stage"], file["sha256"]) == ("export", hashlib.sha256(b"weights").hexdigest())
    got = alice.get(f"/jobs/{job['id']}/artifacts/{file['path']}")
    assert got.content == b"weights"


def test_exports_that_cannot_be_are_refused(alice: httpx.Client, done: str) -> None:
    path = f"/jobs/{done}/export"
    problem(alice.post(path, json={"pick": "best", "format": "pickle"}), 422, "/format")
    problem(alice.post(path, json={"pick": "best", "weights": "mine"}), 422, "/weights")
    gone = alice.post(path, json={"pick": "best", "weights": "inherited"})
    assert "deleted to make room" in problem(gone, 409)


def test_what_was_trained_alone_inherits_nothing_to_export(
    server: Server, alice: httpx.Client
) -> None:
    search = server.finished(alice, settings={"own_updates": 7})
    wanted = {"pick": "best", "weights": "inherited"}
    reason = problem(alice.post(f"/jobs/{search}/export", json=wanted), 409)
    assert "trained alone for 7 updates" in reason and "retrain the network" in reason
