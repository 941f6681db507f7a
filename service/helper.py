"""`nas helper`: begins processes for an API that does without the libraries that these take.

It waits at a socket in the home folder, which its owner alone may open. Who connects names a
module of `service.children.MODULES`, and speaks with a process of it from then on; the process
ends with the connection or the helper at the latest, and its exit code is the last that is told.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import threading
from collections.abc import Callable
from contextlib import suppress

from filelock import FileLock, Timeout

from nas.run.folder import LOOKING_S
from search_spaces.errors import UsageError
from service.children import CONNECTED_S, ENDED, MODULES, begun, environment, socket_place
from service.settings import Settings, make_home

LOCK_FILE = "helper.lock"
WAITING = 128  # connections that nobody has accepted yet


def help_api(settings: Settings, tell: Callable[[str], object]) -> None:
    """Help the API of a home until the process is asked to end.

    Args:
        settings: of the service.
        tell: called with the socket's path once it is there.

    Raises:
        UsageError: when another helper does so already.
        NasError: where the home's path is too long for a socket.
    """
    make_home(settings)
    place, lock = socket_place(settings.home), FileLock(settings.home / LOCK_FILE)
    try:
        lock.acquire(timeout=LOOKING_S)
    except Timeout:
        raise UsageError(f"{settings.home} has a helper already; one is enough") from None
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    processes: set[subprocess.Popen[bytes]] = set()
    lifeline, _held = os.pipe()  # closes when this process ends, however that happens
    with lock, socket.socket(socket.AF_UNIX) as door:
        with suppress(FileNotFoundError):  # of one that was killed
            os.unlink(place)
        before = os.umask(0o177)
        try:
            door.bind(place)
        finally:
            os.umask(before)
        door.listen(WAITING)
        tell(place)
        try:
            while True:
                came, _ = door.accept()
                given = came, processes, lifeline
                threading.Thread(target=_attend, args=given, daemon=True).start()
        except KeyboardInterrupt:
            pass
        finally:
            os.unlink(place)
            while processes:
                processes.pop().kill()


def _attend(came: socket.socket, processes: set[subprocess.Popen[bytes]], lifeline: int) -> None:
    """Begin what somebody asks for, and see it to its end."""
    with came:
        came.settimeout(CONNECTED_S)
        module = _first_line(came)
        if module not in MODULES:
            return
        came.settimeout(None)
        process = subprocess.Popen(
            begun(module, lifeline),
            pass_fds=(lifeline,),
            stdin=came.fileno(),
            stdout=came.fileno(),
            env=environment(),
            start_new_session=True,
        )
        processes.add(process)
        left = select.poll()
        left.register(came, select.POLLRDHUP)
        threading.Thread(target=_end_when_left, args=(left, process), daemon=True).start()
        code = process.wait()
        if process in processes:  # it was not the helper who ended it
            processes.discard(process)
            with suppress(OSError):
                came.sendall(ENDED + str(code).encode() + b"\n")
        with suppress(OSError):
            came.shutdown(socket.SHUT_RDWR)  # which wakes who waits for that


def _first_line(came: socket.socket) -> str:
    """Byte by byte, so that nothing behind it is taken from the process; "" where none comes."""
    longest, found = max(map(len, MODULES)) + 1, bytearray()
    with suppress(OSError):
        while len(found) < longest and (byte := came.recv(1)):
            if byte == b"\n":
                return found.decode(errors="replace")
            found += byte
    return ""


def _end_when_left(left: select.poll, process: subprocess.Popen[bytes]) -> None:
    left.poll()
    process.kill()
