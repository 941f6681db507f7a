"""The API takes jobs, lists, cancels, retries and deletes them, and tells their events."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import httpx
import pytest

from search_spaces import load_space
from search_spaces.loading import dump_space
from service.auth import Role
from service.jobs.database import DatabaseAwayError, DatabaseFullError
from service.worker.runner import Outcome
from tests.support import service_api_cases
from tests.support.prepare_cases import pairs_on_server
from tests.support.service_cases import SMOKE, Server, problem

server, alice, done = service_api_cases.server, service_api_cases.alice, service_api_cases.done

SEVEN_DIGITS = dump_space(load_space("digits")).replace("num_classes = 10", "num_classes = 7")


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
        ({"space": "../digits"}, "/space", "no space named"),
        ({"space": "digits", "spaces": 1}, "/spaces", "not permitted"),
        ({}, "/", "no space is given"),
        ({"dataset": "digits"}, "/", "as space_toml, write one with nas space new --data DIR"),
        ({"space": "digits", "space_toml": "x"}, "/", "one of space and space_toml"),
        ({"space_toml": "[space\n"}, "/space_toml", "line 1"),
        ({"space_toml": "x = " + "[" * 50 + "]" * 50}, "/space_toml", "nested"),
        ({"space_toml": "a.b.c.d.e.f.g.h.i = 1"}, "/space_toml", "nested"),
        (
            {"space": "digits", "restrict": {"encoder.num_layers": [9]}},
            "/restrict",
            "has no choice",
        ),
        ({"space": "digits", "preset": "fast"}, "/preset", "smoke"),
        ({"space": "digits", "dataset": "mnist"}, "/dataset", "no data set named"),
        ({"space": "digits", "dataset": "/etc"}, "/dataset", "no data set named"),
        ({"space": "digits", "dataset": "listops"}, "/dataset", "holds tokens"),
        ({"space": "digits", "dataset": "recall"}, "/dataset", "is for language modelling"),
        ({"space_toml": SEVEN_DIGITS}, "/dataset", "has 10 classes, but the space has"),
        ({"space": "digits", "objectives": ["speed"]}, "/objectives", "unknown objective"),
        ({"space": "digits", "limits": {"params": 1}}, "/limits", "smallest it can reach is"),
        ({"space": "digits", "limits": {"size": 1}}, "/limits", "no limit can be set"),
        ({"space": "digits", "quality": "bleu"}, "/quality", "is for translation"),
        ({"space": "digits", "seed": -1}, "/seed", "greater than or equal"),
        (
            {"space": "digits", "pick": "first"},
            "/pick",
            "pick takes sensible, best, knee",
        ),
        ({"space": "digits", "pick": "params>=3"}, "/pick", "less is better"),
        ({"space": "digits", "pick": "valid_bleu>=30"}, "/pick", "a score of translation"),
        ({"space": "digits", "priority": 10}, "/priority", "less than or equal"),
        ({"space": "digits", "title": "a\nb"}, "/title", "pattern"),
        (
            {"space": "digits", "settings": {"supernet.epoch": 1}},
            "/settings/supernet.epoch",
            "did you mean 'supernet.epochs'",
        ),
        ({"space": "digits", "data": "../x"}, "/data", "no folder or file of data named"),
        ({"space": "digits", "device_profile": "board.json"}, "/device_profile", "no device prof"),
        ({"space": "digits", "workload": "batch=0"}, "/workload", "integer from 1"),
        ({"space": "digits", "keep": {"encoder.atention": ["omni"]}}, "/keep", "did you mean"),
        ({"space": "digits", "searcher": "grid"}, "/searcher", "rank-evolve"),
        ({"space": "digits", "executor": "ray"}, "/executor", "no Ray cluster"),
        ({"space": "digits", "threads": 0}, "/threads", "greater than or equal"),
        ({"space": "digits", "settings": {"supernet.epochs": "x"}}, "/settings", "integer"),
        (
            {"space": "digits", "settings": {"supernet.augmentation": "x"}},
            "/settings/supernet.augmentation",
            "augmentation 'x' is not understood",
        ),
        (
            {"space": "digits", "settings": {"retrain.augmentation": "shift=-1"}},
            "/settings/retrain.augmentation",
            "augmentation 'shift=-1' is not understood",
        ),
    ],
)
def test_a_wrong_field_is_named(
    alice: httpx.Client, given: dict[str, Any], field: str, words: str
) -> None:
    assert words in problem(alice.post("/jobs", json=given), 422, field)


def test_data_of_another_task_are_refused(
    server: Server, alice: httpx.Client, tmp_path: Path
) -> None:
    toml = dump_space(load_space("digits"))
    with pairs_on_server(server.settings.home, tmp_path) as name:
        for field, given in (
            ("/dataset", {"space": "digits", "dataset": name}),
            ("/data", {"space": "digits", "data": name}),
            ("/dataset", {"space_toml": toml, "dataset": name}),
        ):
            told = problem(alice.post("/jobs", json={"preset": "smoke", **given}), 422, field)
            assert "is for translation" in told and "are for classification" in told
        good = alice.post("/jobs", json={"space": "multi30k", "dataset": name})
    assert good.status_code == 201, good.text
    alice.post(f"/jobs/{good.json()['id']}/cancel")


def test_every_part_of_a_request_reaches_the_spec(server: Server, alice: httpx.Client) -> None:
    given = {
        **SMOKE,
        "restrict": {"encoder.num_layers": [1, 2]},
        "objectives": ["params", "quality"],
        "limits": {"params": 2e4},
        "settings": {"supernet.epochs": 3, "retrain.average_last": 2},
        "pick": "knee",
        "title": "small",
        "searcher": "ranknas",
        "keep": {"encoder.attention": ["omni"]},
        "workload": "batch=3",
        "data": "synthetic",
        "threads": 1,
        "executor": "local",
    }
    job = alice.post("/jobs", json=given).json()
    spec = json.loads(server.store.jobs.spec(job["run"]))
    assert (spec["seed"], spec["preset"], spec["pick"]) == (1, "smoke", "knee")
    assert (spec["objectives"], spec["limits"]) == (["quality", "params"], {"params": 2e4})
    assert (spec["budget"]["supernet"]["epochs"], job["title"]) == (3, "small")
    assert (spec["searcher"], spec["keep"]) == ("ranknas", {"encoder.attention": ["omni"]})
    assert (spec["dataset"], spec["budget"]["threads"]) == ("synthetic", 1)
    assert "batch = 3" in spec["space_toml"]
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


def test_a_full_disk_is_no_dead_database(
    server: Server, alice: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise DatabaseFullError("database or disk is full")

    monkeypatch.setattr(server.store.jobs, "submit", full)
    told = "the disk of the database is full; delete jobs, or make room"
    assert problem(alice.post("/jobs", json=SMOKE), 507) == told


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


def test_a_list_is_refused_that_cannot_be(alice: httpx.Client) -> None:
    for query in (
        "sort=size",
        "since=2026-02-30",
        "since=soon",
        "tag=a,b",
        "limit=0",
        "colour=red",
    ):
        problem(alice.get(f"/jobs?{query}"), 422)
    assert "begin anew" in problem(alice.get(f"/jobs?sort=title&before={'0' * 20}"), 422)


def test_words_are_changed(server: Server, alice: httpx.Client) -> None:
    job = alice.post("/jobs", json={**SMOKE, "tags": ["b", "a", "b"], "notes": "x\ny"}).json()
    assert (job["tags"], job["notes"]) == (["a", "b"], "x\ny")
    path = f"/jobs/{job['id']}"
    changed = alice.patch(path, json={"tags": ["c"], "title": "new"}).json()
    assert changed == {**job, "tags": ["c"], "title": "new", "last_event": job["last_event"] + 1}
    assert [one["id"] for one in alice.get("/jobs?tag=c").json()["jobs"]] == [job["id"]]
    problem(alice.patch(path, json={"tags": ["a b"]}), 422, "/tags/0")
    problem(alice.patch(path, json={"title": "a\nb"}), 422, "/title")
    problem(alice.patch(path, json={"state": "failed"}), 422, "/state")
    problem(server.client("bob").patch(path, json={"title": "mine"}), 404)
    problem(server.client("alice", Role.reader).patch(path, json={"title": "mine"}), 403)
    assert server.client("root", Role.admin).patch(path, json={"notes": ""}).json()["notes"] == ""


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


def test_a_stream_is_broken_off_when_the_database_goes_away(
    server: Server,
    alice: httpx.Client,
    done: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def away(*_: object) -> None:
        raise DatabaseAwayError("gone away")

    monkeypatch.setattr(server.store.events, "after", away)
    assert stream(alice, f"/jobs/{done}/events") == []
    (line,) = [one for one in caplog.records if one.levelno >= logging.WARNING]
    assert "event stream ends" in line.getMessage() and line.exc_info is None


def test_a_stop_of_the_service_ends_streams_in_good_order(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Server(tmp_path) as server:
        client = server.client()
        job = client.post("/jobs", json=SMOKE).json()["id"]
        with client.stream("GET", f"/jobs/{job}/events") as answer:
            lines = answer.iter_lines()
            while not next(lines).startswith("data:"):
                pass
            server._server.should_exit = True
            assert "event: end" not in [*lines]
    assert [one.getMessage() for one in caplog.records if one.levelno >= logging.ERROR] == []


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
