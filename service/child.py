"""Does one job in a process of its own: ``python -m service.child FOLDER KIND PICK``.

It tells what happens through the run's ``events.jsonl``, and why it failed in the last line on
stderr. It ends at once when whoever started it is gone, so that a job whose worker was killed is
not worked on twice.
"""

from __future__ import annotations

import os
import sys
import threading
import traceback
from collections.abc import Iterator
from pathlib import Path

from nas.cli.failures import CRASH_FILE
from nas.cli.options import use_threads
from nas.events import Event
from nas.run_folder import RunFolder
from search_spaces.errors import NasError, RunConflictError
from service.jobs import Kind

FAILED, BUSY = 1, 75
ERROR = "error: "


def work(folder: RunFolder, kind: Kind, pick: str) -> Iterator[Event]:
    """What a job does."""
    use_threads(folder.spec.budget.threads)
    if kind is Kind.retrain:
        from nas.retrain import retrain  # imports torch

        return retrain(folder, pick)
    if kind is Kind.attention:
        from nas.omni_measuring import measure_views  # imports torch

        return measure_views(folder, pick)
    from nas.pipeline import run_search  # running it imports torch

    return run_search(folder)


def end_with_parent() -> None:
    """End this process when the pipe on its stdin closes."""

    def wait() -> None:
        while os.read(0, 1024):
            pass
        os._exit(FAILED)

    threading.Thread(target=wait, daemon=True).start()


def main(arguments: list[str]) -> int:
    """Do a job; returns the exit code."""
    path, kind, pick = arguments
    end_with_parent()
    try:
        for _ in work(RunFolder.open(Path(path)), Kind(kind), pick):
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
