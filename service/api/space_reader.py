"""Has the spaces that requests bring along checked by other processes, which may be lost.

What a stranger sends is bounded before it is parsed (`search_spaces.toml_bounds`). Should there be
text within these bounds that still takes long, it costs a process (``python -m
service.api.space_reader``), and whoever sent it an answer that says so; nobody else waits for it.

Checkpoints are read there as well, because that takes libraries that the service does without.
These were put on the server by its owner, and may take their time.

Such a process reads the service's settings from stdin, then one request a line, and writes an
answer a line. No request may take more processor time and memory than `CPU_S` and `MEMORY_MB`: the
system ends the process that does. It ends when its stdin closes as well.
"""

from __future__ import annotations

import json
import math
import os
import resource
import select
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from nas.request.resolve import blaming
from nas.request.spec import SpaceSource
from search_spaces.errors import NasError
from search_spaces.toml_bounds import check_bounds
from service.api.catalog import Catalog
from service.api.problems import ProblemError
from service.api.schemas import CheckpointOut, JobRequest, SpaceOut
from service.api.specs import Search, needs_limits, read_search, read_space, refusing
from service.settings import Settings, environment_of_process

MODULE = "service.api.space_reader"
START_S = 60.0  # libraries have to be loaded
WALL_S = 10.0  # for a process that gets no processor
START_WALL_S = 300.0  # for the checksum of a large checkpoint, which the server's owner put there
CPU_S, MEMORY_MB = 2, 256  # for one request
TOO_MUCH = 75  # exit code
READY = b"ready\n"
KEPT_BYTES = 64 * 2**20  # more than that, for whatever reason, and a new one takes its place
_STATM = Path("/proc/self/statm")


class LostError(Exception):
    """A process has ended, or gives no answer in time."""

    def __init__(self, code: int | None = None) -> None:
        super().__init__(f"the process that checks spaces ended with {code}")
        self.code = code


class SpaceReader:
    """Checks spaces; those with a name here, those of strangers elsewhere.

    Args:
        settings: of the service.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._catalog = Catalog(settings)
        self._guard = threading.Lock()
        self._idle: list[_Process] = []

    def search(self, given: JobRequest) -> Search:
        """What a search needs.

        Raises:
            ProblemError: naming the field at fault.
        """
        if given.start is not None:
            if given.space_toml is not None:  # within bounds, unlike what follows
                self.check(SpaceSource(space_toml=given.space_toml, restrict=given.restrict))
            return Search(**self._ask("search", given.model_dump(mode="json"), START_WALL_S))
        if given.space_toml is None:
            return read_search(given, self._catalog)
        return Search(**self._bounded("search", given, given.space_toml))

    def check(self, given: SpaceSource) -> SpaceOut:
        """What is told of a space that a request brings along.

        Raises:
            ProblemError: naming the field at fault.
        """
        assert given.space_toml is not None  # others are at hand
        return SpaceOut(**self._bounded("space", given, given.space_toml))

    def checkpoints(self) -> list[CheckpointOut]:
        """The checkpoints of the server."""
        answered = self._ask("checkpoints", {}, START_WALL_S)
        return [CheckpointOut(**one) for one in answered["checkpoints"]]

    def close(self) -> None:
        """End the processes."""
        with self._guard:
            idle, self._idle = self._idle, []
        for process in idle:
            process.end()

    def _bounded(self, kind: str, given: SpaceSource, text: str) -> dict[str, Any]:
        """As `_ask`, of a request that brings a space along."""
        with refusing(), blaming("space_toml"):
            check_bounds(text, "space_toml")
        try:
            return self._ask(kind, given.model_dump(mode="json"), WALL_S)
        except LostError as error:
            if error.code is not None and 0 < error.code != TOO_MUCH:
                raise  # our own mistake
            raise ProblemError(
                422,
                f"reading this space took more than {CPU_S} s or {MEMORY_MB} MB, which no space "
                "needs: leave something out",
                "/space_toml",
            ) from error

    def _ask(self, kind: str, given: dict[str, Any], wait_s: float) -> dict[str, Any]:
        """What another process finds.

        Raises:
            ProblemError: naming the field at fault.
            LostError: when there is no answer.
        """
        process = self._take()
        try:
            request = {"kind": kind, "given": given}
            answer = process.ask(json.dumps(request).encode() + b"\n", wait_s)
        except LostError:
            process.end()
            raise
        self._give_back(process, spent=answer["spent"])
        if "problem" in answer:
            raise ProblemError(*answer["problem"])
        found: dict[str, Any] = answer["found"]
        return found

    def _take(self) -> _Process:
        while True:
            with self._guard:
                process = self._idle.pop() if self._idle else None
            if process is None:
                return _Process(self._settings)
            if process.lives:
                return process
            process.end()

    def _give_back(self, process: _Process, *, spent: bool) -> None:
        if spent:
            process.end()
            return
        with self._guard:
            self._idle.append(process)


class _Process:
    """A process that answers one request at a time."""

    def __init__(self, settings: Settings) -> None:
        alone = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            [sys.executable, "-m", MODULE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment_of_process() | alone,
            start_new_session=True,
        )
        answered = settings.model_copy(update={"database_url": None})
        self._exchange(answered.model_dump_json().encode() + b"\n", START_S)

    @property
    def lives(self) -> bool:
        """Whether it has not ended."""
        return self._process.poll() is None

    def ask(self, request: bytes, wait_s: float) -> dict[str, Any]:
        """Its answer to a request.

        Raises:
            LostError: when there is none.
        """
        answer: dict[str, Any] = json.loads(self._exchange(request, wait_s))
        return answer

    def end(self) -> None:
        """End it at once."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with suppress(BrokenPipeError):
                pipe.close()

    def _exchange(self, line: bytes, wait_s: float) -> bytes:
        """Send a line and wait for one."""
        pipes = self._process.stdin, self._process.stdout
        assert pipes[0] is not None and pipes[1] is not None
        with suppress(BrokenPipeError):  # it has ended, which is seen below
            pipes[0].write(line)
            pipes[0].flush()
        deadline, found = time.monotonic() + wait_s, b""
        ready = select.poll()
        ready.register(pipes[1], select.POLLIN)
        while not found.endswith(b"\n"):
            if not ready.poll(max(0.0, deadline - time.monotonic()) * 1000):
                raise LostError()
            some = os.read(pipes[1].fileno(), 2**16)
            if not some:
                raise LostError(self._process.wait())
            found += some
        return found


# -- in the other process ------------------------------------------------------------------------


def answer(kind: str, given: dict[str, Any], catalog: Catalog) -> dict[str, Any]:
    """What comes of a request.

    Args:
        kind: ``space``, which is described, ``search``, whose spec is made, or ``checkpoints``,
            which are listed.
        given: the request as JSON.
        catalog: spaces and data sets of the server.

    Returns:
        ``found``, or what is wrong with it as the arguments of a `ProblemError` under ``problem``.
    """
    try:
        if kind == "checkpoints":
            listed = [CheckpointOut.of(one).model_dump() for one in catalog.checkpoints()]
            return {"found": {"checkpoints": listed}}
        if kind == "space":
            space = read_space(SpaceSource(**given), catalog)
            return {"found": SpaceOut.of(space).model_dump(mode="json")}
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
        own = request["kind"] == "checkpoints" or request["given"].get("start") is not None
        if own:  # what the server's owner put there, which may take its time
            answered = answer(request["kind"], request["given"], catalog) | {"spent": False}
            began = max(began, mapped_bytes())
            output.write(json.dumps(answered).encode() + b"\n")
            output.flush()
            continue
        if needs_limits(request["given"]):
            import nas.stages.feasibility  # noqa: F401  # what it takes is not the request's
        try:
            with limited():
                answered = answer(request["kind"], request["given"], catalog)
        except MemoryError:
            os._exit(TOO_MUCH)
        answered["spent"] = mapped_bytes() > began + KEPT_BYTES
        output.write(json.dumps(answered).encode() + b"\n")
        output.flush()


if __name__ == "__main__":
    main()
