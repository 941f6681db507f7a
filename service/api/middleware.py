"""What happens to every request: hosts and origins are checked, headers set, a line is logged."""

from __future__ import annotations

import logging
import random
import re
import time
from collections.abc import Collection, Iterable
from urllib.parse import urlsplit

import anyio
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.api.bounds import Bodies, GoneError, brings_file, network_of
from service.api.health import Metrics
from service.api.problems import ProblemError, problem_response, unexpected
from service.api.thread_pools import SAFE
from service.settings import API_PREFIX, Settings, is_loopback

RawHeader = tuple[bytes, bytes]

LONGEST_PATH = 200  # in the log
FEED = re.compile(r"(/feeds/[^/]*/).*", re.DOTALL)  # its key comes behind
HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Cache-Control": "no-store",
}
_RAW = [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]

LOOPBACK = ("127.0.0.1", "localhost", "::1")

log = logging.getLogger("service.requests")


class RequestMiddleware:
    """The outermost layer of the application."""

    def __init__(self, app: ASGIApp, settings: Settings, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics
        self._hosts = _hosts(settings)
        self._most = settings.max_body_bytes
        self._bodies = Bodies(self._most)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        identity = f"{random.getrandbits(64):016x}"  # to find it in the log by; no secret
        began = time.perf_counter()
        status: int | None = None  # of who leaves before there is an answer
        began_to_answer = False

        async def send_more(message: Message) -> None:
            nonlocal status, began_to_answer
            if message["type"] == "http.response.start":
                status, began_to_answer = message["status"], True
                message["headers"] = _with_ours(message.get("headers", ()), identity)
                self._count(scope, message["status"], time.perf_counter() - began)
            await send(message)

        try:
            await self._answer(scope, receive, send_more)
        except Exception:
            if began_to_answer:
                raise
            log.exception("unexpected error", extra={"request": identity})
            await unexpected()(scope, receive, send_more)
        finally:
            _log(scope, identity, status, time.perf_counter() - began)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let the application answer what it is to hear of."""
        refusal = self._refusal(scope)
        if refusal is not None or scope["method"] in SAFE or brings_file(scope):
            await (refusal or self._app)(scope, receive, send)
            return
        with self._bodies.holding(network_of(_client(scope))) as body:
            try:
                again = await body.read(Headers(scope=scope), receive)
            except ProblemError as error:
                answer = problem_response(error.status, error.detail, headers=error.headers)
                await answer(scope, receive, send)
            except GoneError:
                return
            else:
                await self._app(scope, again, send)

    def _refusal(self, scope: Scope) -> ASGIApp | None:
        """The answer to a request that was sent to another name, or by another site's page."""
        headers = Headers(scope=scope)
        host = _name(headers.get("host", ""))
        if self._hosts is not None and host not in self._hosts:
            detail = f"this service is not known as {host[:100]!r}; NAS_ALLOWED_HOSTS names others"
            return problem_response(421, detail)
        length = headers.get("content-length", "0")
        if length.isdecimal() and int(length) > self._most and not brings_file(scope):
            return problem_response(413, f"the body is larger than {self._most} bytes")
        origin = headers.get("origin")
        if scope["method"] in SAFE or origin is None:
            return None
        if _place(origin) != headers.get("host"):
            return problem_response(403, "a page of another site may not change anything here")
        return None

    def _count(self, scope: Scope, status: int, seconds: float) -> None:
        self._metrics.count(scope["method"], _route_of(scope), status, seconds)


class HeadMiddleware:
    """Answers HEAD wherever GET is answered: with the same headers, and no body."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self._app(scope, receive, send)
            return
        asked = {**scope, "method": "GET"}
        with anyio.CancelScope() as answering:

            async def send_headers(message: Message) -> None:
                if message["type"] != "http.response.start":
                    return
                scope.update({**asked, "method": "HEAD"})  # which route and token it was
                await send(message)
                await send({"type": "http.response.body"})
                answering.cancel()  # a stream would go on, a file would be read

            await self._app(asked, receive, send_headers)


def _route_of(scope: Scope) -> str:
    """The path of the route that answers, as its addresses begin; the framework cuts it off."""
    path = getattr(scope.get("route"), "path", "-")
    within = scope["path"].startswith(f"{API_PREFIX}/") and path != "-"
    return f"{API_PREFIX}{path}" if within and not path.startswith(API_PREFIX) else path


def _with_ours(given: Iterable[RawHeader], identity: str) -> list[RawHeader]:
    """The headers of a response and those of `HEADERS` that it has not set itself."""
    headers = list(given)
    names = {name.lower() for name, _ in headers}
    headers += [pair for pair in _RAW if pair[0] not in names]
    headers.append((b"x-request-id", identity.encode()))
    return headers


def _hosts(settings: Settings) -> Collection[str] | None:
    """Names the service answers to; None for any, where a proxy or the network decides.

    On a loopback address a page that has its own name point here must not get in. Names of this
    machine itself are always allowed: health checks use them.
    """
    if settings.allowed_hosts or is_loopback(settings.host):
        return {*LOOPBACK, *map(_name, (*settings.allowed_hosts, settings.host))}
    return None


def _place(origin: str) -> str | None:
    """Host and port of an Origin header; None where it is no address."""
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return None


def _client(scope: Scope) -> str:
    """The address that asks."""
    return str((scope.get("client") or ("?",))[0])


def _name(host: str) -> str:
    """The host of a Host header or of a setting, without its port, in small letters."""
    host = host.lower()
    if host.startswith("["):
        return host[1:].partition("]")[0]
    if host.count(":") > 1:  # an address as settings may have it
        return host
    return host.partition(":")[0]


def _log(scope: Scope, identity: str, status: int | None, seconds: float) -> None:
    token = scope.get("state", {}).get("token")
    log.info(
        "request",
        extra={
            "request": identity,
            "method": scope["method"],
            # Never the query, which may hold a token, nor the key of a feed.
            "path": FEED.sub(r"\1…", scope["path"])[:LONGEST_PATH],
            "status": status,
            "ms": round(1000 * seconds, 1),
            "token": getattr(token, "id", None),
            "client": _client(scope),
        },
    )
