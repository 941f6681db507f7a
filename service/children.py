"""Processes of ours that are asked by lines and answer by lines, here or at a helper's.

What takes libraries that an API does without (torch, pyarrow, transformers), or might take too
much, is done by such a process. With ``NAS_HELPER`` set it is not begun here but by `nas helper`
(`service.helper`), which waits at a socket in the home folder that both share: an image of the API
then needs none of these libraries.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

from search_spaces.errors import NasError
from service.settings import Settings, environment_of_process

MODULES = ("service.api.space_reader", "service.data_preparing")
SOCKET_FILE = "helper.sock"
LONGEST_PLACE = 100  # bytes of a socket's path; systems take 104 to 108
CONNECTED_S = 5.0
LEFT = 1  # exit code that nobody is there to hear
ENDED = b"\0"  # before the exit code that a helper tells of; no line of JSON holds it


class LostError(Exception):
    """A process has ended, or gives no answer in time.

    Attributes:
        code: that it ended with, if it did and somebody knows.
    """

    def __init__(self, code: int | None = None) -> None:
        super().__init__(f"the process ended with {code}")
        self.code = code


class NoHelperError(NasError):
    """There is no helper.

    Args:
        what: that it does not do, or that befell it.
    """

    def __init__(self, what: str = "does not answer") -> None:
        super().__init__(
            f"the helper of this service {what}: try again in a moment; whoever runs the service "
            "starts it with nas helper"
        )


def begun(module: str, *lifelines: int) -> list[str]:
    """The command of such a process, which ends as `end_with_others` tells of these pipes."""
    return [sys.executable, "-m", module, *map(str, lifelines)]


def end_with_others() -> None:
    """Let such a process end at once, without a word, when nobody needs its answer any more.

    That is when the other side of its stdin closes, or one of the pipes that its command names,
    whose other side is held by whoever has begun it.
    """
    left = select.poll()
    for place in (sys.stdin.fileno(), *map(int, sys.argv[1:])):
        left.register(place, 0)  # that it hangs up is told even so

    def wait() -> None:
        left.poll()
        os._exit(LEFT)

    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # should it say something just then
    threading.Thread(target=wait, daemon=True).start()


def environment() -> dict[str, str]:
    """Of such a process: without secrets, and with one thread."""
    return environment_of_process() | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


def socket_place(home: Path) -> str:
    """Where the helper of a home waits.

    Raises:
        NasError: where the path is too long for a socket.
    """
    place = str(home / SOCKET_FILE)
    if len(os.fsencode(place)) > LONGEST_PLACE:
        raise NasError(
            f"{place} is too long for a socket ({LONGEST_PLACE} bytes at most): a service with a "
            "helper needs a home with a shorter path"
        )
    return place


def connected(home: Path) -> socket.socket:
    """A connection to the helper of a home.

    Raises:
        NoHelperError: when there is none.
        NasError: where the home's path is too long.
    """
    place, made = socket_place(home), socket.socket(socket.AF_UNIX)
    made.settimeout(CONNECTED_S)
    try:
        made.connect(place)
    except OSError as error:
        made.close()
        raise NoHelperError() from error
    made.settimeout(None)
    return made


class Child:
    """One such process.

    Args:
        settings: of the service.
        module: one of `MODULES`.

    Attributes:
        process: when it runs here.

    Raises:
        NoHelperError: when a helper is to run it and there is none.
    """

    def __init__(self, settings: Settings, module: str) -> None:
        self.process: subprocess.Popen[bytes] | None = None
        self._rest = b""
        if settings.helper:
            self._socket = connected(settings.home)
            self.send(module.encode())
            return
        self._socket, theirs = socket.socketpair()
        with theirs:
            self.process = subprocess.Popen(
                begun(module),
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                env=environment(),
                start_new_session=True,
            )

    def send(self, line: bytes) -> None:
        """Send a line; to one that has ended, for nothing: who reads from it will see."""
        with suppress(OSError):
            self._socket.sendall(line + b"\n")

    def read(self, wait_s: float) -> bytes:
        """The next line, without its end.

        Raises:
            LostError: when it has ended, or says nothing for so long.
            NoHelperError: when it has ended with its helper.
        """
        deadline = time.monotonic() + wait_s
        ready = select.poll()
        ready.register(self._socket, select.POLLIN)
        while b"\n" not in self._rest:
            if not ready.poll(max(0.0, deadline - time.monotonic()) * 1000):
                raise LostError()
            try:
                some = self._socket.recv(2**16)
            except ConnectionError:
                some = b""
            if not some:
                if self.process is None:
                    raise NoHelperError("was lost while it worked on this")
                raise LostError(self.process.wait())
            self._rest += some
        line, _, self._rest = self._rest.partition(b"\n")
        if ENDED in line:
            raise LostError(int(line.rpartition(ENDED)[2]))
        return line

    def end(self) -> None:
        """End it at once; a helper does so when the connection is closed."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
        self._socket.close()
