"""What the tests of the dashboard share: a server, a browser, and the rules of all pages."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest

from nas.run.folder import RunFolder
from nas.search.front import read_front
from tests.support.service_cases import Server

INLINE = re.compile(r"<script(?![^>]*(?:src=|application/json))|<[^>]*\son[a-z]+=")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("home")) as running:
        yield running


@pytest.fixture(scope="module")
def done(server: Server) -> str:
    """A search of alice's that has succeeded."""
    return server.finished(server.client("alice"), title="first <b>one</b>")


@pytest.fixture
def alice(server: Server) -> Iterator[httpx.Client]:
    """A browser in which alice has logged in."""
    with browser(server, server.token("alice")) as client:
        yield client


@contextmanager
def browser(server: Server, secret: str | None) -> Iterator[httpx.Client]:
    """A client that has logged in and names its origin, as browsers do when they send forms."""
    headers = {"Origin": server.url}
    with httpx.Client(base_url=server.url, headers=headers, timeout=30) as client:
        if secret is not None:
            assert client.get("/", params={"token": secret}).status_code == 303
        yield client


def said(answer: httpx.Response, status: int = 200) -> str:
    """The text of a page, which keeps to the rules of all pages."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"].startswith("text/html")
    scripts = re.search(r"script-src ([^;]*)", answer.headers["content-security-policy"])
    assert scripts and scripts[1] == "'self'"
    assert not INLINE.search(answer.text)
    return answer.text


def front_of(server: Server, job: str) -> list[str]:
    """The ids of the networks on a job's front."""
    return [entry.id for entry in read_front(RunFolder.open(server.settings.runs / job)).entries]
