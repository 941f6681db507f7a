"""Attacks on the service, and what each gets."""

from __future__ import annotations

import http.client
import io
import json
import logging
import pickle
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from search_spaces import load_space
from search_spaces.errors import UsageError
from search_spaces.loading import dump_space
from service.api.bounds import RateLimit, Streams
from service.api.files import find_artifact
from service.auth import Role, new_token, read_expiry
from service.logs import JsonFormatter
from service.settings import read_settings
from tests.support import service_api_cases
from tests.support.service_cases import SMOKE, Server, problem

alice = service_api_cases.alice


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    limits = {"failed_logins_per_minute": 1000, "max_body_bytes": 100_000, "streams_per_token": 2}
    with Server(tmp_path_factory.mktemp("home"), **limits) as running:
        yield running


@pytest.fixture(scope="module")
def done(server: Server) -> str:
    return server.finished(server.client("alice"))


def raw(server: Server, path: str, **headers: str) -> int:
    """The status of a request whose path and headers no client library has tidied up."""
    connection = http.client.HTTPConnection(server.url.removeprefix("http://"))
    connection.request("GET", path, headers=headers)
    status = connection.getresponse().status
    connection.close()
    return status


# -- tokens ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/jobs", "/spaces", "/openapi.json", "/profiles", "/datasets"])
def test_nothing_is_told_to_nobody(server: Server, path: str) -> None:
    answer = server.client_of(None).get(path)
    problem(answer, 401)
    assert answer.headers["www-authenticate"].startswith("Bearer")


@pytest.mark.parametrize(
    "given",
    ["", "Bearer", "Bearer ", "Bearer nas_guess", "Basic YTpi", "Bearer \xe9", "Bearer a b"],
)
def test_a_wrong_token_is_no_token(server: Server, given: str) -> None:
    assert raw(server, "/api/v1/jobs", Authorization=given) == 401


def test_guessing_tokens_is_slowed_down(tmp_path: Path) -> None:
    with Server(tmp_path, failed_logins_per_minute=3) as server:
        guesses = [server.client_of(f"nas_{n}").get("/jobs") for n in range(5)]
        assert [answer.status_code for answer in guesses] == [401, 401, 401, 429, 429]
        assert int(guesses[-1].headers["retry-after"]) > 0


def test_a_token_that_ended_opens_nothing(tmp_path: Path) -> None:
    with Server(tmp_path) as server:
        check_ended_tokens(server)


def check_ended_tokens(server: Server) -> None:
    old = server.token("alice", expires_at=1.0)
    problem(server.client_of(old).get("/jobs"), 401)
    client = server.client("carol")
    assert client.get("/jobs").status_code == 200
    for token in server.store.tokens.list():
        if token.name == "carol":
            server.store.tokens.revoke(token.id)
    problem(client.get("/jobs"), 401)


def test_readers_change_nothing(server: Server, done: str) -> None:
    reader = server.client("alice", Role.reader)
    assert reader.get(f"/jobs/{done}").status_code == 200
    for path in ("/jobs", f"/jobs/{done}/cancel", f"/jobs/{done}/retry", f"/jobs/{done}/retrain"):
        assert "submitter" in problem(reader.post(path, json={**SMOKE}), 403)
    problem(reader.delete(f"/jobs/{done}"), 403)


def test_secrets_are_kept_nowhere(server: Server) -> None:
    secret = server.token("dave")
    server.client_of(secret).get("/jobs")
    files = [p for p in server.settings.home.rglob("*") if p.is_file()]
    assert files
    assert not any(secret.encode() in path.read_bytes() for path in files)


def test_a_token_asks_only_so_often(tmp_path: Path) -> None:
    with Server(tmp_path, requests_per_minute=3) as server:
        one, other = server.client("alice"), server.client("bob")
        assert [one.get("/jobs").status_code for _ in range(4)] == [200, 200, 200, 429]
        assert other.get("/jobs").status_code == 200


def test_streams_are_counted(server: Server, alice: httpx.Client) -> None:
    job = alice.post("/jobs", json=SMOKE).json()["id"]
    path = f"/jobs/{job}/events"
    with alice.stream("GET", path), alice.stream("GET", path):
        problem(alice.get(path), 429)
    alice.post(f"/jobs/{job}/cancel")
    assert server.client("bob", Role.admin).get(path).status_code == 200


@pytest.mark.parametrize("host", ["0.0.0.0", "192.168.1.5", "example.org"])
def test_everybody_is_let_in_on_loopback_only(host: str) -> None:
    with pytest.raises(UsageError, match="loopback"):
        read_settings({}, host=host, no_auth=True)
    assert read_settings({}, host="127.0.0.1", no_auth=True).no_auth


def test_without_authentication_everybody_is_an_administrator(tmp_path: Path) -> None:
    with Server(tmp_path, no_auth=True) as server:
        answer = server.client_of(None).post("/jobs", json={**SMOKE, "priority": 9})
        assert (answer.status_code, answer.json()["owner"]) == (201, "local")


# -- other sites ----------------------------------------------------------------------------------


def test_another_name_for_this_machine_is_refused(alice: httpx.Client) -> None:
    problem(alice.get("/jobs", headers={"Host": "evil.example"}), 421)
    assert alice.get("/jobs", headers={"Host": "localhost:1"}).status_code == 200


def test_a_page_of_another_site_changes_nothing(server: Server, alice: httpx.Client) -> None:
    evil = {"Origin": "http://evil.example"}
    problem(alice.post("/jobs", json=SMOKE, headers=evil), 403)
    assert alice.post("/jobs", json=SMOKE, headers={"Origin": server.url}).status_code == 201
    plain = {"Content-Type": "text/plain"}
    problem(alice.post("/jobs", content=json.dumps(SMOKE), headers=plain), 422)


def test_every_answer_has_the_headers(server: Server, alice: httpx.Client) -> None:
    for answer in (alice.get("/jobs"), alice.get("/nothing"), alice.post("/jobs", content="{")):
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        assert answer.headers["x-frame-options"] == "DENY"
        assert "server" not in answer.headers


# -- bodies ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("announced", [True, False])
def test_large_bodies_are_refused(alice: httpx.Client, announced: bool) -> None:
    body = b'{"space": "' + b"x" * 200_000 + b'"}'
    content = body if announced else (body[n : n + 1000] for n in range(0, len(body), 1000))
    json_type = {"Content-Type": "application/json"}
    problem(alice.post("/jobs", content=content, headers=json_type), 413)


@pytest.mark.parametrize(
    "body",
    [b"", b"null", b"[]", b'{"seed": NaN}', b"\xff\xfe", b"[" * 10_000, b'{"a":' * 5_000],
)
def test_malformed_bodies_are_refused(alice: httpx.Client, body: bytes) -> None:
    answer = alice.post("/jobs", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code in (400, 422), answer.text


def test_pickles_and_archives_are_text_that_is_no_space(alice: httpx.Client) -> None:
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as writer:
        writer.writestr("../../evil", "x" * 100)
    for content in (pickle.dumps(Server), archive.getvalue()):
        text = content.decode("latin-1")
        problem(alice.post("/jobs", json={"space_toml": text}), 422, "/space_toml")
        kind = {"Content-Type": "text/plain"}
        admin_only = alice.post("/profiles", content=content, headers=kind)
        assert admin_only.status_code in (403, 422)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("num_layers = [", "num_layers = [1000000000, "),
        ("num_layers = [", "num_layers = " + "[" * 40),
        ('dataset = "digits"', 'dataset = "/etc/passwd"'),
        ('dataset = "digits"', 'dataset = "../../secret"'),
    ],
)
def test_bad_spaces_are_refused(alice: httpx.Client, old: str, new: str) -> None:
    text = dump_space(load_space("digits"))
    assert old in text
    problem(alice.post("/jobs", json={"space_toml": text.replace(old, new)}), 422)


@pytest.mark.parametrize("name", ["/etc", "..", "../data", "a/b", "digits\x00", ".hidden"])
def test_data_are_named_never_pointed_at(alice: httpx.Client, name: str) -> None:
    problem(alice.post("/jobs", json={**SMOKE, "dataset": name}), 422, "/dataset")
    problem(alice.post("/jobs", json={"space": name}), 422, "/space")


def test_data_behind_a_link_are_not_registered(server: Server, tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text("{}")
    link = server.settings.home / "data" / "secret"
    link.parent.mkdir(exist_ok=True)
    link.symlink_to(tmp_path)
    names = [one["name"] for one in server.client("alice").get("/datasets").json()]
    assert "secret" not in names


# -- paths ----------------------------------------------------------------------------------------

ESCAPES = [
    *("../../service.db", "..%2f..%2fservice.db", "%2e%2e/%2e%2e/service.db", "/etc/passwd"),
    *("stages/../../../service.db", ".lock", "stages//front.json", "..\\..\\service.db", "%00"),
    *("linked/service.db", "link", "a" * 5000),
]


@pytest.mark.parametrize("path", ESCAPES)
def test_no_path_leaves_a_run(server: Server, done: str, path: str) -> None:
    run = server.settings.runs / done
    for name, target in (("linked", server.settings.home), ("link", run / "spec.json")):
        if not (run / name).is_symlink():
            (run / name).symlink_to(target)
    secret = server.token("alice")
    root = f"/api/v1/jobs/{done}/artifacts"
    assert raw(server, f"{root}/{path}", Authorization=f"Bearer {secret}") == 404
    assert raw(server, f"{root}/spec.json", Authorization=f"Bearer {secret}") == 200


def test_links_are_not_listed(server: Server, alice: httpx.Client, done: str) -> None:
    run = server.settings.runs / done
    if not (run / "linked").is_symlink():
        (run / "linked").symlink_to(server.settings.home)
    paths = [one["path"] for one in alice.get(f"/jobs/{done}/artifacts").json()]
    assert not [path for path in paths if path.startswith("link")]
    assert find_artifact(run, "spec.json") is not None


@pytest.mark.parametrize("identity", ["..", "0" * 19, "G" * 20, "%2e%2e", "' OR 1=1 --"])
def test_ids_are_ids(alice: httpx.Client, identity: str) -> None:
    assert alice.get(f"/jobs/{identity}").status_code in (404, 422)


def test_text_filters_are_text(alice: httpx.Client, done: str) -> None:
    for text in ("' OR 1=1 --", "%", "_", "\\"):
        assert alice.get("/jobs", params={"text": text}).json()["jobs"] == []


# -- the parts ------------------------------------------------------------------------------------


def test_a_bucket_fills_evenly() -> None:
    now = [0.0]
    limit = RateLimit(60, lambda: now[0])
    assert [limit.wait_s("a") for _ in range(60)] == [0.0] * 60
    assert 0 < limit.wait_s("a") <= 1
    assert limit.wait_s("b") == 0.0
    now[0] = 1.0
    assert limit.wait_s("a") == 0.0
    assert limit.wait_s("a", 0.0) > 0


def test_streams_give_their_places_back() -> None:
    streams = Streams(1)
    assert streams.enter("a")
    assert not streams.enter("a")
    assert streams.enter("b")
    streams.leave("a")
    assert streams.enter("a")
    assert streams.total == 2


@pytest.mark.parametrize("name", ["", "a b", "../x", "x" * 65, "-a", "a\n"])
def test_names_of_tokens_are_names(name: str) -> None:
    with pytest.raises(UsageError, match="letters, digits"):
        new_token(name, Role.reader)


@pytest.mark.parametrize(("text", "seconds"), [("12h", 43_200), ("2w", 1_209_600), ("1d", 86_400)])
def test_spans_of_time(text: str, seconds: int) -> None:
    assert read_expiry(text, 100.0) == 100.0 + seconds
    assert read_expiry("never", 100.0) is None


@pytest.mark.parametrize("text", ["", "0d", "d", "1", "-1d", "1.5d", "1m", "101y", "9999y"])
def test_other_spans_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="30d"):
        read_expiry(text, 0.0)


def test_logs_are_lines_of_json_without_queries(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    # A line is written after the answer is sent; once the server has ended, it is there.
    with caplog.at_level(logging.INFO, "service.requests"), Server(tmp_path) as server:
        secret = server.token("erin")
        server.client_of(secret).get("/jobs", params={"text": "token=xyz"})
    lines: list[dict[str, Any]] = [json.loads(JsonFormatter().format(r)) for r in caplog.records]
    assert lines[-1]["path"] == "/api/v1/jobs"
    assert (lines[-1]["status"], lines[-1]["method"]) == (200, "GET")
    assert not [line for line in lines if "xyz" in str(line) or secret in str(line)]


@pytest.mark.parametrize(
    ("variable", "value"), [("NAS_PORT", "x"), ("NAS_QUOTA_GIB", "-1"), ("NAS_DATABASE_URL", "")]
)
def test_settings_come_from_the_environment(variable: str, value: str) -> None:
    if value:
        with pytest.raises(UsageError, match=variable):
            read_settings({variable: value})
    settings = read_settings({"NAS_DATABASE_URL": "postgres://u:secret@db/nas"}, port=1)
    assert settings.url == "postgresql+psycopg://u:secret@db/nas"
    assert "secret" not in repr(settings)
