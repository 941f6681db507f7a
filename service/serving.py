"""Runs the whole service on one machine: the API here, workers beside it."""

from __future__ import annotations

import importlib
import socket
import threading
import time
from collections.abc import Callable

import uvicorn

from search_spaces.errors import UsageError
from service.app import create_app
from service.auth import Role, digest_of, new_token
from service.connections import protocol
from service.crew import Crew, Post
from service.homes import make_home
from service.logs import log_to_stderr
from service.settings import Settings
from service.store import Store, open_store
from service.store.migrate import upgrade

FIRST = "admin"
RELEASE_S = 3.0  # for processes of a service that was killed to let go of its port


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


def serve(settings: Settings, workers: int, tell: Callable[[str, str | None], None]) -> None:
    """Serve until the process is asked to end.

    Args:
        settings: of the service.
        workers: how many to start; they end with this process, as further API processes do.
        tell: called with the address and the first token once connections are accepted.
    """
    listening = take_port(settings)  # before a token is made that nobody would see
    log_to_stderr()
    store, secret = prepare(settings)
    config = server_config(settings, store)
    bound = settings.model_copy(update={"port": listening.getsockname()[1]})
    posts = [Post(settings, "service.worker_process")] * workers
    crew = Crew([*posts, *[Post(bound, "service.api_process")] * (settings.api_processes - 1)])
    threading.Thread(target=warm_up, daemon=True).start()
    try:
        tell(bound.address, secret)
        uvicorn.Server(config).run(sockets=[listening])
    finally:
        crew.dismiss()


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


def take_port(settings: Settings) -> socket.socket:
    """Take the service's port for this process, or for all its API processes.

    The system spreads connections over the sockets of one port. Other services keep away from it,
    and so do we from theirs; what is left of a service that was killed has a moment to go.

    Raises:
        UsageError: when it cannot be had.
    """
    host, port = settings.host, settings.port
    if settings.api_processes == 1:
        return listen(host, port)
    deadline = time.monotonic() + RELEASE_S
    while True:
        try:
            with listen(host, port) as alone:
                port = alone.getsockname()[1]
            return listen(host, port, shared=True)
        except UsageError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def listen(host: str, port: int, *, shared: bool = False) -> socket.socket:
    """Take a port, any free one for 0; a shared one together with others who say so.

    Raises:
        UsageError: when it cannot be had.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=2048, reuse_port=shared)
    except OSError as error:
        raise UsageError(
            f"nothing can listen on {host}, port {port}: {error.strerror}; choose another one with "
            "--port"
        ) from None
