"""Who sees the dashboard's pages, and what pages of other sites can do with a login."""

from __future__ import annotations

import html
import re
from pathlib import Path
from typing import Any

import httpx
import pytest

from service.api.dependencies import COOKIE
from service.auth import Role
from tests.support import dashboard_cases
from tests.support.dashboard_cases import browser, said
from tests.support.service_cases import SMOKE, Server

server, done, alice = dashboard_cases.server, dashboard_cases.done, dashboard_cases.alice


# -- logging in -----------------------------------------------------------------------------------

PAGES = [
    "/",
    "/new",
    "/checkpoints",
    "/webhook",
    "/docs",
    "/feed",
    "/compare",
    "/jobs/ID",
    "/jobs/ID/networks",
    "/jobs/ID/networks/000000000000",
    "/jobs/ID/curve.svg",
]


@pytest.mark.parametrize("path", PAGES)
def test_nobody_sees_a_page_without_logging_in(server: Server, done: str, path: str) -> None:
    address = path.replace("ID", done)
    with browser(server, None) as nobody:
        text = said(nobody.get(address, params={"text": "a&b"}), 401)
        assert "Log in" in text and "first" not in text
        hidden = re.search(r'name="target" value="([^"]*)"', text)
        assert hidden and html.unescape(hidden[1]) == f"{address}?text=a%26b"
        form = {"token": server.token("alice"), "target": html.unescape(hidden[1])}
        answer = nobody.post("/login", data=form)
        assert answer.headers["location"] == form["target"]


@pytest.mark.parametrize(
    ("target", "location"),
    [("//evil/x", "/x"), ("////evil", "/"), ("/\\evil", "/"), ("https://evil.example/a", "/a")],
)
def test_a_login_leads_to_no_other_site(server: Server, target: str, location: str) -> None:
    with browser(server, None) as client:
        answer = client.post("/login", data={"token": server.token(), "target": target})
    assert answer.headers["location"] == location


def test_the_link_logs_in(server: Server) -> None:
    secret = server.token("alice")
    answer = httpx.get(f"{server.url}/", params={"token": secret})
    assert (answer.status_code, answer.headers["location"]) == (303, "/")
    cookie = answer.headers["set-cookie"].lower()
    assert all(part in cookie for part in ("httponly", "samesite=strict", "path=/"))
    with browser(server, secret) as client:
        assert "alice (submitter)" in said(client.get("/"))


@pytest.mark.parametrize(
    ("proxy", "scheme", "kept"),
    [("127.0.0.1", "https", True), ("127.0.0.1", "http", False), ("10.0.0.1", "https", False)],
)
def test_behind_tls_the_cookie_is_kept_to_it(
    tmp_path: Path, proxy: str, scheme: str, kept: bool
) -> None:
    with Server(tmp_path, trusted_proxies=(proxy,)) as server:
        headers, params = {"X-Forwarded-Proto": scheme}, {"token": server.token("alice")}
        cookie = httpx.get(f"{server.url}/", params=params, headers=headers).headers["set-cookie"]
    assert ("secure" in cookie.lower()) is kept


def test_a_wrong_link_does_not(server: Server) -> None:
    answer = httpx.get(f"{server.url}/", params={"token": "nas_guess"})
    said(answer, 401)
    assert "set-cookie" not in answer.headers


def test_after_a_wrong_link_a_token_can_be_typed_in(server: Server) -> None:
    with browser(server, None) as client:
        text = said(client.get("/", params={"token": "nas_guess", "kind": "search"}), 401)
        hidden = re.search(r'name="target" value="([^"]*)"', text)
        assert hidden and html.unescape(hidden[1]) == "/?kind=search"
        answer = client.post("/login", data={"token": server.token(), "target": hidden[1]})
        said(client.get(answer.headers["location"]))


def test_the_address_of_a_login_leads_to_the_jobs(server: Server) -> None:
    answer = httpx.get(f"{server.url}/login")
    assert (answer.status_code, answer.headers["location"]) == (303, "/")


def test_a_link_on_another_site_does_not(server: Server) -> None:
    headers = {"Sec-Fetch-Site": "cross-site"}
    answer = httpx.get(f"{server.url}/", params={"token": server.token()}, headers=headers)
    assert "address bar" in said(answer, 403)
    assert "set-cookie" not in answer.headers


def test_a_token_can_be_typed_in(server: Server) -> None:
    with browser(server, None) as client:
        assert "not good" in said(client.post("/login", data={"token": "nas_guess"}), 401)
        assert client.post("/login", data={"token": server.token()}).status_code == 303
        said(client.get("/"))


def test_logging_out_forgets(alice: httpx.Client) -> None:
    assert alice.post("/logout").status_code == 303
    said(alice.get("/"), 401)


def test_a_revoked_token_ends_the_login(tmp_path: Path) -> None:
    with (
        Server(tmp_path) as server,
        browser(server, server.token("carol")) as client,
    ):
        said(client.get("/"))
        for token in server.store.tokens.list():
            server.store.tokens.revoke(token.id)
        said(client.get("/"), 401)


def test_without_authentication_there_is_no_login(tmp_path: Path) -> None:
    with Server(tmp_path, no_auth=True) as server, browser(server, None) as client:
        text = said(client.get("/"))
    assert "There are no jobs yet" in text and "Log out" not in text


# -- whose jobs -----------------------------------------------------------------------------------


def test_jobs_of_others_are_not_there(server: Server, done: str) -> None:
    with browser(server, server.token("bob")) as bob:
        assert done not in said(bob.get("/"))
        for path in ("", "/networks", "/curve.svg"):
            said(bob.get(f"/jobs/{done}{path}"), 404)
        said(bob.post(f"/jobs/{done}/delete"), 404)
        compared = said(bob.get("/compare", params={"job": done}))
        assert "not there, or not yours" in compared and "first" not in compared


def test_administrators_see_all(server: Server, done: str) -> None:
    with browser(server, server.token("root", Role.admin)) as root:
        assert done in said(root.get("/?text=first"))


def test_readers_are_shown_no_buttons(server: Server, done: str) -> None:
    with browser(server, server.token("alice", Role.reader)) as reader:
        text = said(reader.get(f"/jobs/{done}")) + said(reader.get("/"))
        assert "Retrain the ticked" not in text and "New search" not in text
        said(reader.post(f"/jobs/{done}/retrain", data={"id": "best"}), 403)
        said(reader.get("/new"), 403)


# -- other sites ----------------------------------------------------------------------------------


@pytest.mark.parametrize("headers", [{}, {"Sec-Fetch-Site": "cross-site"}, {"Origin": "null"}])
@pytest.mark.parametrize("path", ["/jobs/ID/delete", "/new", "/login", "/api/v1/jobs"])
def test_a_cookie_changes_nothing_for_other_pages(
    server: Server, done: str, path: str, headers: dict[str, str]
) -> None:
    cookies = {COOKIE: server.token("alice")}
    with httpx.Client(base_url=server.url, cookies=cookies, headers=headers) as client:
        body: dict[str, Any] = {"json": SMOKE} if "api" in path else {"data": {"space": "digits"}}
        assert client.post(path.replace("ID", done), **body).status_code == 403


@pytest.mark.parametrize("names", [{"Origin": "URL"}, {"Sec-Fetch-Site": "same-origin"}])
def test_a_cookie_opens_the_api_to_our_pages(server: Server, names: dict[str, str]) -> None:
    headers = {name: value.replace("URL", server.url) for name, value in names.items()}
    cookies = {COOKIE: server.token("alice")}
    with httpx.Client(base_url=server.url, cookies=cookies, headers=headers) as client:
        assert client.post("/api/v1/spaces/check", json={"space": "digits"}).status_code == 200
        assert client.get("/api/v1/jobs").status_code == 200


def test_browsers_name_our_pages_as_the_origin_of_forms(alice: httpx.Client) -> None:
    assert alice.get("/").headers["referrer-policy"] == "same-origin"
