"""Ordinary clients beside the attacks, in a process of their own: readers and a submitter.

Each asks for one thing again and again, with a pause after each answer, over a connection that it
keeps, and notes in a journal when it asked, how long the answer took, and what it was.
"""

from __future__ import annotations

import http.client
import itertools
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from experiments.siege.job import QUICK

PATIENCE_S = 10.0
HEALTH, SUBMIT = "health", "submit"
ENDED = ("succeeded", "failed", "cancelled")
READS = {
    "list": "/api/v1/jobs",
    "job": "/api/v1/jobs/{job}",
    "front": "/api/v1/jobs/{job}/front",
    "events": "/api/v1/jobs/{job}/events",
    "dashboard": "/",
    "job's page": "/jobs/{job}",
    HEALTH: "/healthz",
}


@dataclass(frozen=True, slots=True)
class Seen:
    """What an ordinary client got.

    Attributes:
        client: which one.
        began: when it asked, on the clock of `time.monotonic`, which all processes share.
        seconds: until the whole answer was there.
        status: of the answer; 0 when there was none within `PATIENCE_S`.
        job: that was submitted, for the submitter.
        state: how that job ended; None when it was not seen to end.
    """

    client: str
    began: float
    seconds: float
    status: int
    job: str | None = None
    state: str | None = None


class Line:
    """A client's connection; it is made anew when it breaks."""

    def __init__(self, port: int, token: str) -> None:
        self._headers = {
            "Authorization": f"Bearer {token}",
            "Cookie": f"nas_session={token}",
            "Content-Type": "application/json",
        }
        self._http = http.client.HTTPConnection("127.0.0.1", port, PATIENCE_S)

    def ask(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> tuple[int, bytes]:
        """Status and body of one request; 0 without an answer."""
        data = None if body is None else json.dumps(body)
        kept = self._http.sock is not None
        for _ in range(2):
            try:
                self._http.request(method, path, data, {**self._headers, **(headers or {})})
                answer = self._http.getresponse()
                return answer.status, answer.read()
            except TimeoutError:
                self.close()
                break
            except (OSError, http.client.HTTPException):
                self.close()
                if not kept:  # one that was kept open may have ended in good order
                    break
                kept = False
        return 0, b""

    def close(self) -> None:
        """End the connection."""
        self._http.close()


def read(name: str, job: str, line: Line) -> Seen:
    """Ask for one thing once."""
    if name == HEALTH:  # like a health check, which comes anew each time
        line.close()
    began = time.monotonic()
    status, _ = line.ask("GET", READS[name].format(job=job))
    return Seen(name, began, time.monotonic() - began, status)


def submit(key: str, line: Line, pause_s: float = 0.2) -> Seen:
    """Submit a job, with a key of its own, and follow it to its end."""
    request = {"space": "digits", "preset": "smoke", "seed": QUICK, "title": "ordinary"}
    request["objectives"] = ["quality", "flops"]
    began = time.monotonic()
    status, text = line.ask("POST", "/api/v1/jobs", request, {"Idempotency-Key": key})
    seconds = time.monotonic() - began
    if status not in (200, 201):
        return Seen(SUBMIT, began, seconds, status)
    job, state = str(json.loads(text)["id"]), None
    while state not in ENDED and time.monotonic() - began < 6 * PATIENCE_S:
        time.sleep(pause_s)
        answered, text = line.ask("GET", f"/api/v1/jobs/{job}")
        if answered == 200:
            state = str(json.loads(text)["state"])
    return Seen(SUBMIT, began, seconds, status, job, state)


@dataclass(frozen=True, slots=True)
class Client:
    """What asks for one thing again and again.

    Attributes:
        line: its connection.
        ask: asks once.
    """

    line: Line
    ask: Callable[[], Seen]


def clients(port: int, token: str, job: str, *, submits: bool) -> Iterator[Client]:
    """The ordinary clients.

    Args:
        port: of the service.
        token: of all of them.
        job: that the readers look at; it has ended.
        submits: whether one of them submits jobs.
    """
    for name in READS:
        line = Line(port, token)
        yield Client(line, partial(read, name, job, line))
    if submits:
        line = Line(port, token)
        yield Client(line, partial(_submit_next, line, itertools.count(), []))


def _submit_next(line: Line, numbers: Iterator[int], open_keys: list[str]) -> Seen:
    """Submit one more job, or the last one again, which may be there already, with its key."""
    if not open_keys:
        open_keys.append(f"siege-{os.getpid()}-{next(numbers)}")
    seen = submit(open_keys[0], line)
    if seen.job is not None:
        open_keys.clear()
    return seen


def main() -> None:
    """Ask until stdin ends; the first line tells what, and where to note the answers."""
    given = json.loads(sys.stdin.readline())
    journal, pause_s = Path(given.pop("journal")), float(given.pop("pause_s"))
    writing, ending = threading.Lock(), threading.Event()

    def go_on(once: Callable[[], Seen]) -> None:
        while not ending.wait(pause_s):
            text = json.dumps(asdict(once())) + "\n"
            with writing, journal.open("a", encoding="utf-8") as stream:
                stream.write(text)

    for client in clients(**given):
        threading.Thread(target=go_on, args=(client.ask,), daemon=True).start()
    with suppress(KeyboardInterrupt):
        sys.stdin.read()
    ending.set()


if __name__ == "__main__":
    main()
