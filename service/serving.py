"""Runs the whole service on one machine: the API here, workers beside it."""

from __future__ import annotations

import importlib
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress

import uvicorn

from search_spaces.errors import UsageError
from service.app import create_app
from service.auth import Role, digest_of, new_token
from service.logs import log_to_stderr
from service.runner import ROOT
from service.settings import Settings
from service.store import Store, open_store
from service.store.migrate import upgrade

FIRST = "admin"
STOP_S = 10.0
AGAIN_S = 1.0  # before a worker that ended is started again


def prepare(settings: Settings) -> tuple[Store, str | None]:
    """Make folders and tables.

    Returns:
        The store, and the first token where there was none before.
    """
    settings.home.mkdir(mode=0o700, parents=True, exist_ok=True)
    for name in ("runs", "data", "spaces", "logs", "cache"):
        (settings.home / name).mkdir(exist_ok=True)
    store = open_store(settings.url)
    upgrade(store.database)
    if settings.no_auth or store.tokens.count():
        return store, None
    token, secret = new_token(FIRST, Role.admin)
    store.tokens.add(token, digest_of(secret))
    return store, secret


def serve(settings: Settings, workers: int, tell: Callable[[str, str | None], None]) -> None:
    """Serve until the process is asked to end.

    Args:
        settings: of the service.
        workers: how many to start; they end with this process.
        tell: called with the address and the first token once connections are accepted.
    """
    listening = listen(settings.host, settings.port)  # before a token is made that nobody would see
    log_to_stderr()
    store, secret = prepare(settings)
    config = server_config(settings, store)
    bound = settings.model_copy(update={"port": listening.getsockname()[1]})
    crew = Crew(settings, workers)
    threading.Thread(target=_warm_up, daemon=True).start()
    try:
        tell(bound.address, secret)
        uvicorn.Server(config).run(sockets=[listening])
    finally:
        crew.dismiss()


def _warm_up() -> None:
    """Load what only some routes need, so that the first who asks does not wait for it."""
    importlib.import_module("nas.live_front")


def server_config(settings: Settings, store: Store) -> uvicorn.Config:
    """How the API is served; addresses of clients are those of their connections."""
    return uvicorn.Config(
        create_app(settings, store),
        host=settings.host,
        port=settings.port,
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=2,
    )


def listen(host: str, port: int) -> socket.socket:
    """Take a port, any free one for 0.

    Raises:
        UsageError: when it cannot be had.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        raise UsageError(
            f"nothing can listen on {host}, port {port}: {error.strerror}; choose another one with "
            "--port"
        ) from None


class Crew:
    """Worker processes; one that ends is started again."""

    def __init__(self, settings: Settings, size: int) -> None:
        self._settings = settings
        self._leaving = threading.Event()
        self._threads = [threading.Thread(target=self._employ) for _ in range(size)]
        for thread in self._threads:
            thread.start()

    def dismiss(self) -> None:
        """Let all workers give back their jobs and end."""
        self._leaving.set()
        for thread in self._threads:
            thread.join()

    def _employ(self) -> None:
        while not self._leaving.is_set():
            process = self._start()
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
            self._leaving.wait(AGAIN_S)

    def _start(self) -> subprocess.Popen[bytes]:
        environment = dict(os.environ)
        paths = [str(ROOT), *filter(None, [environment.get("PYTHONPATH")])]
        process = subprocess.Popen(
            [sys.executable, "-m", "service.worker_process"],
            stdin=subprocess.PIPE,
            env=environment | {"PYTHONPATH": os.pathsep.join(paths)},
            start_new_session=True,
        )
        assert process.stdin is not None
        with suppress(BrokenPipeError):  # it ended already: it is started again
            process.stdin.write(self._settings.model_dump_json().encode() + b"\n")
            process.stdin.flush()
        return process
