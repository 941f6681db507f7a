"""A worker as a process: ``nas worker``, and those that ``nas serve`` starts.

Started by ``nas serve`` it reads its settings from stdin, and gives its job back and ends when
that pipe closes, so that no worker outlives its service.
"""

from __future__ import annotations

import signal
import sys
import threading

from service.homes import make_home
from service.logs import log_to_stderr
from service.runner import ProcessRunner
from service.settings import Settings
from service.store import open_store
from service.store.migrate import upgrade
from service.worker import Worker, worker_name


def run_worker(settings: Settings, stopping: threading.Event | None = None) -> None:
    """Work until the process is asked to end."""
    stopping = stopping or threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    make_home(settings)
    store = open_store(settings.url, settings.database_timeout_s)
    upgrade(store.database)
    store.database.reserve.keep()
    try:
        Worker(store, settings, ProcessRunner(settings), worker_name()).run(stopping)
    finally:
        store.database.close()


def main() -> None:
    """Work for the process at the other end of stdin."""
    log_to_stderr()
    settings = Settings.model_validate_json(sys.stdin.buffer.readline())
    stopping = threading.Event()

    def wait() -> None:
        while sys.stdin.buffer.read(1024):
            pass
        stopping.set()

    threading.Thread(target=wait, daemon=True).start()
    run_worker(settings, stopping)


if __name__ == "__main__":
    main()
