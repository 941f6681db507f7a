"""Webhooks: signed, to public addresses only, within bounds, and told to their owners."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import queue
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest

from search_spaces.errors import UsageError
from service import webhooks
from service.auth import Role
from service.jobs.outbox import BACKOFF_S, Sending
from service.webhooks import Answer, check_url, is_public, send, signature
from tests.support.dashboard_cases import browser, said
from tests.support.service_cases import SMOKE, Server, problem

SECRET = "whsec_" + base64.b64encode(b"k" * 32).decode()
Received = tuple[dict[str, str], bytes]


@contextmanager
def receiver(status: int = 200, **headers: str) -> Iterator[tuple[str, queue.Queue[Received]]]:
    """A server that keeps what it gets."""
    got: queue.Queue[Received] = queue.Queue()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            got.put(({name.lower(): value for name, value in self.headers.items()}, body))
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(b"thank\x1b you" + b"!" * 10_000)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/hook?x=1", got
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def sent(url: str, *, private: bool = True) -> Answer:
    sending = Sending("m1", "alice", 1, url, SECRET, '{"a": 1}', 1)

    async def once() -> Answer:
        return await send(sending, httpx.create_ssl_context(), private=private)

    return anyio.run(once)


def verified(headers: dict[str, str], body: bytes, secret: str) -> dict[str, Any]:
    """A receiver's check, as the specification describes it."""
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    key = base64.b64decode(secret.removeprefix("whsec_"))
    expected = base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
    assert headers["webhook-signature"] == f"v1,{expected}"
    return dict(json.loads(body))


def test_a_signature_is_that_of_the_published_example() -> None:
    made = signature(
        "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
        "msg_p5jXN8AQM9LWM0D4loKWxJek",
        1614265330,
        b'{"test": 2432232314}',
    )
    assert made == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


@pytest.mark.parametrize(
    ("address", "public"),
    [
        *((one, True) for one in ("8.8.8.8", "2606:4700::1111", "2002:808:808::1")),
        *((one, False) for one in ("127.0.0.1", "0.0.0.0", "10.1.2.3", "169.254.169.254")),
        *((one, False) for one in ("100.64.0.1", "192.168.0.1", "224.0.0.1", "255.255.255.255")),
        *((one, False) for one in ("::1", "::", "fe80::1%eth0", "fc00::1", "ff02::1")),
        *((one, False) for one in ("::ffff:127.0.0.1", "::127.0.0.1", "64:ff9b::7f00:1")),
        *((one, False) for one in ("2002:7f00:1::1", "2001:0:1::1")),
    ],
)
def test_addresses_of_the_internet_are_told_from_others(address: str, public: bool) -> None:
    assert is_public(address) is public


@pytest.mark.parametrize(
    "url",
    [
        *("", "example.org/x", "ftp://example.org", "https://", "http://[::1"),
        *("https://user:secret@example.org/", "https://example.org/#x", "http://127.0.0.1/"),
        *("http://[::1]/", "http://169.254.169.254/latest"),
        *("https://example.org:70000/h", "https://example.org:0/h"),
    ],
)
def test_other_addresses_are_refused_at_once(url: str) -> None:
    with pytest.raises(UsageError, match="webhook"):
        check_url(url, private=False)


def test_a_message_is_signed_and_its_answer_is_shown_in_part() -> None:
    with receiver() as (url, got):
        answer = sent(url)
        headers, body = got.get(timeout=30)
    assert verified(headers, body, SECRET) == {"a": 1}
    assert headers["host"] == url.split("/")[2] and headers["content-type"] == "application/json"
    assert answer.good and answer.text.startswith("thank  you!!") and len(answer.text) == 200


def test_a_name_is_resolved_once_and_the_connection_goes_to_what_was_checked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = []

    async def lookup(name: str, port: int, **_: object) -> list[Any]:
        asked.append(name)
        address = "127.0.0.1" if len(asked) == 1 else "10.255.255.1"
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port))]

    monkeypatch.setattr(anyio, "getaddrinfo", lookup)
    with receiver() as (url, got):
        port = url.split(":")[2].split("/")[0]
        assert sent(f"http://hooks.example:{port}/x").good
        assert got.get(timeout=30)[0]["host"] == f"hooks.example:{port}"
        assert asked == ["hooks.example"]
        asked.clear()
        refused = sent(f"http://hooks.example:{port}/x", private=False)
        assert got.empty()
    assert not refused.good and "leads to 127.0.0.1" in refused.text
    assert "NAS_WEBHOOK_PRIVATE" in refused.text


FIRST, SECOND, THIRD = "192.0.2.1", "192.0.2.2", "192.0.2.3"


@pytest.mark.parametrize(
    ("errors", "tried", "words"),
    [
        ({}, [FIRST], "thanks"),
        ({FIRST: httpx.ConnectTimeout}, [FIRST, SECOND], "thanks"),
        (
            {FIRST: httpx.ConnectTimeout, SECOND: httpx.ConnectError},
            [FIRST, SECOND, THIRD],
            "thanks",
        ),
        (dict.fromkeys((FIRST, SECOND, THIRD), httpx.ConnectTimeout), [FIRST, SECOND, THIRD], None),
        # What may have arrived is not sent to another address.
        ({FIRST: httpx.ReadTimeout}, [FIRST], None),
    ],
)
def test_other_addresses_of_a_name_stand_in_for_one_that_swallows_everything(
    monkeypatch: pytest.MonkeyPatch,
    errors: dict[str, type[httpx.TransportError]],
    tried: list[str],
    words: str | None,
) -> None:
    waits: dict[str, float | None] = {}

    async def lookup(_: str, port: int, **__: object) -> list[Any]:
        kind = socket.AF_INET, socket.SOCK_STREAM, 6, ""
        return [(*kind, (address, port)) for address in (FIRST, SECOND, THIRD)]

    async def words_of_thanks() -> AsyncIterator[bytes]:
        yield b"thanks"

    def answer(request: httpx.Request) -> httpx.Response:
        waits[request.url.host] = request.extensions["timeout"]["connect"]
        if error := errors.get(request.url.host):
            raise error("there is nothing")
        return httpx.Response(200, content=words_of_thanks())

    client = partial(httpx.AsyncClient, transport=httpx.MockTransport(answer))
    monkeypatch.setattr(anyio, "getaddrinfo", lookup)
    monkeypatch.setattr(httpx, "AsyncClient", client)
    found = sent("http://hooks.example/x")
    assert list(waits) == tried
    # The last one has all the time that there is; the others leave some to those behind them.
    assert waits == {one: None if one == THIRD else webhooks.CONNECT_S for one in tried}
    assert found.good is (words is not None)
    assert found.text == words or (words is None and "nothing could be sent" in found.text)


def test_other_answers_are_failures() -> None:
    with receiver(302, Location="http://127.0.0.1:1/") as (url, got):
        answer = sent(url)
        got.get(timeout=30)
    assert (answer.good, answer.status) == (False, 302) and "not followed" in answer.text
    with receiver(500) as (url, _):
        assert sent(url).status == 500
    assert sent(url).status is None  # nobody listens any more
    assert "nothing could be sent" in sent("http://name.invalid./").text


def drip(connection: socket.socket) -> None:
    """Send a header without end, byte by byte, until the other side leaves."""
    connection.settimeout(0.05)
    connection.sendall(b"HTTP/1.1 200 OK\r\nX: ")
    for _ in range(10_000):
        try:
            connection.sendall(b"x")
            if not connection.recv(1000):
                return
        except TimeoutError:
            continue
        except OSError:
            return


def flood(connection: socket.socket) -> None:
    """Send an answer without end, as fast as it goes."""
    try:
        connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            connection.sendall(b"x" * 65536)
    except OSError:
        pass


def leave(connection: socket.socket) -> None:
    """Leave before the end of an answer."""
    connection.recv(10_000)
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n" + b"x" * 99)


@pytest.mark.parametrize(("behave", "good"), [(drip, False), (flood, True), (leave, True)])
def test_answers_without_end_take_bounded_time_and_memory(
    monkeypatch: pytest.MonkeyPatch, behave: Callable[[socket.socket], None], good: bool
) -> None:
    monkeypatch.setattr(webhooks, "TOTAL_S", 10.0 if good else 0.3)
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            connection, _ = listening.accept()
            with connection:
                behave(connection)

        thread = threading.Thread(target=serve)
        thread.start()
        answer = sent(f"http://127.0.0.1:{listening.getsockname()[1]}/")
        thread.join()
    assert answer.good is good
    assert {*answer.text} == {"x"} if good else "no whole answer" in answer.text


def test_a_status_counts_when_the_words_behind_it_take_too_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scopes: list[anyio.CancelScope] = []
    limited = anyio.fail_after

    @contextmanager
    def without_end(_: float) -> Iterator[anyio.CancelScope]:
        with limited(None) as scope:
            scopes.append(scope)
            yield scope

    async def trickle() -> AsyncIterator[bytes]:
        yield b"thanks"
        scopes[0].deadline = 0.0  # which is over
        await anyio.sleep_forever()

    def answer(_: httpx.Request) -> httpx.Response:
        return httpx.Response(202, content=trickle())

    client = partial(httpx.AsyncClient, transport=httpx.MockTransport(answer))
    monkeypatch.setattr(anyio, "fail_after", without_end)
    monkeypatch.setattr(httpx, "AsyncClient", client)
    assert sent("http://127.0.0.1/") == Answer(202, "thanks")


# -- the service ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(webhooks, "LOOK_S", 0.02)
        with Server(tmp_path_factory.mktemp("home"), webhook_private=True) as running:
            yield running


def test_an_owner_is_told_when_a_job_ends_and_sees_the_answers(server: Server) -> None:
    alice, other = server.client("alice"), server.client("other")
    problem(alice.get("/webhook"), 404)
    with receiver(201) as (url, got):
        made = alice.put("/webhook", json={"url": url}).json()
        kinds = [verified(*got.get(timeout=30), made["secret"])["type"]]
        job = server.finished(alice, title="ends")
        told = verified(*got.get(timeout=30), made["secret"])
        server.finished(other)
    assert [*kinds, told["type"]] == ["webhook.set", "job.succeeded"] and got.empty()
    assert (told["data"]["id"], told["data"]["title"]) == (job, "ends")
    while (shown := alice.get("/webhook").json())["deliveries"][0]["outcome"] == "waiting":
        pass
    assert [one["job"] for one in shown["deliveries"]] == [job, None]
    assert [one["status"] for one in shown["deliveries"]] == [201, 201]
    assert "secret" not in json.dumps(shown) and shown["url"] == url
    problem(other.get("/webhook"), 404)
    with browser(server, server.token("alice")) as page:
        text = said(page.get("/webhook"))
        assert job in text and "201 thank" in text and made["secret"] not in text
        assert "Times are UTC." in text
        assert page.post("/webhook", data={"remove": "yes"}).status_code == 303
    problem(alice.delete("/webhook"), 404)


def test_a_webhook_is_named_on_its_page(server: Server) -> None:
    with browser(server, server.token("paula")) as page:
        assert "give an address such as" in said(page.post("/webhook", data={"url": "x"}), 422)
        text = said(page.post("/webhook", data={"url": "http://127.0.0.1:1/<b>"}))
        assert "whsec_" in text and "<b>" not in text
        assert "whsec_" not in said(page.get("/webhook"))


def test_how_often_a_message_is_sent_again_is_told_as_it_is(server: Server) -> None:
    assert (len(BACKOFF_S), sum(BACKOFF_S) < 86_400) == (7, True)
    described = server.client("alice").get("/openapi.json").json()["paths"]["/api/v1/webhook"]
    told = " ".join(described["put"]["description"].split())
    with browser(server, server.token("alice")) as page:
        for text in (told, said(page.get("/webhook"))):
            assert "sent again, up to seven times within a day." in text


def test_who_only_reads_sets_nothing(server: Server) -> None:
    reader = server.client("rita", Role.reader)
    problem(reader.put("/webhook", json={"url": "https://example.org/"}), 403)
    problem(reader.delete("/webhook"), 403)
    problem(reader.get("/webhook"), 404)
    problem(server.client_of(None).get("/webhook"), 401)
    problem(server.client("alice").put("/webhook", json={"url": "http://a\n/"}), 422, "/url")


def test_private_addresses_need_the_administrator(tmp_path: Path) -> None:
    with Server(tmp_path) as server:
        answer = server.client("alice").put("/webhook", json={"url": "http://127.0.0.1/"})
        assert "NAS_WEBHOOK_PRIVATE=1" in problem(answer, 422)
        assert server.client("alice").post("/jobs", json=SMOKE).status_code == 201
