"""What the tests of the API share: a server, a client and a search that has succeeded."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from tests.support.service_cases import Server


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
