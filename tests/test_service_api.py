"""The API over real connections, with jobs that take no time."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from latency.profile import ProfileHeader, open_profile
from latency.workload import Workload
from nas.omni_views import sees_several_layers
from search_spaces import load_space
from search_spaces.architecture import Architecture
from search_spaces.loading import dump_space
from search_spaces.measurement import Measurement
from search_spaces.operators import largest, smallest
from service.auth import Role
from service.jobs import State
from service.runner import Outcome
from service.store.database import DatabaseAwayError
from tests.run_fixture import DEVICE
from tests.service_cases import SMOKE, Server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("home"), requests_per_minute=100_000) as running:
        yield running


@pytest.fixture
def alice(server: Server) -> httpx.Client:
    return server.client("alice")


@pytest.fixture(scope="module")
def done(server: Server) -> str:
    """A search of alice's that has succeeded."""
    return server.finished(server.client("alice"), title="the done one")


def problem(answer: httpx.Response, status: int, field: str | None = None) -> str:
    """The sentence of a problem document."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    document = answer.json()
    assert document["status"] == status
    assert document["type"].startswith("urn:nas:problem:")
    if field is not None:
        assert [one["field"] for one in document["errors"]] == [field]
    return str(document["detail"])


# -- submitting -----------------------------------------------------------------------------------


def test_three_fields_are_enough(alice: httpx.Client) -> None:
    answer = alice.post("/jobs", json=SMOKE)
    job = answer.json()
    assert (answer.status_code, job["state"], job["space"]) == (201, "queued", "digits")
    assert answer.headers["location"] == f"/api/v1/jobs/{job['id']}"
    assert job["request"] == SMOKE
    assert alice.get(f"/jobs/{job['id']}").json() == job


def test_a_request_that_is_sent_twice_makes_one_job(alice: httpx.Client) -> None:
    first, again = (
        alice.post("/jobs", json=SMOKE, headers={"Idempotency-Key": "k1"}) for _ in range(2)
    )
    assert (first.status_code, again.status_code) == (201, 200)
    assert first.json()["id"] == again.json()["id"]
    other = alice.post("/jobs", json={**SMOKE, "seed": 2}, headers={"Idempotency-Key": "k1"})
    assert "another request" in problem(other, 422, "Idempotency-Key")


@pytest.mark.parametrize(
    ("given", "field", "words"),
    [
        ({"space": "digit"}, "/space", "did you mean 'digits'"),
        ({"space": "../digits"}, "/space", "pattern"),
        ({"space": "digits", "spaces": 1}, "/spaces", "not permitted"),
        ({}, "/", "one of space and space_toml"),
        ({"space": "digits", "space_toml": "x"}, "/", "one of space and space_toml"),
        ({"space_toml": "[space\n"}, "/space_toml", "line 1"),
        ({"space_toml": "x = " + "[" * 50 + "]" * 50}, "/space_toml", "nested"),
        ({"space_toml": "a.b.c.d.e.f.g.h.i = 1"}, "/space_toml", "nested"),
        ({"space": "digits", "restrict": {"encoder.num_layers": [9]}}, "/restrict", "restricted"),
        ({"space": "digits", "preset": "fast"}, "/preset", "smoke"),
        ({"space": "digits", "dataset": "mnist"}, "/dataset", "no data set named"),
        ({"space": "digits", "dataset": "/etc"}, "/dataset", "pattern"),
        ({"space": "digits", "objectives": ["speed"]}, "/objectives", "unknown objective"),
        ({"space": "digits", "limits": {"params": 1}}, "/limits", "smallest it can reach is"),
        ({"space": "digits", "limits": {"size": 1}}, "/limits", "no limit can be set"),
        ({"space": "digits", "quality": "bleu"}, "/quality", "is for translation"),
        ({"space": "digits", "seed": -1}, "/seed", "greater than or equal"),
        ({"space": "digits", "pick": "first"}, "/pick", "pattern"),
        ({"space": "digits", "priority": 10}, "/priority", "less than or equal"),
        ({"space": "digits", "title": "a\nb"}, "/title", "pattern"),
        (
            {"space": "digits", "settings": {"supernet.epoch": 1}},
            "/settings/supernet.epoch",
            "did you mean 'supernet.epochs'",
        ),
        ({"space": "digits", "settings": {"supernet.epochs": "x"}}, "/settings", "integer"),
    ],
)
def test_a_wrong_field_is_named(
    alice: httpx.Client, given: dict[str, Any], field: str, words: str
) -> None:
    assert words in problem(alice.post("/jobs", json=given), 422, field)


def test_every_part_of_a_request_reaches_the_spec(server: Server, alice: httpx.Client) -> None:
    given = {
        **SMOKE,
        "restrict": {"encoder.num_layers": [1, 2]},
        "objectives": ["params", "quality"],
        "limits": {"params": 2e4},
        "settings": {"supernet.epochs": 3, "retrain.average_last": 2},
        "pick": "knee",
        "title": "small",
    }
    job = alice.post("/jobs", json=given).json()
    spec = json.loads(server.store.jobs.spec(job["run"]))
    assert (spec["seed"], spec["preset"], spec["pick"]) == (1, "smoke", "knee")
    assert (spec["objectives"], spec["limits"]) == (["quality", "params"], {"params": 2e4})
    assert (spec["budget"]["supernet"]["epochs"], job["title"]) == (3, "small")
    assert "num_layers = [\n    1,\n    2,\n]" in spec["space_toml"]


def test_a_space_of_ones_own_is_searched(alice: httpx.Client) -> None:
    text = dump_space(load_space("digits")).replace('name = "digits"', 'name = "mine"')
    answer = alice.post("/jobs", json={"space_toml": text, "preset": "smoke"})
    assert (answer.status_code, answer.json()["space"]) == (201, "mine")


def test_high_priorities_are_for_administrators(server: Server, alice: httpx.Client) -> None:
    urgent = {**SMOKE, "priority": 9}
    assert "administrators" in problem(alice.post("/jobs", json=urgent), 403, "/priority")
    assert server.client("root", Role.admin).post("/jobs", json=urgent).status_code == 201


# -- listing --------------------------------------------------------------------------------------


def test_pages_lead_to_every_job_once(server: Server) -> None:
    client = server.client("pages")
    made = [client.post("/jobs", json=SMOKE).json()["id"] for _ in range(5)]
    seen: list[str] = []
    page = client.get("/jobs", params={"limit": 2}).json()
    while True:
        seen += [job["id"] for job in page["jobs"]]
        if page["next"] is None:
            break
        page = client.get("/jobs", params={"limit": 2, "before": page["next"]}).json()
    assert seen == sorted(made, reverse=True)


def test_jobs_are_filtered(server: Server, done: str) -> None:
    admin = server.client("root", Role.admin)

    def found(**params: Any) -> list[str]:
        return [job["id"] for job in admin.get("/jobs", params=params).json()["jobs"]]

    assert done in found(state="succeeded", owner="alice", space="digits")
    assert found(text="THE DONE") == [done]
    assert found(state=["failed", "cancelled"], text="the done") == []
    assert found(kind="retrain", run=done) == []
    problem(admin.get("/jobs", params={"state": "gone"}), 422, "query.state.0".split(".", 1)[1])


def test_owners_see_their_own_jobs_only(server: Server, done: str) -> None:
    bob = server.client("bob", Role.submitter)
    assert bob.get("/jobs").json()["jobs"] == []
    assert bob.get("/jobs", params={"owner": "alice"}).json()["jobs"] == []
    for path in ("", "/events", "/front", "/report", "/artifacts", "/artifacts/pareto.json"):
        problem(bob.get(f"/jobs/{done}{path}"), 404)
    for path in ("cancel", "retry", "retrain"):
        problem(bob.post(f"/jobs/{done}/{path}", json={"pick": "best"}), 404)
    problem(bob.delete(f"/jobs/{done}"), 404)
    assert server.client("root", Role.admin).get(f"/jobs/{done}").status_code == 200


# -- cancelling, retrying, deleting ---------------------------------------------------------------


def test_a_job_is_cancelled_retried_and_deleted(server: Server, alice: httpx.Client) -> None:
    job = alice.post("/jobs", json=SMOKE).json()["id"]
    problem(alice.delete(f"/jobs/{job}"), 409)
    problem(alice.post(f"/jobs/{job}/retry"), 409)
    assert alice.post(f"/jobs/{job}/cancel").json()["state"] == "cancelled"
    assert alice.post(f"/jobs/{job}/retry").json()["state"] == "queued"
    server.work()
    assert alice.get(f"/jobs/{job}").json()["state"] == "succeeded"
    problem(alice.post(f"/jobs/{job}/cancel"), 409)
    assert alice.delete(f"/jobs/{job}").status_code == 204
    problem(alice.get(f"/jobs/{job}"), 404)
    assert not (server.settings.runs / job).exists()


def test_a_failure_is_told(server: Server, alice: httpx.Client) -> None:
    job = alice.post("/jobs", json=SMOKE).json()["id"]
    server.runner.outcome = Outcome(ok=False, error="the loss became NaN")
    server.work()
    server.runner.outcome = Outcome(ok=True)
    told = alice.get(f"/jobs/{job}").json()
    assert (told["state"], told["error"]) == ("failed", "the loss became NaN")


# -- events ---------------------------------------------------------------------------------------


def stream(client: httpx.Client, path: str, **headers: str) -> list[dict[str, str]]:
    """All messages of an event stream, as their fields."""
    answer = client.get(path, headers=headers)
    assert answer.headers["content-type"].startswith("text/event-stream")
    blocks = [block for block in answer.text.split("\n\n") if "data:" in block]
    return [dict(line.split(": ", 1) for line in block.splitlines()) for block in blocks]


def test_a_stream_tells_everything_and_ends(alice: httpx.Client, done: str) -> None:
    *told, end = stream(alice, f"/jobs/{done}/events")
    data = [json.loads(message["data"]) for message in told]
    assert [one["seq"] for one in data] == [int(message["id"]) for message in told]
    assert [one["seq"] for one in data] == list(range(1, len(data) + 1))
    assert data[-1]["event"] == "StateChanged"
    assert (end["event"], json.loads(end["data"])) == ("end", {"state": "succeeded"})


def test_a_stream_goes_on_where_it_was_left(alice: httpx.Client, done: str) -> None:
    path = f"/jobs/{done}/events"
    whole = stream(alice, path)
    assert stream(alice, path, **{"Last-Event-ID": "3"}) == whole[3:]
    assert stream(alice, path + "?after=3") == whole[3:]
    last = whole[-2]["id"]
    assert alice.get(path, headers={"Last-Event-ID": last}).status_code == 204
    problem(alice.get(path, headers={"Last-Event-ID": "x"}), 422, "Last-Event-ID")


def test_a_stream_follows_a_job_that_runs(server: Server, alice: httpx.Client) -> None:
    job = alice.post("/jobs", json=SMOKE).json()["id"]
    seen = []
    with alice.stream("GET", f"/jobs/{job}/events") as answer:
        for line in answer.iter_lines():
            if line.startswith("data:"):
                seen.append(json.loads(line[5:]))
                if len(seen) == 1:  # only now does anything more happen
                    server.work()
    assert seen[0]["state"] == "queued"
    assert seen[-1] == {"state": "succeeded"}
    assert [one["seq"] for one in seen[:-1]] == list(range(1, len(seen)))


# -- results --------------------------------------------------------------------------------------


def test_the_front_is_that_of_the_run(server: Server, alice: httpx.Client, done: str) -> None:
    told = alice.get(f"/jobs/{done}/front").json()
    kept = json.loads((server.settings.runs / done / "pareto.json").read_text())
    assert told["final"]
    assert (told["front"], told["hypervolume"]) == (kept["front"], kept["hypervolume"])


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
    return next(one.id for one in networks if sees_several_layers(one, span) is deep)


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
    assert "no omnidirectional layer" in problem(answer, 422)


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


# -- spaces, data sets, profiles ------------------------------------------------------------------


def test_spaces_are_listed_and_shown(alice: httpx.Client) -> None:
    listed = {space["name"]: space for space in alice.get("/spaces").json()}
    shown = alice.get("/spaces/digits").json()
    assert listed["digits"]["size"] == shown["size"] == str(load_space("digits").size)
    assert (listed["digits"]["genes"], len(shown["genes"])) == ([], 14)
    problem(alice.get("/spaces/nothing"), 404)


def test_a_smaller_space_is_counted(alice: httpx.Client) -> None:
    given = {"space": "digits", "restrict": {"encoder.num_layers": [1]}}
    smaller = alice.post("/spaces/check", json=given).json()
    assert smaller["size"] == str(load_space("digits").restrict({"encoder.num_layers": [1]}).size)


def test_the_servers_own_spaces_have_names_too(server: Server, alice: httpx.Client) -> None:
    folder = server.settings.home / "spaces"
    folder.mkdir(exist_ok=True)
    text = dump_space(load_space("digits")).replace('name = "digits"', 'name = "ours"')
    (folder / "ours.toml").write_text(text)
    (folder / "broken.toml").write_text("[space")
    assert "ours" in [space["name"] for space in alice.get("/spaces").json()]
    assert alice.post("/jobs", json={**SMOKE, "space": "ours"}).status_code == 201
    problem(alice.post("/jobs", json={**SMOKE, "space": "broken"}), 422, "/space")


def test_data_sets_are_listed(alice: httpx.Client) -> None:
    names = {one["name"]: one["kind"] for one in alice.get("/datasets").json()}
    assert names == {"digits": "built-in", "listops": "built-in", "synthetic": "generated"}


def profile_text(folder: Path) -> str:
    space = load_space("digits")
    networks = space.decode(smallest(space)) + space.decode(largest(space))
    profile = open_profile(folder / "p", ProfileHeader(DEVICE, Workload(32, 16), "settings"))
    profile.record([(n, Measurement("latency_ms", 1.5, unit="ms")) for n in networks])
    return (folder / "p").read_text()


def test_profiles_are_carried_here(server: Server, alice: httpx.Client, tmp_path: Path) -> None:
    text, kind = profile_text(tmp_path), {"Content-Type": "text/plain"}
    admin = server.client("root", Role.admin)
    problem(alice.post("/profiles", content=text, headers=kind), 403)
    first, again = (admin.post("/profiles", content=text, headers=kind) for _ in range(2))
    assert (first.status_code, again.status_code) == (201, 200)
    assert first.json()["networks"] == 2
    assert first.json() in alice.get("/profiles").json()
    broken = admin.post("/profiles", content=text.replace("1.5", "-1"), headers=kind)
    assert "line 2" in problem(broken, 422, "/")


# -- health ---------------------------------------------------------------------------------------


def test_health_needs_no_token(server: Server) -> None:
    nobody = server.client_of(None)
    assert nobody.get(server.url + "/healthz").json() == {"status": "ok"}
    assert nobody.get(server.url + "/readyz").json()["status"] == "ok"
    problem(nobody.get(server.url + "/metrics"), 401)


@pytest.mark.parametrize(
    ("error", "status"), [(DatabaseAwayError("secret place"), 503), (KeyError("secret place"), 500)]
)
def test_what_goes_wrong_inside_stays_inside(
    server: Server, monkeypatch: pytest.MonkeyPatch, error: Exception, status: int
) -> None:
    def fail() -> None:
        raise error

    monkeypatch.setattr(server.store.database, "ping", fail)
    answer = server.client_of(None).get(server.url + "/readyz")
    assert "secret" not in problem(answer, status)
    assert ("retry-after" in answer.headers) == (status == 503)
    assert answer.headers["x-content-type-options"] == "nosniff"


def test_numbers_for_prometheus(server: Server, alice: httpx.Client, done: str) -> None:
    text = alice.get(server.url + "/metrics").text
    assert 'nas_jobs{state="succeeded"}' in text
    assert 'route="/jobs/{job_id}"' in text
    assert done not in text


def test_the_api_describes_itself(alice: httpx.Client) -> None:
    document = alice.get("/openapi.json").json()
    assert "/api/v1/jobs/{job_id}/events" in document["paths"]
    assert document["components"]["schemas"]["JobRequest"]["examples"] == [SMOKE]
    submit = document["paths"]["/api/v1/jobs"]["post"]["responses"]
    assert list(submit["4XX"]["content"]) == ["application/problem+json"]
