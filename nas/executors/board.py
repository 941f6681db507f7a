"""What each worker of a run does at the moment, in files that anyone can read.

``workers/state.json`` tells it while the run is worked on; ``workers/NAME.log`` keeps what each
worker did. Both are written by the process that works on the run, so that workers elsewhere need
no way to its folder.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from nas.run.layout import WORKERS_STATE_FILE, worker_log
from search_spaces.files import write_atomically

# Between two writings, at least.
WRITE_EVERY_S = 0.5


@dataclass(frozen=True)
class WorkerState:
    """A worker as it is now.

    Attributes:
        name: of the worker, the same after its process was lost and another one started.
        doing: ``starting``, ``idle``, ``evaluating``, ``timing``, ``training``, ``distilling``,
            ``retraining`` or ``ended``.
        network: id of the network it works on, if any.
        since: when it began to do so, in seconds since 1970.
        host: the name of its machine, once it has started.
        pid: its process.
        done: networks evaluated.
        failed: tries that failed.
        lost: processes that were lost.
    """

    name: str
    doing: str = "starting"
    network: str | None = None
    since: float = 0.0
    host: str = ""
    pid: int = 0
    done: int = 0
    failed: int = 0
    lost: int = 0


class Board:
    """Keeps the states of a run's workers and their logs."""

    def __init__(self, run: Path) -> None:
        self._run = run
        self._states: dict[str, WorkerState] = {}
        self._written = 0.0
        self._changed = False

    def state(self, name: str) -> WorkerState:
        """A worker's state."""
        return self._states.get(name) or WorkerState(name)

    def change(self, name: str, **values: Any) -> None:
        """Note what a worker does from now on; see `WorkerState` for the values."""
        self._states[name] = replace(self.state(name), since=time.time(), **values)
        self._changed = True
        self.tick()

    def tick(self) -> None:
        """Write what has changed as soon as it may be written; whoever waits calls it often."""
        if self._changed and time.monotonic() - self._written >= WRITE_EVERY_S:
            self.write()

    def log(self, name: str, lines: Iterable[str]) -> None:
        """Add lines to a worker's log."""
        stamp = datetime.now(UTC).isoformat(timespec="milliseconds")
        file = self._run / worker_log(name)
        file.parent.mkdir(exist_ok=True)
        with file.open("a", encoding="utf-8") as stream:
            stream.writelines(f"{stamp} {line}\n" for line in lines)

    def write(self) -> None:
        """Write the states now."""
        self._written, self._changed = time.monotonic(), False
        states = [asdict(state) for state in self._states.values()]
        content = {"time": round(time.time(), 3), "workers": states}
        write_atomically(self._run / WORKERS_STATE_FILE, json.dumps(content, indent=2) + "\n")

    def remove(self, name: str) -> None:
        """Forget a worker that has done all it was for; its log stays."""
        if self._states.pop(name, None) is not None:
            with suppress(OSError):  # whoever ends because of it says so
                self.write()

    def clear(self) -> None:
        """Nobody works any more: the logs stay."""
        self._states.clear()
        self._changed = False
        with suppress(OSError):  # that of a folder which may only be read is out of date anyway
            (self._run / WORKERS_STATE_FILE).unlink(missing_ok=True)


def read_workers(run: Path) -> list[WorkerState]:
    """What the workers of a run do; nothing where there are none or nobody tells."""
    try:
        data = json.loads((run / WORKERS_STATE_FILE).read_text(encoding="utf-8"))
        return [_state(one) for one in data["workers"]]
    except (OSError, ValueError, LookupError, TypeError):
        return []  # it is no part of the result


def _state(data: Mapping[str, Any]) -> WorkerState:
    return WorkerState(**data)
