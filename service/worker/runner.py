"""Starts and stops the process that does a job."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from nas.run.termination import TERMINATED
from service.jobs.states import Job, Kind
from service.settings import Settings, environment_of_process, without_home
from service.worker.job_process import BUSY, DONE, ERROR

_LAST_BYTES = 65536  # what an evaluator's programs print may stand behind the last word


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a job's process ended: well, because somebody else works on the run, or badly.

    Attributes:
        ok: whether the job is done.
        busy: whether somebody else works on the run.
        asked: whether the process was asked to end (SIGTERM), be it by itself or with its worker.
        error: what went wrong.
    """

    ok: bool
    busy: bool = False
    asked: bool = False
    error: str | None = None


class Child(Protocol):
    """A job's process."""

    def wait(self, timeout_s: float) -> Outcome | None:
        """How it ended, or None when it goes on after that time."""

    def stop(self, grace_s: float) -> None:
        """End it, within `grace_s` seconds by itself or else by force."""


class Runner(Protocol):
    """Whatever can start a job."""

    def start(self, job: Job, folder: Path) -> Child:
        """Start doing a job in its run folder."""


class ProcessRunner:
    """Runs each job in a process of its own."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def start(self, job: Job, folder: Path) -> Child:
        """Start ``python -m`` the runner's module."""
        settings = self._settings
        settings.logs.mkdir(mode=0o700, parents=True, exist_ok=True)
        log = settings.logs / f"{job.id}.log"
        with log.open("ab") as stream:
            begun = stream.tell()  # behind what earlier attempts wrote
            process = subprocess.Popen(
                [
                    *(sys.executable, "-m", settings.runner, str(folder), job.kind, job.pick),
                    json.dumps({"job": job.id, "attempt": job.attempt, **_orders(job, settings)}),
                ],
                stdin=subprocess.PIPE,
                stdout=stream,
                stderr=stream,
                cwd=settings.home,
                env=environment_of_process() | {"NAS_CACHE_DIR": str(settings.cache)},
                start_new_session=True,
            )
        return _Process(process, log, begun, folder, settings.home)


def _orders(job: Job, settings: Settings) -> dict[str, Any]:
    """What a job's process needs to know besides its run, kind, network and attempt."""
    if job.kind is Kind.export:
        return {name: job.request[name] for name in ("format", "weights")}
    if job.kind is Kind.search:
        executor = job.request.get("executor") or settings.executor
        address = settings.ray_address if executor == "ray" else None
        return {"executor": executor, "ray_address": address}
    return {}


class _Process:
    def __init__(
        self, process: subprocess.Popen[bytes], log: Path, begun: int, folder: Path, home: Path
    ) -> None:
        self._process = process
        self._log, self._begun = log, begun
        self._folder, self._home = folder, home

    def wait(self, timeout_s: float) -> Outcome | None:
        try:
            code = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None
        self._close()
        self._end_children()
        if code == 0 and DONE in self._last_lines():
            return Outcome(ok=True)
        asked = code in (TERMINATED, -signal.SIGTERM)
        return Outcome(ok=False, busy=code == BUSY, asked=asked, error=self._error(code))

    def stop(self, grace_s: float) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGTERM)
        try:
            self._process.wait(grace_s)
        except subprocess.TimeoutExpired:
            self._end_children()
            self._process.wait()
        self._close()
        self._end_children()

    def _end_children(self) -> None:
        """End what the process has started and left behind, such as a program of an evaluator."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def _close(self) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()

    def _error(self, code: int) -> str:
        """Why it failed, in its own words where it had time for any."""
        if code < 0 or code == TERMINATED:
            name = signal.Signals(-code if code < 0 else signal.SIGTERM).name
            more = "; the machine may be out of memory" if -code == signal.SIGKILL else ""
            return f"the job's process was ended by {name}{more}; retry goes on where it stopped"
        lines = self._last_lines()
        errors = [line.removeprefix(ERROR) for line in lines if line.startswith(ERROR)]
        end = f"the job's process ended with exit code {code} before the job was done"
        text = errors[-1] if errors else end
        # Where things are on the server is nobody's business.
        return without_home(text.replace(str(self._folder), "RUN"), self._home)

    def _last_lines(self) -> list[str]:
        """The last lines that this process wrote."""
        with self._log.open("rb") as stream:
            stream.seek(max(self._begun, self._log.stat().st_size - _LAST_BYTES))
            return stream.read().decode(errors="replace").splitlines()
