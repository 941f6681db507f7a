"""A job that only counts: what the load study lets workers run in place of a search.

``python -m experiments.instant_job FOLDER KIND PICK`` does `STEPS` steps, each after
``INSTANT_STEP_S`` seconds, and writes each to ``ran.jsonl`` with the number of its process, so that
anybody can see afterwards whether a step was done twice or by two at once. Like a search it holds
the run's lock, goes on where it was killed, and ends with whoever started it.
"""

from __future__ import annotations

import fcntl
import json
import os
import sys
import threading
import time
from pathlib import Path

from nas.run.layout import EVENTS_FILE, LOCK_FILE
from search_spaces.files import append_lines, read_lines

STEPS = 5
BUSY, DONE = 75, "the job is done"


def work(folder: Path, step_s: float) -> int:
    """Do what is left to do; returns the exit code."""
    with (folder / LOCK_FILE).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return BUSY
        journal = folder / "ran.jsonl"
        first = sum("step" in json.loads(line) for line in read_lines(journal)) + 1
        append_lines(journal, [json.dumps({"begin": os.getpid(), "time": time.time()})])
        for step in range(first, STEPS + 1):
            time.sleep(step_s)
            done = {"step": step, "pid": os.getpid(), "time": time.time()}
            append_lines(journal, [json.dumps(done)])
            progress = {"event": "Progress", "stage": "count", "done": step, "total": STEPS}
            append_lines(folder / EVENTS_FILE, [json.dumps({"time": time.time(), **progress})])
        append_lines(journal, [json.dumps({"end": os.getpid(), "time": time.time()})])
    print(DONE)
    return 0


def end_with_parent() -> None:
    """End this process when the pipe on its stdin closes."""

    def wait() -> None:
        while os.read(0, 1024):
            pass
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def main() -> None:
    """Run as a worker runs it."""
    end_with_parent()
    sys.exit(work(Path(sys.argv[1]), float(os.environ.get("INSTANT_STEP_S", "0"))))


if __name__ == "__main__":
    main()
