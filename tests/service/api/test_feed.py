"""The Atom feed: whose jobs it tells of, and who can read it."""

from __future__ import annotations

from xml.etree import ElementTree

import httpx
import pytest

from service.api.feed import atom
from service.api.middleware import FEED
from service.auth import Role
from tests.support import service_api_cases
from tests.support.dashboard_cases import browser
from tests.support.service_cases import Server, problem, submission

server, alice, done = service_api_cases.server, service_api_cases.alice, service_api_cases.done

NAMES = {"a": "http://www.w3.org/2005/Atom"}


def entries(answer: httpx.Response) -> dict[str, ElementTree.Element]:
    """The entries of a feed by the ids of their jobs."""
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("application/atom+xml")
    found = ElementTree.fromstring(answer.content).findall("a:entry", NAMES)
    return {str(one.findtext("a:id", "", NAMES)).rpartition(":")[2]: one for one in found}


def test_a_feed_is_read_by_its_address_alone(
    server: Server, alice: httpx.Client, done: str
) -> None:
    other = server.client("bob").post("/jobs", json={"space": "digits", "preset": "smoke"}).json()
    address = alice.get("/feed").json()["url"]
    assert address.startswith(f"{server.url}/api/v1/feeds/")
    answer = httpx.get(address)
    found = entries(answer)
    assert done in found and other["id"] not in found
    entry = found[done]
    assert entry.findtext("a:title", "", NAMES) == "the done one: succeeded"
    (link,) = entry.findall("a:link", NAMES)
    assert link.get("href") == f"{server.url}/jobs/{done}"
    assert all(
        entry.findtext(f"a:{name}", "", NAMES) for name in ("updated", "published", "summary")
    )
    tag = {"If-None-Match": answer.headers["etag"]}
    assert httpx.get(address, headers=tag).status_code == 304
    assert other["id"] in entries(
        httpx.get(server.client("r", Role.admin).get("/feed").json()["url"])
    )


def test_a_feed_says_whose_jobs_it_tells_of(server: Server, alice: httpx.Client) -> None:
    titles = [
        ElementTree.fromstring(httpx.get(one.get("/feed").json()["url"]).content).findtext(
            "a:title", "", NAMES
        )
        for one in (alice, server.client("r", Role.admin))
    ]
    assert titles == ["Architecture searches of alice", "Architecture searches of everybody"]


def test_an_address_opens_nothing_else_and_ends_with_its_token(server: Server) -> None:
    secret = server.token("carl", Role.reader)
    client = server.client_of(secret)
    address = client.get("/feed").json()["url"]
    identity, key = address.rsplit("/", 2)[1:]
    for path in (
        f"{identity}/{key[:-1]}{'1' if key[-1] == '0' else '0'}",
        f"{identity}/x",
        f"00000000/{key}",
        f"{identity}/%C3%A9",
    ):
        problem(httpx.get(f"{server.url}/api/v1/feeds/{path}"), 404)
    problem(server.client_of(None).get("/feed"), 401)
    problem(server.client_of(key).get("/jobs"), 401)
    with browser(server, secret) as page:
        assert page.get("/feed").headers["location"] == address
    assert secret not in address and entries(httpx.get(address)) == {}
    server.store.tokens.revoke(identity)
    problem(httpx.get(address), 404)


def test_the_key_in_an_address_is_not_logged() -> None:
    shown = FEED.sub(r"\1…", "/api/v1/feeds/1a2b/key-of-alice")
    assert shown == "/api/v1/feeds/1a2b/…" and FEED.sub(r"\1…", "/jobs/feeds") == "/jobs/feeds"


@pytest.mark.parametrize("text", ["<b>&", "a\x1b\x00b", "\u202e\ufffe", "😀"])
def test_any_text_makes_a_feed_that_can_be_read(server: Server, text: str) -> None:
    job, _ = server.store.jobs.submit(submission("dora", title=text.replace("\0", ""), tags=("t",)))
    feed = ElementTree.fromstring(atom("dora", "dora", [job], "http://x", "http://x/feed"))
    title = feed.findtext("a:entry/a:title", "", NAMES)
    assert title.endswith(": queued") and title[0] in text
    assert ElementTree.fromstring(
        atom("dora", "dora", [], "http://x", "http://x/feed")
    ).tag.endswith("feed")
