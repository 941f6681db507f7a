"""Has the spaces that requests bring along checked by other processes, which may be lost.

What a stranger sends is bounded before it is parsed (`search_spaces.toml_bounds`). Should there be
text within these bounds that still takes long, it costs a process (`service.space_process`), and
whoever sent it an answer that says so; nobody else waits for it.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import threading
import time
from contextlib import suppress
from typing import Any

from nas.request.resolve import blaming
from nas.request.spec import SpaceSource
from search_spaces.toml_bounds import check_bounds
from service.catalog import Catalog
from service.problems import ProblemError
from service.runner import ROOT, SECRETS
from service.schemas import JobRequest, SpaceOut
from service.settings import Settings
from service.specs import Search, read_search, refusing

MODULE = "service.space_process"
START_S = 60.0  # libraries have to be loaded
WALL_S = 10.0  # for a process that gets no processor
CPU_S, MEMORY_MB = 2, 256  # for one request
TOO_MUCH = 75  # exit code
READY = b"ready\n"


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
        if given.space_toml is None:
            return read_search(given, self._catalog)
        return Search(**self._ask("search", given, given.space_toml))

    def check(self, given: SpaceSource) -> SpaceOut:
        """What is told of a space that a request brings along.

        Raises:
            ProblemError: naming the field at fault.
        """
        assert given.space_toml is not None  # others are at hand
        return SpaceOut(**self._ask("space", given, given.space_toml))

    def close(self) -> None:
        """End the processes."""
        with self._guard:
            idle, self._idle = self._idle, []
        for process in idle:
            process.end()

    def _ask(self, kind: str, given: SpaceSource, text: str) -> dict[str, Any]:
        with refusing(), blaming("space_toml"):
            check_bounds(text, "space_toml")
        process = self._take()
        try:
            request = {"kind": kind, "given": given.model_dump(mode="json")}
            answer = process.ask(json.dumps(request).encode() + b"\n", WALL_S)
        except LostError as error:
            process.end()
            if error.code is not None and 0 < error.code != TOO_MUCH:
                raise  # our own mistake
            raise ProblemError(
                422,
                f"reading this space took more than {CPU_S} s or {MEMORY_MB} MB, which no space "
                "needs: leave something out",
                "/space_toml",
            ) from error
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
        environment = {k: v for k, v in os.environ.items() if k not in SECRETS}
        paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        alone = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            [sys.executable, "-m", MODULE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**environment, **alone, "PYTHONPATH": os.pathsep.join(paths)},
            start_new_session=True,
        )
        told = settings.model_copy(update={"database_url": None})
        self._exchange(told.model_dump_json().encode() + b"\n", START_S)

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
