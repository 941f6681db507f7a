"""The process that does one job: ``python -m service.worker.job_process FOLDER KIND PICK ORDERS``.

It tells what happens through the run's ``events.jsonl``, and in the last line on stderr that it has
done the job, or why it failed: an evaluator may end it at any time, with any exit code. It ends at
once when whoever started it is gone, so that a job whose worker was killed is not worked on twice.

The run's lock keeps two processes from writing one folder at once. `FencedFolder` is for the
process that holds it although its worker is gone, or frozen: each process leaves a mark of its
attempt in the folder before it asks for the lock, and whoever finds the mark of a newer attempt
than its own ends.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self

from nas.executors.base import ExecutorSettings
from nas.run.events import Event, Progress, StageFinished, StageStarted
from nas.run.folder import RunFolder
from nas.run.layout import ATTEMPTS_FOLDER, CRASH_FILE, LOCK_FILE, SPEC_FILE
from nas.run.termination import TERMINATED, Terminated, terminable
from nas.run.threads import use_threads
from search_spaces.errors import NasError, RunConflictError
from service.jobs.states import Kind

FAILED, BUSY = 1, 75
ERROR, DONE = "error: ", "the job is done"


def work(folder: RunFolder, kind: Kind, pick: str, orders: Mapping[str, Any]) -> Iterator[Event]:
    """What a job does.

    Args:
        folder: the run.
        kind: of the job.
        pick: the network that it is about; empty for a search.
        orders: an export's format and weights, or a search's executor.
    """
    use_threads(folder.spec.budget.threads)
    match kind:
        case Kind.search:
            from nas.stages.pipeline import run_search  # running it imports torch

            where = ExecutorSettings(orders["executor"], orders["ray_address"])
            return run_search(folder, where, tells=True)
        case Kind.retrain:
            from nas.stages.retrain import retrain  # imports torch

            return retrain(folder, pick)
        case Kind.attention:
            from nas.stages.attention import measure_views  # imports torch

            return measure_views(folder, pick)
        case Kind.export:
            return _export(folder, pick, orders["format"], orders["weights"] == "inherited")


def _export(folder: RunFolder, pick: str, form: str, inherited: bool) -> Iterator[Event]:
    from nas.results.export import ExportRequest, export_network  # imports torch

    stage = f"export-{pick}"
    with folder.locked():
        yield from _recorded(folder, StageStarted(stage, f"Export {pick} as {form}", 1))
        began = time.perf_counter()
        request = ExportRequest(form, pick, inherited, force=True)
        done = export_network(folder, request)
        where = done.path.relative_to(folder.path).as_posix()
        yield from _recorded(folder, Progress(stage, 1, 1, f"{where}, checked against the run"))
        seconds = round(time.perf_counter() - began, 3)
        yield from _recorded(folder, StageFinished(stage, seconds))


def _recorded(folder: RunFolder, event: Event) -> Iterator[Event]:
    folder.log(event)
    yield event


def end_with_parent() -> None:
    """End this process when the pipe on its stdin closes, with all that it has started."""

    def wait() -> None:
        while os.read(0, 1024):
            pass
        if os.getpgid(0) == os.getpid():
            os.killpg(0, signal.SIGKILL)  # a program of an evaluator would go on for hours
        os._exit(FAILED)

    threading.Thread(target=wait, daemon=True).start()


def main(arguments: list[str]) -> int:
    """Do a job; returns the exit code."""
    path, kind, pick, orders = arguments
    end_with_parent()
    try:
        given = json.loads(orders)
        folder = FencedFolder.of(Path(path), given["job"], given["attempt"])
        with terminable():
            for _ in work(folder, Kind(kind), pick, given):
                pass
    except Terminated:
        return TERMINATED
    except RunConflictError as error:
        return _failed(error, BUSY)
    except NasError as error:
        return _failed(error, FAILED)
    except SystemExit as stop:
        return _failed(f"what the job ran ended it with sys.exit({stop.code!r})", FAILED)
    except Exception as error:
        (Path(path) / CRASH_FILE).write_text(traceback.format_exc(), encoding="utf-8")
        return _failed(f"this should not have happened: {type(error).__name__}: {error}", FAILED)
    return _ended(DONE, 0)


def _failed(error: object, code: int) -> int:
    text = error.marked if isinstance(error, NasError) else str(error)
    return _ended(f"{ERROR}{' '.join(text.split())}", code)


def _ended(line: str, code: int) -> int:
    """Say how it ended, behind all that was printed before."""
    with suppress(OSError):  # a full disk
        sys.stdout.flush()
    sys.stderr.write(f"\n{line}\n")
    sys.stderr.flush()
    return code


class FencedFolder(RunFolder):
    """A run folder that only the newest attempt at a job writes to."""

    job: str
    attempt: int

    @classmethod
    def of(cls, path: Path, job: str, attempt: int) -> Self:
        """Open a run for an attempt at a job, and say so to earlier ones.

        Raises:
            RunConflictError: when the folder is just being moved away, or a newer attempt is there.
        """
        if not (path / SPEC_FILE).is_file():
            raise RunConflictError(f"{path} is not there any more")
        folder = cls(path, cls.open(path).spec)
        folder.job, folder.attempt = job, attempt
        marks = path / ATTEMPTS_FOLDER
        try:
            marks.mkdir(exist_ok=True)
            (marks / _mark(job, attempt)).touch()
        except FileNotFoundError:
            raise RunConflictError(f"{path} is not there any more") from None
        folder.check()
        return folder

    def check(self) -> None:
        """See that there is no newer attempt.

        Raises:
            RunConflictError: when there is.
        """
        newest = max(_attempts(self.path, self.job), default=0)
        if newest > self.attempt:
            raise RunConflictError(
                f"attempt {newest} at {self.job} goes on with this run; attempt {self.attempt} ends"
            )

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the run for this process and attempt.

        Raises:
            RunConflictError: when another process works on it, or a newer attempt is there, or it
                was moved away while the lock was asked for.
        """
        with super().locked():
            if not all((self.path / name).is_file() for name in (SPEC_FILE, LOCK_FILE)):
                raise RunConflictError(f"{self.path} is not there any more")
            self.check()
            for earlier in _attempts(self.path, self.job):
                if earlier < self.attempt:
                    (self.path / ATTEMPTS_FOLDER / _mark(self.job, earlier)).unlink(missing_ok=True)
            yield


def _mark(job: str, attempt: int) -> str:
    return f"{job}-{attempt}"


def _attempts(path: Path, job: str) -> list[int]:
    """The attempts at a job that have left a mark."""
    with suppress(FileNotFoundError):
        found = (name.rpartition("-") for name in os.listdir(path / ATTEMPTS_FOLDER))
        return [int(number) for one, _, number in found if one == job and number.isdecimal()]
    return []


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
