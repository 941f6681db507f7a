"""Who is asking: wrong tokens, proxies, and what an answer tells of a request."""

from __future__ import annotations

import logging
import secrets
from pathlib import Path
from typing import Any

import httpx
import pytest

from search_spaces.errors import UsageError
from service.api.bounds import network_of
from service.api.middleware import _hosts, _name
from service.api.problems import LONGEST_TEXT, clipped
from service.auth import PREFIX, Role, is_secret, new_token
from service.settings import Settings, read_settings
from tests.support import service_api_cases
from tests.support.service_cases import SMOKE, Server, problem

server, alice = service_api_cases.server, service_api_cases.alice


def guess(server: Server, **headers: str) -> int:
    secret = PREFIX + secrets.token_urlsafe(32)
    given = {"Authorization": f"Bearer {secret}", **headers}
    return httpx.get(server.url + "/api/v1/jobs", headers=given).status_code


# -- wrong tokens ---------------------------------------------------------------------------------


def test_guessing_locks_nobody_out(tmp_path: Path) -> None:
    with Server(tmp_path, failed_logins_per_minute=3) as server:
        good = server.client("alice")
        assert [guess(server) for _ in range(5)] == [401] * 3 + [429] * 2
        assert good.get("/jobs").status_code == 200
        link = httpx.get(server.url + "/", params={"token": server.token("bob")})
        assert link.status_code == 303
        problem(server.client_of(None).get("/jobs"), 401)  # no guess, and told as ever


def test_the_database_is_asked_about_secrets_only(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    def asked(digest: str) -> None:
        raise AssertionError("the database was asked")

    monkeypatch.setattr(server.store.tokens, "_good", asked)
    for text in ("guess", "nas_guess", PREFIX + "a" * 42, PREFIX + "a" * 44, PREFIX + "é" * 43):
        answer = server.client_of(None).get(
            "/jobs", headers={"Authorization": f"Bearer {text}".encode("latin-1")}
        )
        assert answer.status_code in (401, 429)
    assert not is_secret(PREFIX + "a" * 43 + "\n")
    assert is_secret(new_token("alice", Role.reader)[1])


# -- proxies --------------------------------------------------------------------------------------


def test_a_proxy_that_is_named_says_who_is_asking(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings: dict[str, Any] = {"failed_logins_per_minute": 2}
    proxies = ("127.0.0.1", "10.0.0.0/8")
    with (
        caplog.at_level(logging.INFO, "service.requests"),
        Server(tmp_path, trusted_proxies=proxies, **settings) as server,
    ):
        evil = {"X-Forwarded-For": "1.1.1.1, 203.0.113.5, 10.1.1.1"}
        other = {"X-Forwarded-For": "203.0.113.6"}
        assert [guess(server, **evil) for _ in range(3)] == [401, 401, 429]
        assert guess(server, **{"X-Forwarded-For": "9.9.9.9, 203.0.113.5"}) == 429
        assert guess(server, **other) == 401
    named = [vars(record)["client"] for record in caplog.records]
    assert named == ["203.0.113.5"] * 4 + ["203.0.113.6"]


@pytest.mark.parametrize("proxies", [(), ("10.0.0.0/8",)])
def test_others_only_say_so(
    tmp_path: Path, proxies: tuple[str, ...], caplog: pytest.LogCaptureFixture
) -> None:
    with (
        caplog.at_level(logging.INFO, "service.requests"),
        Server(tmp_path, failed_logins_per_minute=2, trusted_proxies=proxies) as server,
    ):
        found = [guess(server, **{"X-Forwarded-For": f"203.0.113.{n}"}) for n in range(3)]
    assert found == [401, 401, 429]
    assert {vars(record)["client"] for record in caplog.records} == {"127.0.0.1"}


def test_proxies_are_read_from_the_environment() -> None:
    given = {"NAS_TRUSTED_PROXIES": "127.0.0.1, 10.0.0.0/8,2001:db8::/32"}
    settings = read_settings(given)
    assert [str(one) for one in settings.trusted_proxies] == [
        "127.0.0.1/32",
        "10.0.0.0/8",
        "2001:db8::/32",
    ]
    assert Settings.model_validate_json(settings.model_dump_json()) == settings


@pytest.mark.parametrize("value", ["proxy", "10.0.0.1/8", "127.0.0.1,", "*", "10.0.0.0/99"])
def test_what_is_no_proxy_is_refused_at_the_start(value: str) -> None:
    with pytest.raises(UsageError, match=r"NAS_TRUSTED_PROXIES is .*127\.0\.0\.1,10\.0\.0\.0/8"):
        read_settings({"NAS_TRUSTED_PROXIES": value})


def test_limits_count_ipv6_networks() -> None:
    assert network_of("2001:db8::1") == network_of("2001:db8::ffff:1") == "2001:db8::/64"
    assert network_of("2001:db8:0:1::1") != network_of("2001:db8::1")
    assert network_of("127.0.0.1") == "127.0.0.1"
    assert len(network_of("x" * 5000)) == 100


# -- hosts and origins ----------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]", "LOCALHOST", "nas.example"])
def test_this_machine_is_known_by_its_own_names(tmp_path: Path, host: str) -> None:
    with Server(tmp_path, allowed_hosts=("nas.example",)) as server:
        headers = {"Host": f"{host}:8321"}
        assert httpx.get(server.url + "/readyz", headers=headers).status_code == 200
        answer = httpx.get(server.url + "/readyz", headers={"Host": "evil.example"})
        assert "not known" in problem(answer, 421)


@pytest.mark.parametrize(
    ("setting", "host"),
    [
        ("NAS.Example", "nas.example"),
        ("nas.example", "NAS.example:443"),
        ("nas.example:8443", "nas.example"),
        ("2001:DB8::1", "[2001:db8::1]:443"),
        ("[2001:db8::1]:443", "[2001:DB8::1]"),
    ],
)
def test_hosts_are_named_as_in_a_browser(setting: str, host: str) -> None:
    allowed = _hosts(Settings(host="Other.example", allowed_hosts=(setting,)))
    assert allowed is not None and _name(host) in allowed and _name("other.example:1") in allowed
    assert not {"", "evil.example", "2001", "443"} & set(allowed)


@pytest.mark.parametrize("origin", ["http://[", "http://[::1", "null", "", "http://]["])
def test_an_origin_that_is_no_address_is_another_site(alice: httpx.Client, origin: str) -> None:
    problem(alice.post("/jobs", json=SMOKE, headers={"Origin": origin}), 403)


@pytest.mark.parametrize(
    ("path", "methods"),
    [
        ("/api/v1/jobs", "GET, HEAD, POST"),
        (f"/api/v1/jobs/{'0' * 20}", "GET, HEAD, PATCH, DELETE"),
        ("/new", "GET, HEAD, POST"),
        ("/healthz", "GET, HEAD"),
        ("/api/v1/spaces/check", "GET, HEAD, POST"),  # GET would be of a space with that name
    ],
)
def test_all_methods_of_a_path_are_allowed(
    alice: httpx.Client, server: Server, path: str, methods: str
) -> None:
    answer = alice.put(server.url + path, json={})
    problem(answer, 405)
    assert answer.headers["allow"] == methods


# -- what an answer repeats -----------------------------------------------------------------------

LONG = "x" * 90_000


@pytest.mark.parametrize(
    "given",
    [
        {LONG: 1},
        {f"{n}{LONG[:400]}": n for n in range(200)},
        {"space": LONG},
        {"space": "digits", "title": LONG},
        {"space": "digits", "pick": [LONG]},
        {"space": "digits", "seed": LONG},
        {"space": "digits", "restrict": {LONG: [1]}},
        {"space": "digits", "restrict": {"encoder.num_layers": [LONG]}},
        {"space": "digits", "restrict": {"encoder.num_layers": ["x" * 100] * 200}},
        {"space": "digits", "restrict": {"x" * 100: [1]}},
        {"space": "digits", "objectives": [LONG]},
        {"space": "digits", "limits": {LONG: 1}},
        {"space": "digits", "limits": {"params": 10**4000}},
        {"space": "digits", "settings": {LONG: 1}},
        {"space": "digits", "settings": {"supernet.epochs": LONG}},
        {"space": "digits", "settings": {"supernet.epochs": 10**4000}},
        {"space": "digits", "restrict": {"encoder.num_layers": [10**4000]}},
        {"space_toml": LONG},
        {"space_toml": f"{LONG} = 1"},
        {"space_toml": f'a = "{LONG}"'},
        {"space_toml": f'[space]\nname = "{LONG}"\ntask = "classification"'},
        {"space_toml": f'[space]\nname = "a"\ntask = "{LONG}"'},
        {"space_toml": f"x{LONG[:99]} = 1\n" + f"{LONG[:99]} = ["},
        {"space_toml": "a" + ".a" * 40_000 + " = 1"},
    ],
)
def test_answers_do_not_repeat_what_was_sent(alice: httpx.Client, given: dict[str, Any]) -> None:
    answer = alice.post("/jobs", json=given)
    assert answer.status_code == 422, answer.text[:500]
    said = answer.json()
    texts = [said["detail"], *(one["message"] for one in said["errors"])]
    assert len(said["errors"]) <= 20
    assert max(text.count("x") + text.count("0") for text in texts) < 250
    assert max(len(text) for text in texts) <= LONGEST_TEXT + 10


def test_what_is_too_long_loses_its_middle() -> None:
    assert clipped("short") == "short"
    text = clipped("begin" + "x" * 5000 + "end")
    assert text.startswith("begin") and text.endswith("end") and len(text) < 1600
