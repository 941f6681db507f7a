"""Bounds on what a connection may send before it is a request, and on how many there may be.

uvicorn's protocol reads heads of any size for any time. This one closes connections whose head or
body is too large, too long in coming or never comes, and those that do not take their answer.
"""

from __future__ import annotations

import asyncio
import logging
import resource
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from ipaddress import IPv4Network, IPv6Network, ip_address
from typing import Any, Protocol

from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

from service.api.bounds import brings_file, network_of
from service.api.problems import problem_response
from service.settings import Settings

HEAD_BYTES = 32_768
HEADERS = 100
HEAD_S = 10.0  # from the first byte of a head, or the connection, to the head's end
BODY_S = 30.0  # from a head's end to its body's, for each `BODY_BYTES` that a body may have, or has
BODY_BYTES = 1_000_000
ANSWER_S = 60.0  # without taking anything of an answer
PIPELINED = 16  # requests that are sent without waiting for answers
FILES_FOR_OTHERS = 128  # of the database, of run folders, of processes
MOST, MOST_OF_ONE = 2000, 512

TELL_S = 1.0  # between two lines about clients that were cut off
SHOWN = 5  # of their addresses

log = logging.getLogger("service.api.connections")


class TooMuchError(Exception):
    """A head goes beyond its bounds."""


class Connection(HttpToolsProtocol):
    """One connection, whose client has to send whole requests within bounds and in time.

    Args:
        room: of all connections.
        most_bytes: of a body.
        values: what uvicorn gives.
    """

    def __init__(self, room: Room, most_bytes: int, **values: Any) -> None:
        super().__init__(**values)
        self.address = self.name = "?"
        self._room = room
        self._patience = max(1.0, most_bytes / BODY_BYTES)
        self._served: RequestResponseCycle | None = None  # while others may be piled up behind it
        self._deadline: asyncio.TimerHandle | None = None
        self._stuck: asyncio.TimerHandle | None = None
        self._unread = self._head = self._count = 0  # bytes not used yet; of this head; headers
        self._begun = False  # whether some of a head has come
        self._brings_file = False  # whether its body may be of any size
        self._since = 0  # bytes of that which have come since its deadline was set
        self._problem: tuple[int, str] | None = None

    # -- opened and closed --------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Count it, and begin to wait for a request."""
        super().connection_made(transport)
        if self.client is not None:
            self.address = self.client[0]
            self.name = network_of(self.address)
        self._within(HEAD_S, 408, "no whole request head came in time")
        self._room.enter(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget it."""
        super().connection_lost(exc)
        self._forget_answer()
        self._in_time()
        self.resume_writing()
        self._room.leave(self)

    def cut_off(self, reason: str, status: int = 503) -> None:
        """Close the connection; a client that expects an answer is told why."""
        self._room.note(self, reason)
        self._room.serve(self)
        self._in_time()
        served = None if self._is_idle() else self._served
        self._forget_answer()
        if served is not None and served.response_started:
            self.transport.abort()  # what is half an answer must not look like a whole one
            return
        if self._begun or self.cycle is None or served is not None:
            self._answer(status, reason)
        self.transport.close()

    def _forget_answer(self) -> None:
        """What is still being answered goes nowhere any more."""
        if self._served is not None and not self._served.response_complete:
            self._served.disconnected = True
            self._served.message_event.set()

    def _answer(self, status: int, reason: str) -> None:
        body = bytes(problem_response(status, f"{reason}; the connection is closed").body)
        head = (
            b"content-type: application/problem+json\r\nretry-after: 2\r\nconnection: close\r\n"
            b"content-length: %d\r\n\r\n" % len(body)
        )
        self.transport.write(STATUS_LINE[status] + head + body)

    # -- what comes in ------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """Parse what has come, unless too much of it makes no request."""
        if self.transport.is_closing():
            return
        if self._deadline is None and self._is_idle():
            self._within(HEAD_S, 408, "no whole request head came in time")
        self._unread += len(data)
        super().data_received(data)
        if self._unread > HEAD_BYTES and not self.transport.is_closing():
            self.cut_off("a request head is too large", 431)

    def _is_idle(self) -> bool:
        return self.cycle is None or (self.cycle.response_complete and not self.pipeline)

    def send_400_response(self, msg: str) -> None:
        """Answer what the parser, or one of the methods below, has not let through."""
        if self._problem is None:
            self._room.note(self, "no HTTP")
            super().send_400_response(msg)
        else:
            self.cut_off(self._problem[1], self._problem[0])

    def on_message_begin(self) -> None:
        """A request begins."""
        super().on_message_begin()
        if self._deadline is None:
            self._within(HEAD_S, 408, "no whole request head came in time")
        self._head = self._count = 0
        self._begun = True
        if len(self.pipeline) >= PIPELINED:
            self._refuse(429, "too many requests were sent without waiting for answers")

    def on_url(self, url: bytes) -> None:
        """Take in some of its address."""
        super().on_url(url)
        self._count_head(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take in a header, before the body or behind it."""
        super().on_header(name, value)
        self._count += 1
        if self._count > HEADERS:
            self._refuse(431, f"a request has more than {HEADERS} headers")
        self._count_head(len(name) + len(value))

    def _count_head(self, size: int) -> None:
        self._head += size
        if self._head > HEAD_BYTES:
            self._refuse(431, "a request head is too large")

    def _refuse(self, status: int, reason: str) -> None:
        self._problem = status, reason
        raise TooMuchError(reason)  # the parser stops, and `send_400_response` is called

    def on_headers_complete(self) -> None:
        """Its head is whole, and it is served."""
        self._unread, self._begun = 0, False
        self._within(BODY_S * self._patience, 408, "no whole request body came in time")
        super().on_headers_complete()
        self._brings_file, self._since = brings_file(dict(self.scope)), 0

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._served = cycle
        super()._start_asgi_task(cycle, app)

    def on_body(self, body: bytes) -> None:
        """Take in some of its body."""
        self._unread = 0
        super().on_body(body)
        self._since += len(body)
        if self._brings_file and self._since >= BODY_BYTES and not self.cycle.response_complete:
            self._since = 0
            self._within(BODY_S, 408, "a file came too slowly")

    def on_message_complete(self) -> None:
        """It is whole: the client has done its part."""
        self._unread = 0
        self._in_time()
        super().on_message_complete()
        if self._is_idle():  # it was refused before it was whole
            self._within(HEAD_S, 408, "no whole request head came in time")
        else:
            self._room.serve(self)

    # -- what goes out ------------------------------------------------------------------------

    def on_response_complete(self) -> None:
        """It is answered."""
        super().on_response_complete()
        if not self.transport.is_closing() and self._is_idle():
            self._room.wait_for(self)

    def pause_writing(self) -> None:
        """The client does not take its answer."""
        super().pause_writing()
        self._stuck = self.loop.call_later(ANSWER_S, self._give_up)

    def resume_writing(self) -> None:
        """The client takes its answer."""
        super().resume_writing()
        if self._stuck is not None:
            self._stuck.cancel()
            self._stuck = None

    def _give_up(self) -> None:
        self._room.note(self, "an answer was not taken in time")
        self._forget_answer()
        self.transport.abort()

    # -- time ---------------------------------------------------------------------------------

    def _within(self, seconds: float, status: int, reason: str) -> None:
        self._in_time()
        self._deadline = self.loop.call_later(seconds, self.cut_off, reason, status)

    def _in_time(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


class Guest(Protocol):
    """A connection.

    Attributes:
        address: of its client.
        name: what limits for that address count by.
        loop: it is served by.
    """

    address: str
    name: str
    loop: asyncio.AbstractEventLoop

    def cut_off(self, reason: str) -> None:
        """Close it."""


def most_connections() -> int:
    """How many may be open; as many again may come at once before some of them are closed."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if files == resource.RLIM_INFINITY:
        return MOST
    return max(8, min(MOST, (files - FILES_FOR_OTHERS) // 2))


class Room:
    """The open connections of a process, and who has to go for another one.

    When there are as many as the process has files for, the one that has kept us waiting longest is
    closed, so that half a request never stands in the way of a whole one.

    Args:
        most: how many there may be.
        most_of_one: how many of one address; proxies may have all.
        proxies: networks of those.
    """

    def __init__(
        self,
        most: int,
        most_of_one: int = MOST_OF_ONE,
        proxies: Sequence[IPv4Network | IPv6Network] = (),
    ) -> None:
        self._most = most
        self._most_of_one = min(most_of_one, max(1, most // 2))
        self._proxies = proxies
        self._open: Counter[str] = Counter()
        self._total = 0
        # Those that we wait for, the one that we wait for longest first: all, and by address.
        self._waiting: OrderedDict[Guest, None] = OrderedDict()
        self._waiting_of: dict[str, OrderedDict[Guest, None]] = {}
        self._cut: Counter[str] = Counter()
        self._clients: set[str] = set()
        self._telling = False

    def enter(self, guest: Guest) -> None:
        """Count a connection that was opened; somebody may have to go for it."""
        name = guest.name
        self._open[name] += 1
        self._total += 1
        self.wait_for(guest)
        if self._total > self._most:
            next(iter(self._waiting)).cut_off("too many connections are open")
        elif self._open[name] > self._most_of_one and not self._is_proxy(guest.address):
            reason = "too many connections of this address are open"
            next(iter(self._waiting_of[name])).cut_off(reason)

    def leave(self, guest: Guest) -> None:
        """Forget a connection that was closed."""
        self.serve(guest)
        self._total -= 1
        self._open[guest.name] -= 1
        if not self._open[guest.name]:
            del self._open[guest.name]

    def wait_for(self, guest: Guest) -> None:
        """Nothing can be done for a connection until its client sends something."""
        self._waiting[guest] = None
        self._waiting_of.setdefault(guest.name, OrderedDict())[guest] = None

    def serve(self, guest: Guest) -> None:
        """There is something to do for a connection."""
        self._waiting.pop(guest, None)
        others = self._waiting_of.get(guest.name)
        if others is not None:
            others.pop(guest, None)
            if not others:
                del self._waiting_of[guest.name]

    def note(self, guest: Guest, reason: str) -> None:
        """Log that a client was cut off; those that follow within a second in one line."""
        self._cut[reason] += 1
        if len(self._clients) < SHOWN:
            self._clients.add(guest.name)
        if not self._telling:
            self._tell(guest.loop)

    def _tell(self, loop: asyncio.AbstractEventLoop) -> None:
        self._telling = bool(self._cut)
        if self._telling:
            extra = {"reasons": dict(self._cut), "clients": sorted(self._clients)}
            log.warning("clients were cut off", extra=extra)
            self._cut.clear()
            self._clients.clear()
            loop.call_later(TELL_S, self._tell, loop)

    def _is_proxy(self, address: str) -> bool:
        return any(ip_address(address) in network for network in self._proxies)


def protocol(settings: Settings) -> Callable[..., Connection]:
    """What uvicorn makes a connection's protocol with."""
    room = Room(most_connections(), proxies=settings.trusted_proxies)

    def made(**values: Any) -> Connection:
        return Connection(room, settings.max_body_bytes, **values)

    return made
