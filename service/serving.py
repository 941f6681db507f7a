"""Runs the whole service on one machine: the API here, workers beside it."""

from __future__ import annotations

import importlib
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress

import uvicorn

from search_spaces.errors import UsageError
from service.api.connections import protocol
from service.app import create_app
from service.auth import Role, digest_of, new_token
from service.children import socket_place
from service.jobs.migrate import upgrade
from service.jobs.store import Store, open_store
from service.logs import log_to_stderr
from service.settings import Settings, environment_of_process, make_home

FIRST = "admin"
LOOK_S = 0.2  # between two looks at a worker's process
STOP_S = 10.0  # for a worker to give its job back and end
AGAIN_S = 1.0  # before a process that ended is started again


def prepare(settings: Settings) -> tuple[Store, str | None]:
    """Make folders and tables.

    Returns:
        The store, and the first token where there was none before.
    """
    make_home(settings)
    store = open_store(settings.url, settings.database_timeout_s)
    upgrade(store.database)
    store.database.reserve.keep()
    if settings.no_auth or store.tokens.count():
        return store, None
    token, secret = new_token(FIRST, Role.admin)
    store.tokens.add(token, digest_of(secret))
    return store, secret


def serve(settings: Settings, workers: int, tell: Callable[[Settings, str | None], None]) -> None:
    """Serve until the process is asked to end.

    Args:
        settings: of the service.
        workers: how many to start; they end with this process.
        tell: called with the settings, the port that it got among them, and the first token once
            connections are accepted.

    Raises:
        UsageError: when an evaluator is not there, or the port cannot be had.
        NasError: when a helper is to be asked and the home's path is too long for its socket.
    """
    if settings.helper:
        socket_place(settings.home)  # refused here, not by the first request
    settings.check_evaluators()  # like the port, before a token is made that nobody would see
    with listen(settings.host, settings.port) as listening:
        log_to_stderr()
        store, secret = prepare(settings)
        config = server_config(settings, store)
        bound = settings.model_copy(update={"port": listening.getsockname()[1]})
        supervisor = Supervisor(settings, workers)
        threading.Thread(target=warm_up, daemon=True).start()
        try:
            tell(bound, secret)
            uvicorn.Server(config).run(sockets=[listening])
        finally:
            supervisor.close()


def warm_up() -> None:
    """Load what only some routes need, so that the first who asks does not wait for it."""
    importlib.import_module("nas.results.partial_front")


def server_config(settings: Settings, store: Store) -> uvicorn.Config:
    """How the API is served; only proxies that are named are believed who is asking."""
    proxies = settings.trusted_proxies
    return uvicorn.Config(
        create_app(settings, store),
        host=settings.host,
        port=settings.port,
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=bool(proxies),
        forwarded_allow_ips=[str(network) for network in proxies],
        http=protocol(settings),  # type: ignore[arg-type]  # anything that makes a protocol
        ws="none",
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


class Supervisor:
    """Keeps worker processes beside this one: restarts them on exit, stops them on shutdown.

    Args:
        settings: of the service; each process reads them from its stdin, and ends when that closes.
        workers: how many.
    """

    def __init__(self, settings: Settings, workers: int) -> None:
        self._settings = settings
        self._leaving = threading.Event()
        self._threads = [threading.Thread(target=self._keep_one) for _ in range(workers)]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Let all processes end in good order: workers give their jobs back."""
        self._leaving.set()
        for thread in self._threads:
            thread.join()

    def _keep_one(self) -> None:
        while not self._leaving.is_set():
            process = self._start()
            while process.poll() is None and not self._leaving.wait(LOOK_S):
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
        process = subprocess.Popen(
            [sys.executable, "-m", "service.worker.worker"],
            stdin=subprocess.PIPE,
            env=environment_of_process(trusted=True),
            start_new_session=True,
        )
        assert process.stdin is not None
        with suppress(BrokenPipeError):  # it ended already: it is started again
            process.stdin.write(self._settings.model_dump_json().encode() + b"\n")
            process.stdin.flush()
        return process
