"""Clients of a load test, many in one process, so light that they leave the machine to the service.

Each has one connection and waits for its answer before it asks again. HTTP is written and read
here in its simplest form, which is all that the service's JSON needs; a client that parses answers
as carefully as `http.client` does would take as much time as the service takes to make them.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Asked:
    """One request and how long its answer took.

    Attributes:
        kind: what was asked.
        seconds: until the whole answer was there.
        status: of the answer.
    """

    kind: str
    seconds: float
    status: int


@dataclass(frozen=True, slots=True)
class Request:
    """What a client asks: a kind to count it under, method, path below the API, JSON or nothing."""

    kind: str
    method: str
    path: str
    body: Any = None

    def encoded(self, token: str) -> bytes:
        """The request as it is sent."""
        body = b"" if self.body is None else json.dumps(self.body).encode()
        head = (
            f"{self.method} /api/v1{self.path} HTTP/1.1\r\nHost: 127.0.0.1\r\n"
            f"Authorization: Bearer {token}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        return head.encode() + body


def ask_for(
    port: int,
    token: str,
    draw_request: Callable[[random.Random], Request],
    *,
    clients: int,
    seconds: float,
    think_s: float,
    seed: int,
) -> list[Asked]:
    """Let clients ask for a while.

    Args:
        port: of the service on this machine.
        token: that all of them use.
        draw_request: what is asked next.
        clients: how many at once.
        seconds: that they ask for.
        think_s: mean seconds of a client between an answer and its next request; 0 for none,
            otherwise evenly between nothing and twice as many.
        seed: of what is drawn.
    """

    async def all_clients() -> list[Asked]:
        deadline = time.perf_counter() + seconds
        draws = [random.Random(1000 * seed + number) for number in range(clients)]
        parts = await asyncio.gather(
            *(_client(port, token, draw_request, draw, deadline, think_s) for draw in draws)
        )
        return [one for part in parts for one in part]

    return asyncio.run(all_clients())


async def _client(
    port: int,
    token: str,
    draw_request: Callable[[random.Random], Request],
    draw: random.Random,
    deadline: float,
    think_s: float,
) -> list[Asked]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    found = []
    while time.perf_counter() < deadline:
        request = draw_request(draw)
        sent = request.encoded(token)
        began = time.perf_counter()
        writer.write(sent)
        status = await _answer(reader)
        found.append(Asked(request.kind, time.perf_counter() - began, status))
        if think_s:
            await asyncio.sleep(draw.uniform(0, 2 * think_s))
    writer.close()
    await writer.wait_closed()
    return found


async def _answer(reader: asyncio.StreamReader) -> int:
    """Read an answer to its end; returns its status."""
    head = await reader.readuntil(b"\r\n\r\n")
    lines = head.split(b"\r\n")
    length = next(
        int(line.partition(b":")[2]) for line in lines if line.lower().startswith(b"content-length")
    )
    await reader.readexactly(length)
    return int(lines[0].split()[1])
