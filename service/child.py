"""Does one job in a process of its own: ``python -m service.child FOLDER KIND PICK ORDERS``.

It tells what happens through the run's ``events.jsonl``, and why it failed in the last line on
stderr. It ends at once when whoever started it is gone, so that a job whose worker was killed is
not worked on twice, and when a newer attempt at the job is there (`service.fencing`), should its
worker be frozen.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from nas.cli.options import use_threads
from nas.executors.base import ExecutorSettings
from nas.run.events import Event, Progress, StageFinished, StageStarted
from nas.run.folder import RunFolder
from nas.run.layout import CRASH_FILE
from search_spaces.errors import NasError, RunConflictError
from service.fencing import FencedFolder
from service.jobs import Kind

FAILED, BUSY = 1, 75
ERROR = "error: "


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
            return run_search(folder, where)
        case Kind.retrain:
            from nas.stages.retrain import retrain  # imports torch

            return retrain(folder, pick)
        case Kind.attention:
            from nas.stages.attention import measure_views  # imports torch

            return measure_views(folder, pick)
        case Kind.export:
            return _export(folder, pick, orders["format"], orders["weights"] == "inherited")


def _export(folder: RunFolder, pick: str, form: str, inherited: bool) -> Iterator[Event]:
    from nas.exporting.export import ExportRequest, export_network  # imports torch

    stage = f"export-{pick}"
    with folder.locked():
        yield from _told(folder, StageStarted(stage, f"Export {pick} as {form}", 1))
        began = time.perf_counter()
        request = ExportRequest(form, pick, inherited, force=True)
        done = export_network(folder, request)
        where = done.path.relative_to(folder.path).as_posix()
        yield from _told(folder, Progress(stage, 1, 1, f"{where}, checked against the run"))
        seconds = round(time.perf_counter() - began, 3)
        yield from _told(folder, StageFinished(stage, seconds))


def _told(folder: RunFolder, event: Event) -> Iterator[Event]:
    folder.log(event)
    yield event


def end_with_parent() -> None:
    """End this process when the pipe on its stdin closes."""

    def wait() -> None:
        while os.read(0, 1024):
            pass
        os._exit(FAILED)

    threading.Thread(target=wait, daemon=True).start()


def main(arguments: list[str]) -> int:
    """Do a job; returns the exit code."""
    path, kind, pick, orders = arguments
    end_with_parent()
    try:
        given = json.loads(orders)
        folder = FencedFolder.of(Path(path), given["job"], given["attempt"])
        for _ in work(folder, Kind(kind), pick, given):
            pass
    except RunConflictError as error:
        return _failed(error, BUSY)
    except NasError as error:
        return _failed(error, FAILED)
    except Exception as error:
        (Path(path) / CRASH_FILE).write_text(traceback.format_exc(), encoding="utf-8")
        return _failed(f"this should not have happened: {type(error).__name__}: {error}", FAILED)
    return 0


def _failed(error: object, code: int) -> int:
    sys.stderr.write(f"\n{ERROR}{' '.join(str(error).split())}\n")
    sys.stderr.flush()
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
