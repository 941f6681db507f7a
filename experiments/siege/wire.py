"""What attackers send: whole requests, and bytes that are none."""

from __future__ import annotations

import http.client
import select
import socket
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

ATTACKER = "127.0.0.66"  # not where the ordinary clients are
SILENT, CLOSED, TAKEN = "no answer", "closed", "all was taken"
CHUNK = 65_536


@dataclass(frozen=True, slots=True)
class Answer:
    """How a request was answered.

    Attributes:
        status: three digits, ``closed`` or ``no answer``.
        body: what came with it.
        seconds: until it was there.
    """

    status: str
    body: bytes
    seconds: float


def ask(
    port: int,
    method: str,
    path: str,
    *,
    body: bytes | None = None,
    headers: Mapping[str, str] | None = None,
    patience_s: float,
    source: str = ATTACKER,
) -> Answer:
    """One request on a connection of its own."""
    began = time.monotonic()
    line = http.client.HTTPConnection("127.0.0.1", port, patience_s, (source, 0))
    try:
        line.request(method, path, body, dict(headers or {}))
        answer = line.getresponse()
        status, text = str(answer.status), answer.read()
    except TimeoutError:
        status, text = SILENT, b""
    except (OSError, http.client.HTTPException):
        status, text = CLOSED, b""
    finally:
        line.close()
    return Answer(status, text, time.monotonic() - began)


def pour(port: int, pieces: Iterable[bytes], patience_s: float) -> str:
    """Send bytes until they end, the service answers, or time is up.

    Returns:
        The status it answered with, ``closed``, or ``all was taken`` when it took everything and
        said nothing within `patience_s`.
    """
    deadline = time.monotonic() + patience_s
    try:
        with connected(port, patience_s) as line:
            for piece in pieces:
                if readable(line) or time.monotonic() > deadline:
                    break
                line.sendall(piece)
            line.settimeout(max(0.1, deadline - time.monotonic()))
            return first_status(line)
    except TimeoutError:
        return TAKEN
    except OSError:
        return CLOSED


def connected(port: int, patience_s: float) -> socket.socket:
    """A connection of the attacker's."""
    return socket.create_connection(("127.0.0.1", port), patience_s, (ATTACKER, 0))


def readable(line: socket.socket, wait_s: float = 0.0) -> bool:
    """Whether something came, be it the end."""
    poll = select.poll()  # unlike select, it takes connections of any number
    poll.register(line, select.POLLIN)
    return bool(poll.poll(1000 * wait_s))


def first_status(line: socket.socket) -> str:
    """The status of the answer that comes, or ``closed``."""
    data = b""
    while b"\r\n" not in data:
        more = line.recv(4096)
        if not more:
            return CLOSED
        data += more
    return data.split()[1].decode("ascii", "replace")


def portions(piece: bytes, total: int) -> Iterator[bytes]:
    """One piece again and again, until it is so many bytes."""
    portion = piece * max(1, CHUNK // len(piece))
    for _ in range(max(1, total // len(portion))):
        yield portion
