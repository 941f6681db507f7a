"""Text that no database, parser or answer can hold is refused, and never an error of ours."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any
from urllib.parse import quote

import pytest
from fastapi import APIRouter
from fastapi.routing import APIRoute

from nas.run.folder import RunFolder
from search_spaces.json_text import finite_number, parse_json
from service.api import routes as api_routes
from service.auth import Role
from service.dashboard import router as dashboard
from service.settings import API_PREFIX
from tests.support import run_fixture, store_cases
from tests.support.dashboard_cases import browser
from tests.support.service_cases import SMOKE, Server, postgres_url, problem

NESTED = "[" * 100_000 + "]" * 100_000
API = [
    import_module(f"{api_routes.__name__}.{one.name}") for one in iter_modules(api_routes.__path__)
]
NUL, HALF = "a\0b", "a\ud800b"


@pytest.fixture(scope="module", params=store_cases.DATABASES)
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    home = tmp_path_factory.mktemp("home")
    if request.param == "sqlite":
        with Server(home) as running:
            yield running
    else:
        with postgres_url() as url, Server(home, database_url=url) as running:
            yield running


@pytest.fixture(scope="module")
def done(server: Server) -> str:
    return server.finished(server.client("alice"))


def queries() -> list[tuple[str, str]]:
    """Path and parameter of everything that is asked for in an address and is text."""
    routes = []
    for prefix, module in [("", dashboard), *((API_PREFIX, module.router) for module in API)]:
        routes += [(prefix, route) for route in every_route(module)]
    return [
        (prefix + route.path, name)
        for prefix, route in routes
        for one in route.dependant.query_params
        for name in getattr(one.field_info.annotation, "model_fields", [one.alias])
        if "GET" in (route.methods or ())
    ]


def every_route(router: APIRouter) -> Iterator[APIRoute]:
    """The routes of a router, those of the routers it includes among them."""
    for route in router.routes:
        inner = getattr(route, "original_router", None)
        if inner is not None:
            yield from every_route(inner)
        elif isinstance(route, APIRoute):
            yield route


@pytest.mark.parametrize("bad", ["a%00b", "%ED%A0%80", "%FF", "%00"])
def test_no_parameter_takes_what_is_no_text(server: Server, done: str, bad: str) -> None:
    asked = queries()
    assert {("/", "space"), ("/api/v1/jobs", "owner"), ("/compare", "job")} <= set(asked)
    with browser(server, server.token("alice")) as alice:
        alice.headers["Authorization"] = f"Bearer {server.token('root', Role.admin)}"
        for path, name in asked:
            path = path.format(job_id=done, name="digits", arch_id="1" * 12, path="x", form="csv")
            answer = alice.get(f"{path}?{name}={bad}")
            assert answer.status_code < 500, (path, name)
            if "%00" in bad:
                assert answer.status_code == 422, (path, name)
                assert "NUL" in answer.text


@pytest.mark.parametrize("bad", [NUL, HALF, "\x1b[2J"])
def test_no_body_takes_what_is_no_text(server: Server, bad: str) -> None:
    client = server.client("alice")
    headers = {"Content-Type": "application/json"}
    toml = '[space]\nname = "mine"\ntask = "classification"\ndescription = %s\n'
    bodies: list[dict[str, Any]] = [
        {name: bad} for name in ("space", "dataset", "title", "preset", "quality", "pick", bad)
    ]
    bodies += [{"objectives": ["quality", bad]}, {"limits": {bad: 1}}, {"settings": {bad: 1}}]
    bodies += [{"settings": {"supernet.epochs": bad}}, {"restrict": {bad: [1]}}]
    bodies += [{"restrict": {"encoder.num_layers": [bad]}}, {"space": None, "space_toml": bad}]
    bodies += [{"space": None, "space_toml": toml % json.dumps(bad)}]
    for body in bodies:
        text = json.dumps({**SMOKE, **body})
        for path in ("/jobs", "/spaces/check"):
            answer = client.post(path, content=text, headers=headers)
            assert 400 <= answer.status_code < 500, (body, answer.text)
            answer.json()


def test_a_title_may_be_in_any_script(server: Server) -> None:
    title = "Größe 大 🚀 <b>"
    answer = server.client("alice").post("/jobs", json={**SMOKE, "title": title})
    assert (answer.status_code, answer.json()["title"]) == (201, title)


@pytest.mark.parametrize(
    "action", ["/new", "/jobs/ID/retrain", "/jobs/ID/export", "/jobs/ID/cancel"]
)
@pytest.mark.parametrize("name", ["space", "title", "id", "format", "seed", "gene:x", "%00"])
def test_no_form_takes_the_character_nul(server: Server, done: str, action: str, name: str) -> None:
    with browser(server, server.token("alice")) as alice:
        kind = {"Content-Type": "application/x-www-form-urlencoded"}
        body = f"{name}=a%00b&preset=smoke"
        answer = alice.post(action.replace("ID", done), content=body, headers=kind)
        assert answer.status_code == 422
        assert "NUL" in answer.text


def pages(job: str) -> list[str]:
    return [f"/jobs/{job}", f"/jobs/{job}/networks", f"/jobs/{job}/curve.svg"]


def answers(name: str) -> list[str]:
    return [f"/api/v1/jobs/{name}/{part}" for part in ("front", "front?format=csv", "artifacts")]


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("pareto.json", NESTED),
        ("pareto.json", '{"schema": 1, "front": ' + NESTED + "}"),
        ("observations.jsonl", NESTED + "\n"),
        ("pruning.json", NESTED),
        ("stages/evolve.json", NESTED),
        ("spec.json", NESTED),
        ("ranker/report_card.json", '"text"'),
        ("stages/evolve.json", '{"stage":"evolve","digest":"x","outputs":{},"seconds":"long"}'),
        ("stages/evolve.json", '{"stage":"evolve","digest":"x","outputs":{},"seconds":NaN}'),
        ("stages/evolve.json", '{"stage":"evolve","digest":"x","outputs":{},"seconds":-1}'),
        (
            "stages/evolve.json",
            '{"stage":"evolve","digest":"x","outputs":{},"seconds":1%s}' % (400 * "0"),
        ),
        ("data.json", '{"num_train": 1, "num_valid": "many"}'),
        ("pruning.json", '{"size": 1, "refused": "\\ud800", "cuts": [], "kept": []}'),
        ("pruning.json", '{"size": 1, "refused": -1, "cuts": [], "kept": []}'),
    ],
)
def test_a_damaged_file_of_a_run_is_told(server: Server, done: str, file: str, text: str) -> None:
    if "sqlite" not in server.settings.url:
        pytest.skip("files are the same whatever the database")
    path = server.settings.runs / done / file
    whole = path.read_bytes()
    path.write_text(text, "utf-8")
    try:
        with browser(server, server.token("alice")) as alice:
            told = [alice.get(address) for address in (*pages(done), *answers(done))]
            told.append(alice.get("/compare", params={"job": done}))
    finally:
        path.write_bytes(whole)
    assert all(answer.status_code in (200, 404, 409) for answer in told)
    assert any("damaged" in answer.text for answer in told)


def test_a_file_whose_name_is_no_text_is_left_out(server: Server, done: str) -> None:
    folder = server.settings.runs / done
    strange = folder / "strange\udcff.json"
    strange.write_text("{}", "utf-8")
    try:
        client = server.client("alice")
        files = [one["path"] for one in client.get(f"/jobs/{done}/artifacts").json()]
        with browser(server, server.token("alice")) as alice:
            assert alice.get(f"/jobs/{done}").status_code == 200
        name = quote("strange\udcff.json", errors="surrogateescape")
        problem(client.get(f"/jobs/{done}/artifacts/{name}"), 404)
    finally:
        strange.unlink()
    assert "pareto.json" in files
    assert not any("strange" in name for name in files)


@pytest.mark.parametrize("name", ["漢" * 90, "x" * 256, f"supernet/{'x' * 256}"])
def test_a_name_that_is_too_long_for_a_file_is_not_there(
    server: Server, done: str, name: str
) -> None:
    client = server.client("alice")
    problem(client.get(f"/jobs/{done}/artifacts/{quote(name)}"), 404)
    problem(client.get(f"/jobs/{done}/artifacts/{quote('漢' * 85)}"), 404)


def test_what_is_wrong_with_json_is_a_value_error() -> None:
    for text in (NESTED, '"\\ud800"', '{"\\uDC00": 1}', "{", "1" * 5000):
        with pytest.raises(ValueError, match=r"."):
            parse_json(text)
    assert parse_json('["\\ud83d\\ude80", "\\\\ud800"]') == ["🚀", "\\ud800"]


@pytest.mark.parametrize("value", ["1", None, True, float("nan"), float("inf"), 10**400, []])
def test_what_is_no_finite_number(value: object) -> None:
    with pytest.raises(ValueError, match="number"):
        finite_number(value)


def test_numbers_are_finite() -> None:
    assert [finite_number(one) for one in (0, -1, 1.5, 10**300)] == [0, -1, 1.5, 10**300]


def test_a_record_without_seconds_is_a_problem_of_the_run(tmp_path: Path) -> None:
    folder = run_fixture.finished_run(tmp_path / "run")
    record = folder.path / "stages" / "evolve.json"
    record.write_text(record.read_text("utf-8").replace("7.5", '"7.5"'), "utf-8")
    with pytest.raises(Exception, match="stages/evolve.json is damaged"):
        RunFolder.open(folder.path).record("evolve")
