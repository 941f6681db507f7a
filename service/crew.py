"""Processes beside `nas serve` that end with it, and are started again when they end before."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass

from service.metrics import forget_process
from service.runner import ROOT
from service.settings import Settings

STOP_S = 10.0
AGAIN_S = 1.0  # before a process that ended is started again


@dataclass(frozen=True)
class Post:
    """A place for one process.

    Attributes:
        settings: of the service; the process reads them from its stdin.
        module: what it runs, as ``python -m``. It ends when its stdin closes.
    """

    settings: Settings
    module: str

    def start(self) -> subprocess.Popen[bytes]:
        """Start a process there."""
        environment = dict(os.environ)
        paths = [str(ROOT), *filter(None, [environment.get("PYTHONPATH")])]
        process = subprocess.Popen(
            [sys.executable, "-m", self.module],
            stdin=subprocess.PIPE,
            env=environment | {"PYTHONPATH": os.pathsep.join(paths)},
            start_new_session=True,
        )
        assert process.stdin is not None
        with suppress(BrokenPipeError):  # it ended already: it is started again
            process.stdin.write(self.settings.model_dump_json().encode() + b"\n")
            process.stdin.flush()
        return process


class Crew:
    """Keeps a process at each post; one that ends is replaced."""

    def __init__(self, posts: Iterable[Post]) -> None:
        self._leaving = threading.Event()
        self._threads = [threading.Thread(target=self._fill, args=(post,)) for post in posts]
        for thread in self._threads:
            thread.start()

    def dismiss(self) -> None:
        """Let all processes end in good order: workers give their jobs back."""
        self._leaving.set()
        for thread in self._threads:
            thread.join()

    def _fill(self, post: Post) -> None:
        while not self._leaving.is_set():
            process = post.start()
            while process.poll() is None and not self._leaving.wait(0.2):
                pass
            assert process.stdin is not None
            with suppress(BrokenPipeError):
                process.stdin.close()
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            forget_process(process.pid)
            self._leaving.wait(AGAIN_S)
