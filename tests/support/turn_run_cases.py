"""Searches at once, each in a process, as workers of the service are; all tell one pipe.

``<`` and ``>`` stand around each update of a training, ``(`` and ``)`` around each session of the
timer, ``!`` before the first; ``x`` is an update of a training that does not ask. They stand in the
order in which they come.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from importlib import import_module
from pathlib import Path
from typing import Any

from nas.run.events import StageFinished
from nas.run.folder import RunFolder
from nas.stages.pipeline import run_search
from tests.support.pipeline_cases import NUMBERS, spec_of

TIMED = ("quality", "latency_ms")


def search(role: str, folder: Path, pipe: int) -> subprocess.Popen[str]:
    """A process with a search: ``train``, ``train-unasked`` or ``time``, see below."""
    command = [sys.executable, "-m", "tests.support.turn_run_cases", role, str(folder), str(pipe)]
    return subprocess.Popen(command, pass_fds=[pipe], stdin=subprocess.PIPE, text=True)


def _train(folder: Path, tell: Callable[[str], None], *, asks: bool) -> None:
    """A training without an end; without turns if it does not ask."""
    loop: Any = import_module("supernet.training.loop")
    stages: Any = import_module("nas.run.stage_runner")
    update, rate = loop.Trainer._update, loop.learning_rate

    def telling_update(self: Any, batches: Any) -> Any:
        loss = update(self, batches)
        tell(">" if asks else "x")
        return loss

    def telling_rate(*arguments: Any) -> Any:
        if asks:
            tell("<")  # an update asks for it when it has given way
        return rate(*arguments)

    loop.Trainer._update = telling_update
    loop.learning_rate = telling_rate
    if not asks:
        stages.computing = lambda _device: nullcontext()
    numbers = NUMBERS | {"supernet.epochs": "1000000"}
    for _ in run_search(RunFolder.create(folder, spec_of(folder, numbers=numbers))):
        pass


def _time(folder: Path, tell: Callable[[str], None]) -> None:
    """Three sessions of the timer at least; each ends when a line comes."""
    timed_work: Any = import_module("nas.profiling.timed_work")
    time_beside = timed_work.time_beside

    def telling(*arguments: Any, **options: Any) -> Any:
        tell("(")
        try:
            return time_beside(*arguments, **options)
        finally:
            sys.stdin.readline()
            tell(")")

    timed_work.time_beside = telling
    numbers = NUMBERS | {"timing_rounds": "11"}
    spec = spec_of(folder, numbers=numbers, objectives=TIMED)
    tell("!")
    for event in run_search(RunFolder.create(folder, spec)):
        if isinstance(event, StageFinished) and event.stage == "latency":
            break


def _main(role: str, folder: str, pipe: str) -> None:
    def tell(word: str) -> None:
        os.write(int(pipe), word.encode())

    if role == "time":
        _time(Path(folder), tell)
    else:
        _train(Path(folder), tell, asks=role == "train")


if __name__ == "__main__":
    _main(*sys.argv[1:])
