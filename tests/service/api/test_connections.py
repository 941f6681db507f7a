"""What a connection may send before it is a request, and how many connections there may be."""

from __future__ import annotations

import json
import logging
import select
import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import httpx
import pytest

from service.api import connections
from service.api.bounds import network_of
from service.api.connections import HEAD_BYTES, HEADERS, Room, most_connections
from tests.support import service_api_cases
from tests.support.service_cases import SMOKE, Server

server, alice = service_api_cases.server, service_api_cases.alice

HEAD = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n"
HALF = b"POST /login HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100\r\n\r\nhalf"


def connect(server: Server) -> socket.socket:
    host, _, port = server.url.removeprefix("http://").partition(":")
    return socket.create_connection((host, int(port)), timeout=30)


def answer_to(server: Server, *parts: bytes) -> bytes:
    """Everything that comes back until the server closes the connection."""
    with closing(connect(server)) as mine:
        for part in parts:
            try:
                mine.sendall(part)
            except (BrokenPipeError, ConnectionResetError):
                break
        return rest(mine)


def rest(mine: socket.socket) -> bytes:
    found = b""
    try:
        while some := mine.recv(2**16):
            found += some
    except ConnectionResetError:
        pass  # what was sent on after the end
    return found


def status_of(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


# -- heads ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "head",
    [
        b"X-Long: " + b"a" * (HEAD_BYTES + 1) + b"\r\n\r\n",
        b"".join(b"X-%d: a\r\n" % n for n in range(HEADERS + 1)) + b"\r\n",
        b"".join(b"X-%d: %s\r\n" % (n, b"a" * 1000) for n in range(40)) + b"\r\n",
        b"a" * (HEAD_BYTES + 1) + b": a\r\n\r\n",
    ],
    ids=["one header", "many headers", "all headers", "a name"],
)
def test_a_head_beyond_its_bounds_is_refused(server: Server, head: bytes) -> None:
    answer = answer_to(server, HEAD + head)
    assert status_of(answer) == 431
    document = json.loads(answer.partition(b"\r\n\r\n")[2])
    assert (document["status"], document["title"]) == (431, "Request Header Fields Too Large")
    assert len(answer) < 1000


def test_a_head_that_never_ends_is_refused(server: Server) -> None:
    assert status_of(answer_to(server, HEAD + b"X: ", *[b"a" * 1000] * 200)) == 431
    assert status_of(answer_to(server, b"GET /" + b"a" * (HEAD_BYTES + 1))) == 431
    closed = answer_to(server, HEAD + b"\r\n", *[b"\r\n" * 500] * 200)
    assert status_of(closed) == 200 and closed.count(b"HTTP/1.1 ") == 1


def test_an_ordinary_head_is_not(server: Server) -> None:
    head = b"".join(b"X-%d: %s\r\n" % (n, b"a" * 200) for n in range(HEADERS - 2))
    assert status_of(answer_to(server, HEAD + head + b"Connection: close\r\n\r\n")) == 200


def test_headers_behind_a_body_count_too(server: Server) -> None:
    head = b"POST /login HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n"
    many = b"".join(b"X-%d: a\r\n" % n for n in range(HEADERS + 1))
    assert status_of(answer_to(server, head + b"1\r\na\r\n0\r\n" + many)) == 431
    assert status_of(answer_to(server, head + b"1\r\na\r\n0\r\nX: ", *[b"a" * 9000] * 99)) == 431


def test_requests_are_not_piled_up(server: Server) -> None:
    assert b" 429 " in answer_to(server, (HEAD + b"\r\n") * 5000)
    few = answer_to(server, (HEAD + b"\r\n") * 3 + HEAD + b"Connection: close\r\n\r\n")
    assert few.count(b'{"status":"ok"}') == 4


def test_the_parser_still_refuses_what_is_no_http(server: Server) -> None:
    assert status_of(answer_to(server, b"\x16\x03\x01 hello\r\n\r\n")) == 400


# -- time -----------------------------------------------------------------------------------------


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HEAD_S", "BODY_S", "ANSWER_S"):
        monkeypatch.setattr(connections, name, 0.1)


def told(caplog: pytest.LogCaptureFixture, reason: str) -> bool:
    """Whether the log says that this machine was cut off for that."""
    lines = [vars(one) for one in caplog.records if one.name == "service.api.connections"]
    found = [line for line in lines if any(reason in one for one in line["reasons"])]
    return bool(found) and found[0]["clients"] == ["127.0.0.1"]


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize("sent", [HEAD, HALF, HEAD + b"\r\n" + HEAD])
def test_half_a_request_is_closed_after_a_while(
    tmp_path: Path, sent: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    with Server(tmp_path) as server, caplog.at_level(logging.WARNING, "service.api.connections"):
        assert b" 408 " in answer_to(server, sent)
    assert told(caplog, "came in time")


@pytest.mark.usefixtures("hasty")
def test_who_says_nothing_is_told_nothing(server: Server) -> None:
    with closing(connect(server)) as mine:
        assert b" 408 " in rest(mine)  # it may be a request that was lost on its way
    with closing(connect(server)) as mine:
        mine.sendall(HEAD + b"\r\n")
        assert b" 408 " not in rest(mine)


@pytest.mark.usefixtures("hasty")
def test_who_takes_no_answer_is_closed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with Server(tmp_path) as server, caplog.at_level(logging.WARNING, "service.api.connections"):
        secret = server.token("alice")
        job = server.finished(server.client_of(secret))
        with (server.settings.runs / job / "large.bin").open("wb") as file:
            file.truncate(32 * 2**20)  # more than the buffers on the way hold
        with closing(connect(server)) as mine:
            path = f"/api/v1/jobs/{job}/artifacts/large.bin"
            head = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {secret}"
            mine.sendall(f"{head}\r\n\r\n".encode())
            while not told(caplog, "not taken"):
                httpx.get(server.url + "/healthz")
            assert len(rest(mine)) < 32 * 2**20
    assert told(caplog, "an answer was not taken in time")


# -- how many -------------------------------------------------------------------------------------


@pytest.fixture
def small(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Server]:
    """A service with room for eight connections."""
    monkeypatch.setattr(connections, "most_connections", lambda: 8)
    with Server(tmp_path_factory.mktemp("home")) as running:
        yield running


@pytest.mark.parametrize("sent", [b"", HEAD, HALF])
def test_half_open_requests_lock_nobody_out(
    small: Server, sent: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    with ExitStack() as stack, caplog.at_level(logging.WARNING, "service.api.connections"):
        for _ in range(50):
            stack.enter_context(closing(connect(small))).sendall(sent)
        for _ in range(3):
            with httpx.Client() as other:
                assert other.get(small.url + "/healthz").status_code == 200
    assert told(caplog, "too many connections")


def test_who_is_being_served_is_not_sent_away(small: Server) -> None:
    client = small.client("alice")
    job = client.post("/jobs", json=SMOKE).json()["id"]
    with client.stream("GET", f"/jobs/{job}/events") as stream, ExitStack() as stack:
        frames = stream.iter_text()
        assert "retry" in next(frames)
        for _ in range(50):
            stack.enter_context(closing(connect(small))).sendall(HEAD)
        assert small.client("alice").post(f"/jobs/{job}/cancel").status_code == 200
        assert "cancelled" in "".join(frames)


class Guest:
    """A connection that remembers why it was closed."""

    def __init__(self, address: str) -> None:
        self.address, self.name = address, network_of(address)
        self.loop: Any = None
        self.reason = ""

    def cut_off(self, reason: str) -> None:
        self.reason = reason
        house.serve(self)


house = Room(0)


def fill(most: int, of_one: int, addresses: list[str], *proxies: str) -> list[Guest]:
    global house
    house = Room(most, of_one, [ip_network(proxy) for proxy in proxies])
    guests = [Guest(address) for address in addresses]
    for guest in guests:
        house.enter(guest)
    return guests


def test_the_one_that_we_wait_for_longest_has_to_go() -> None:
    guests = fill(3, 3, ["1.0.0.1", "1.0.0.2", "1.0.0.3", "1.0.0.4", "1.0.0.5"])
    assert [bool(guest.reason) for guest in guests] == [True, True, False, False, False]


def test_one_address_gets_a_part_of_the_room() -> None:
    guests = fill(
        100, 2, ["1.0.0.9", *["1.0.0.1"] * 4, *["2001:db8::1", "2001:db8::2", "2001:db8::3"]]
    )
    assert [guest.name for guest in guests if guest.reason] == ["1.0.0.1"] * 2 + ["2001:db8::/64"]
    assert fill(4, 99, ["1.0.0.1"] * 3)[0].reason  # never more than half


def test_a_proxy_may_bring_as_many_as_there_is_room_for() -> None:
    proxied = fill(100, 2, ["10.1.2.3"] * 9 + ["2001:db8::1"] * 9, "10.0.0.0/8", "2001:db8::1/128")
    assert not [guest for guest in proxied if guest.reason]


def test_a_guest_that_is_served_stays_and_a_newcomer_goes() -> None:
    guests = fill(2, 2, ["1.0.0.1", "1.0.0.2"])
    for guest in guests:
        house.serve(guest)
    newcomer = Guest("1.0.0.3")
    house.enter(newcomer)
    assert newcomer.reason and not guests[0].reason
    house.leave(newcomer)
    house.wait_for(guests[0])
    house.enter(other := Guest("1.0.0.4"))
    assert guests[0].reason and not other.reason


@pytest.mark.parametrize(("files", "most"), [(1024, 448), (64, 8), (10**6, 2000), (-1, 2000)])
def test_room_is_a_matter_of_files(monkeypatch: pytest.MonkeyPatch, files: int, most: int) -> None:
    monkeypatch.setattr(connections.resource, "getrlimit", lambda _: (files, files))
    assert most_connections() == most


# -- bodies ---------------------------------------------------------------------------------------


def test_bodies_of_one_address_are_held_to_their_sum(tmp_path: Path) -> None:
    with Server(tmp_path, max_body_bytes=9 * 2**20) as server, ExitStack() as stack:
        size = 8 * 2**20
        head = b"POST /login HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: %d\r\n\r\n" % (size + 1)
        held = [stack.enter_context(closing(connect(server))) for _ in range(3)]
        for mine in held:
            mine.sendall(head + b"a" * size)
        (first,) = select.select(held, [], [], 30)[0]
        assert status_of(first.recv(2**16)) == 429
        assert httpx.get(server.url + "/healthz").status_code == 200
