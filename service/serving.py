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
from service.api.bounds import Streams
from service.api.connections import protocol
from service.app import create_app
from service.auth import Role, digest_of, new_token
from service.children import socket_place
from service.home import open_home
from service.jobs.retention import tell_unknown
from service.jobs.store import Store
from service.logs import log_to_stderr
from service.settings import Settings, environment_of_process

FIRST = "admin"
LOOK_S = 0.2  # between two looks at a worker's process
STOP_S = 10.0  # for a worker to give its job back and end
AGAIN_S = 1.0  # before a process that ended is started again


def prepare(settings: Settings) -> tuple[Settings, Store, str | None]:
    """Make folders and tables, and log what does not belong together.

    Returns:
        The settings with the home as its jobs name it, the store, and the first token where there
        was none before.

    Raises:
        NasError: as `service.home.open_home` does.
    """
    settings, store = open_home(settings)
    store.database.reserve.keep()
    tell_unknown(store, settings)
    if settings.no_auth or store.tokens.count():
        return settings, store, None
    token, secret = new_token(FIRST, Role.admin)
    store.tokens.add(token, digest_of(secret))
    return settings, store, secret


def serve(settings: Settings, workers: int, tell: Callable[[Settings, str | None], None]) -> None:
    """Serve until the process is asked to end.

    Args:
        settings: of the service.
        workers: how many to start; they end with this process.
        tell: called with the settings, the port that it got among them, and the first token once
            connections are accepted.

    Raises:
        UsageError: when an evaluator is not there, the port cannot be had, or the home was moved.
        NasError: when a helper is to be asked and the home's path is too long for its socket.
    """
    if settings.helper:
        socket_place(settings.home)  # refused here, not by the first request
    settings.check_evaluators()  # like the port, before a token is made that nobody would see
    with listen(settings.host, settings.port) as listening:
        log_to_stderr()
        settings, store, secret = prepare(settings)
        server = make_server(settings, store)
        bound = settings.model_copy(update={"port": listening.getsockname()[1]})
        supervisor = Supervisor(settings, workers)
        threading.Thread(target=warm_up, daemon=True).start()
        try:
            tell(bound, secret)
            server.run(sockets=[listening])
        finally:
            supervisor.close()


def warm_up() -> None:
    """Load what only some routes need, so that the first who asks does not wait for it."""
    importlib.import_module("nas.results.partial_front")


class _Server(uvicorn.Server):
    """Ends its event streams before it waits for answers to be whole."""

    def __init__(self, config: uvicorn.Config, streams: Streams) -> None:
        super().__init__(config)
        self._streams = streams

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._streams.closed = True
        await super().shutdown(sockets)


def make_server(settings: Settings, store: Store) -> uvicorn.Server:
    """What serves the API; only proxies that are named are believed who is asking."""
    proxies, app = settings.trusted_proxies, create_app(settings, store)
    config = uvicorn.Config(
        app,
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
    return _Server(config, app.state.context.streams)


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
