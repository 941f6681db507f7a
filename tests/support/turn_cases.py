"""Processes that take turns on a device, each step of them told by a test."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from search_spaces.lock_files import lock_dir
from search_spaces.turns import Turns


class WaitedError(Exception):
    """Somebody else has the device."""


def refuse(_seconds: float) -> None:
    """In place of a pause: waiting is not what the test wants."""
    raise WaitedError


def computed_on(name: str = "cpu", folder: Path | None = None) -> bool:
    """Whether anybody computes on a device, as somebody sees who wants to time there."""
    try:
        with Turns(lambda: folder or lock_dir(), pause=refuse).timing([name]):
            return False
    except WaitedError:
        return True


def timed_on(name: str = "cpu", folder: Path | None = None) -> bool:
    """Whether anybody times on a device, as somebody sees who wants to compute there."""
    try:
        with Turns(lambda: folder or lock_dir(), pause=refuse).computing(name):
            return False
    except WaitedError:
        return True


class Other:
    """A process that does what it is told: ``compute``, ``time``, ``wait``, ``give_way``, ``end``.

    To a command it says ``ok`` when it is done, and ``waits`` as often as it looks at a lock in
    vain; then it looks again when it is told ``look``.
    """

    def __init__(self, folder: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.turn_cases", str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )

    def tell(self, command: str) -> str:
        """Give a command; the answer."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(f"{command}\n")
        return self._process.stdout.readline().strip()

    def kill(self) -> None:
        """Let it end in the middle of what it does."""
        with self._process:
            self._process.kill()

    def stop(self) -> None:
        """Let it stand still."""
        self._process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WNOWAIT)

    def go_on(self) -> None:
        """Let it go on."""
        self._process.send_signal(signal.SIGCONT)


@contextmanager
def others(folder: Path, count: int) -> Iterator[list[Other]]:
    """So many processes, which end with the context."""
    found = [Other(folder) for _ in range(count)]
    try:
        yield found
    finally:
        for one in found:
            one.kill()


def _obey(folder: str) -> None:
    def say(word: str) -> None:
        print(word, flush=True)

    def pause(_seconds: float) -> None:
        say("waits")
        assert sys.stdin.readline().strip() == "look"

    turns = Turns(lambda: Path(folder), pause=pause)
    stack = ExitStack()
    for command in iter(sys.stdin.readline, ""):
        match command.strip():
            case "compute":
                stack.enter_context(turns.computing("cpu"))
            case "time":
                stack.enter_context(turns.timing(["cpu"]))
            case "wait":
                stack.enter_context(turns.waiting())
            case "give_way":
                turns.give_way()
            case "end":
                stack.close()
        say("ok")


if __name__ == "__main__":
    _obey(sys.argv[1])
