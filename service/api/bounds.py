"""Bounds on what clients send: requests a minute, open streams, and bodies.

Bodies are taken in within bounds of size, number and depth before any is parsed.
"""

from __future__ import annotations

import ipaddress
import re
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from starlette.datastructures import Headers
from starlette.types import Message, Receive

from service.api.problems import ProblemError

MOST_KEYS = 10_000
IPV6_NETWORK = 64  # bits: what one customer gets, and can choose addresses from as often as asked
HELD, HELD_OF_ONE = 128 * 2**20, 16 * 2**20  # bytes of all bodies at once, and of one address
MOST_VALUES, MOST_NAMES = 20_000, 1_000  # of JSON
MAX_DEPTH = 20
MOST_DIGITS = 4_300  # of a number; Python reads none with more
AGAIN_S = 2

_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_LONG = re.compile(rb"(?<!\d)\d{%d}" % (MOST_DIGITS + 1))
_BRACKET = re.compile(rb"[\[\]{}]")
# The routes that take files as they come, within bounds of their own; see `service.uploads`.
_BRINGS_FILE = re.compile(r"/api/v1/(uploads/[0-9a-f]{20}/files/.+|data/[0-9a-f]{20}/content)")
_NO_JSON = ("text/plain", "application/x-www-form-urlencoded")


def brings_file(scope: Mapping[str, Any]) -> bool:
    """Whether a request's body is a file, which is written as it comes and not held."""
    return scope["method"] == "PUT" and _BRINGS_FILE.fullmatch(scope["path"]) is not None


def network_of(address: str) -> str:
    """What limits for an address count by: itself, or for IPv6 the network it is in."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return address[:100]  # a proxy knows its clients by whatever name
    if found.version == 4:
        return address
    return str(ipaddress.ip_network((int(found), IPV6_NETWORK), strict=False))


class RateLimit:
    """A bucket for each key, filled evenly, that holds a minute's worth of requests.

    Buckets are of this process: of several services a client gets as many times more.

    Args:
        per_minute: requests.
        clock: seconds that only grow.
    """

    def __init__(self, per_minute: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._most = float(per_minute)
        self._clock = clock
        self._lock = threading.Lock()
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def wait_s(self, key: str, take: float = 1.0) -> float:
        """Take from the key's bucket.

        Args:
            key: whose bucket.
            take: how much; 0 only looks.

        Returns:
            0 when there was enough, otherwise the seconds until there will be.
        """
        with self._lock:
            now = self._clock()
            level, since = self._buckets.pop(key, (self._most, now))
            level = min(self._most, level + (now - since) * self._most / 60)
            enough = level >= max(take, 1.0)
            self._buckets[key] = (level - take if enough else level, now)
            if len(self._buckets) > MOST_KEYS:
                self._buckets.popitem(last=False)
            return 0.0 if enough else (1.0 - level) * 60 / self._most


class Streams:
    """Counts the open event streams of each token.

    Attributes:
        closed: whether all of them end, since the service does.
    """

    def __init__(self, most: int) -> None:
        self.closed = False
        self._most = most
        self._lock = threading.Lock()
        self._open: dict[str, int] = {}

    def enter(self, key: str) -> bool:
        """Open one more, unless there are too many."""
        with self._lock:
            if self._open.get(key, 0) >= self._most:
                return False
            self._open[key] = self._open.get(key, 0) + 1
            return True

    def leave(self, key: str) -> None:
        """Close one."""
        with self._lock:
            self._open[key] -= 1
            if not self._open[key]:
                del self._open[key]

    @property
    def total(self) -> int:
        """How many are open."""
        with self._lock:
            return sum(self._open.values())


class GoneError(Exception):
    """The client has left before its request was whole."""


class Bodies:
    """Bodies that requests have brought along, as long as these are worked on.

    Args:
        most: bytes of one body.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._all = max(HELD, 8 * most)
        self._of_one = max(HELD_OF_ONE, 2 * most)
        self._held: Counter[str] = Counter()
        self._total = 0

    @contextmanager
    def holding(self, client: str) -> Iterator[Body]:
        """Room for the body of one request."""
        body = Body(self, client)
        try:
            yield body
        finally:
            self._total -= body.size
            self._held[client] -= body.size
            if not self._held[client]:
                del self._held[client]

    def add(self, client: str, size: int, more: int) -> None:
        """Count more bytes of a body.

        Args:
            client: its address.
            size: of the body so far.
            more: bytes that come to it.

        Raises:
            ProblemError: 413, 429 or 503 when there is no room for them.
        """
        again = {"Retry-After": str(AGAIN_S)}
        if size + more > self._most:
            raise ProblemError(413, f"the body is larger than {self._most} bytes")
        if self._held[client] + more > self._of_one:
            detail = "the requests from this address bring too much at once; try again in a moment"
            raise ProblemError(429, detail, headers=again)
        if self._total + more > self._all:
            detail = "all requests together bring too much at once; try again in a moment"
            raise ProblemError(503, detail, headers=again)
        self._held[client] += more
        self._total += more


class Body:
    """The body of one request."""

    def __init__(self, bodies: Bodies, client: str) -> None:
        self._bodies = bodies
        self._client = client
        self.size = 0

    async def read(self, headers: Headers, receive: Receive) -> Receive:
        """Read all of it, whatever length it was said to have.

        Returns:
            What gives it again, as one message.

        Raises:
            ProblemError: when it is larger than it may be, or, where it could be taken for JSON,
                deeper, of more values or with longer numbers.
            GoneError: when the client has left.
        """
        parts, more = [], True
        while more:
            message = await receive()
            if message["type"] != "http.request":
                raise GoneError
            part = message.get("body", b"")
            self._bodies.add(self._client, self.size, len(part))
            self.size += len(part)
            parts.append(part)
            more = message.get("more_body", False)
        whole = b"".join(parts)
        if headers.get("content-type", "").partition(";")[0].strip().lower() not in _NO_JSON:
            check_json(whole)
        return _again(whole, receive)


def check_json(body: bytes) -> None:
    """Refuse JSON that is deeper, or of more values or longer numbers, than any request.

    Raises:
        ProblemError: 400 or 422.
    """
    if b"\0" in body:  # other encodings than UTF-8, in which nothing below would be found
        raise ProblemError(400, "the body is not JSON in UTF-8")
    plain = _STRING.sub(b"", body)
    opened = plain.count(b"[") + plain.count(b"{")
    if opened + plain.count(b",") > MOST_VALUES:
        raise ProblemError(422, f"the body has more than {MOST_VALUES} values")
    if plain.count(b":") > MOST_NAMES:
        raise ProblemError(422, f"the body has more than {MOST_NAMES} keys")
    if _LONG.search(plain) is not None:
        raise ProblemError(422, f"the body has a number of more than {MOST_DIGITS} digits")
    depth = 0
    for bracket in _BRACKET.finditer(plain) if opened > MAX_DEPTH else ():
        depth += 1 if bracket[0] in b"[{" else -1
        if depth > MAX_DEPTH:
            raise ProblemError(422, f"the body is nested more than {MAX_DEPTH} deep")


def _again(body: bytes, receive: Receive) -> Receive:
    given = False

    async def receive_again() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return receive_again
