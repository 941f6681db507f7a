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

STEPS = 5
BUSY = 75


def done_steps(journal: Path) -> int:
    """How many steps earlier processes have done; a line that was cut off is dropped."""
    if not journal.exists():
        return 0
    data = journal.read_bytes()
    whole = data[: data.rfind(b"\n") + 1]
    if len(whole) != len(data):
        with journal.open("rb+") as stream:
            stream.truncate(len(whole))
    return sum("step" in json.loads(line) for line in whole.splitlines())


def append(file: Path, line: dict[str, object]) -> None:
    """Add a line to a journal."""
    with file.open("a", encoding="utf-8") as stream:
        stream.write(json.dumps(line) + "\n")
        stream.flush()
        os.fsync(stream.fileno())


def work(folder: Path, step_s: float) -> int:
    """Do what is left to do; returns the exit code."""
    with (folder / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return BUSY
        journal = folder / "ran.jsonl"
        first = done_steps(journal) + 1
        append(journal, {"begin": os.getpid(), "time": time.time()})
        for step in range(first, STEPS + 1):
            time.sleep(step_s)
            append(journal, {"step": step, "pid": os.getpid(), "time": time.time()})
            told = {"event": "Progress", "stage": "count", "done": step, "total": STEPS}
            append(folder / "events.jsonl", {"time": time.time(), **told})
        append(journal, {"end": os.getpid(), "time": time.time()})
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
