"""Checks spaces that strangers send, in a process of its own: ``python -m service.space_process``.

It reads the service's settings from stdin, then one request a line, and writes an answer a line.
No request may take more processor time and memory than `CPU_S` and `MEMORY_MB`: the system ends the
process that does. It ends when its stdin closes as well.
"""

from __future__ import annotations

import json
import math
import os
import resource
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from nas.request.spec import SpaceSource
from search_spaces.errors import NasError
from service.catalog import Catalog
from service.problems import ProblemError
from service.routes.spaces import space_out
from service.schemas import JobRequest
from service.settings import Settings
from service.space_reader import CPU_S, MEMORY_MB, READY, TOO_MUCH
from service.specs import needs_limits, read_search, read_space

KEPT_BYTES = 64 * 2**20  # more than that, for whatever reason, and a new one takes its place
_STATM = Path("/proc/self/statm")


def answer(kind: str, given: dict[str, Any], catalog: Catalog) -> dict[str, Any]:
    """What comes of a request.

    Args:
        kind: ``space``, which is described, or ``search``, whose spec is made.
        given: the request as JSON.
        catalog: spaces and data sets of the server.

    Returns:
        ``found``, or what is wrong with it as the arguments of a `ProblemError` under ``problem``.
    """
    try:
        if kind == "space":
            space = read_space(SpaceSource(**given), catalog)
            return {"found": space_out(space).model_dump(mode="json")}
        return {"found": read_search(JobRequest(**given), catalog).__dict__}
    except ProblemError as error:
        field = error.errors[0].field if error.errors else None
        return {"problem": [error.status, error.detail, field]}
    except NasError as error:
        return {"problem": [422, str(error), None]}


def mapped_bytes() -> int:
    """Address space of this process; 0 where the system does not tell."""
    if not _STATM.exists():
        return 0
    return int(_STATM.read_text().split()[0]) * resource.getpagesize()


@contextmanager
def limited() -> Iterator[None]:
    """Use no more than `CPU_S` and `MEMORY_MB`, where the system can tell."""
    mapped = mapped_bytes()
    wanted = {resource.RLIMIT_CPU: math.ceil(time.process_time()) + CPU_S}
    if mapped:
        wanted[resource.RLIMIT_AS] = mapped + MEMORY_MB * 2**20
    before = {what: resource.getrlimit(what) for what in wanted}
    for what, most in wanted.items():
        hard = before[what][1]
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(what, (most, hard))
    try:
        yield
    finally:
        for what, limits in before.items():
            resource.setrlimit(what, limits)


def main() -> None:
    """Answer until stdin closes."""
    os.nice(5)  # who only looks at something goes first
    catalog = Catalog(Settings.model_validate_json(sys.stdin.buffer.readline()))
    output = sys.stdout.buffer
    output.write(READY)
    output.flush()
    began = mapped_bytes()
    for line in sys.stdin.buffer:
        request = json.loads(line)
        if needs_limits(request["given"]):
            import nas.stages.feasibility  # noqa: F401  # what it takes is not the request's
        try:
            with limited():
                told = answer(request["kind"], request["given"], catalog)
        except MemoryError:
            os._exit(TOO_MUCH)
        told["spent"] = mapped_bytes() > began + KEPT_BYTES
        output.write(json.dumps(told).encode() + b"\n")
        output.flush()


if __name__ == "__main__":
    main()
