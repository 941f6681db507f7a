"""Delivers to webhooks: signed, to public addresses only, and within bounds.

Signatures are those of Standard Webhooks (https://www.standardwebhooks.com), for which libraries
exist: HMAC-SHA256 of ``ID.TIMESTAMP.BODY`` with the bytes of the secret.

An owner chooses where we connect to, so a name is resolved once, its addresses are checked, and the
connection goes to the address that was checked, whatever the name stands for a moment later; the
certificate is still the name's. Redirects and proxies of the environment are not followed. All of
it takes `TOTAL_S` at most, and of an answer `MOST_BYTES` are read. A status that has come counts,
whatever becomes of the words behind it.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import ipaddress
import logging
import socket
import ssl
import time
from dataclasses import dataclass
from functools import partial

import anyio
import anyio.to_thread
import httpx
from anyio import CapacityLimiter, Semaphore

from search_spaces.errors import NasError, UsageError
from service.jobs.database import DatabaseAwayError
from service.jobs.outbox import LEASE_S, SECRET, Outbox, Sending

TOTAL_S = 10.0
CONNECT_S = 3.0  # to one of a name's addresses while there are more
MOST_BYTES = 2048
SHOWN = 200  # characters of an answer
AT_ONCE = 4  # deliveries of one process
LOOK_S = 1.0  # between two looks for something to deliver
USER_AGENT = "nas-service-webhook"

log = logging.getLogger("service.webhooks")


class _RefusedError(NasError):
    """Nothing is sent there."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of sending.

    Attributes:
        status: of HTTP; None where no answer came.
        text: the first words of the answer, or why there was none.
    """

    status: int | None
    text: str

    @property
    def good(self) -> bool:
        """Whether the message has arrived."""
        return self.status is not None and 200 <= self.status < 300


def check_url(url: str, *, private: bool) -> str:
    """The address of a webhook; where its name leads to is looked at before each delivery.

    Raises:
        UsageError: when it cannot be one.
    """
    example = "give an address such as https://example.org/hooks/nas"
    try:
        parts = httpx.URL(url)
    except (httpx.InvalidURL, ValueError) as error:
        raise UsageError(f"the webhook is no address ({error}); {example}") from None
    if parts.scheme not in ("http", "https") or not parts.host:
        raise UsageError(f"the webhook is {url[:100]!r}; {example}")
    if parts.port is not None and not 0 < parts.port < 65536:
        raise UsageError(f"the webhook has the port {parts.port}; ports are 1 to 65535")
    if parts.userinfo or parts.fragment:
        raise UsageError(f"the webhook has a user, a password or a # in its address; {example}")
    try:
        ipaddress.ip_address(parts.host)
    except ValueError:
        return str(parts)
    if not private and not is_public(parts.host):
        raise UsageError(_not_public(parts.host, parts.host))
    return str(parts)


def is_public(address: str) -> bool:
    """Whether an address is one of the internet, and not of this machine or a network around it."""
    ip = ipaddress.ip_address(address)
    if ip.is_multicast or ip.is_reserved or not ip.is_global:
        return False
    if isinstance(ip, ipaddress.IPv6Address) and ip.is_site_local:
        return False
    inside = ip.sixtofour if isinstance(ip, ipaddress.IPv6Address) else None
    return inside is None or is_public(str(inside))


def _not_public(name: str, address: str) -> str:
    where = name if name == address else f"{name} leads to {address}, which"
    return (
        f"{where} is no address of the internet; webhooks of this machine and of private networks "
        "need NAS_WEBHOOK_PRIVATE=1 from the service's administrator"
    )


def signature(secret: str, identity: str, timestamp: int, body: bytes) -> str:
    """The header ``webhook-signature``."""
    key = base64.b64decode(secret.removeprefix(SECRET))
    signed = f"{identity}.{timestamp}.".encode() + body
    return "v1," + base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode()


@dataclass(slots=True)
class _Heard:
    """What has come of an answer so far."""

    status: int | None = None
    body: bytes = b""

    async def read(self, answer: httpx.Response) -> None:
        """Take in its status, and its first words."""
        self.status = answer.status_code
        if answer.is_redirect:
            self.body = b"it redirects elsewhere, which is not followed"
            return
        async for chunk in answer.aiter_raw():
            self.body += chunk
            if len(self.body) >= MOST_BYTES:
                return


async def send(sending: Sending, tls: ssl.SSLContext, *, private: bool) -> Answer:
    """Send a message once.

    Args:
        sending: the message.
        tls: how certificates are checked.
        private: whether addresses that are not public are allowed.
    """
    heard, problem = _Heard(), ""
    try:
        with anyio.fail_after(TOTAL_S):
            await _post(sending, tls, private, heard)
    except TimeoutError:
        problem = f"there was no whole answer within {TOTAL_S:g} s"
    except _RefusedError as error:
        problem = str(error)
    except Exception as error:  # whatever is wrong with an address, its owner is told
        problem = f"nothing could be sent ({_plain(f'{type(error).__name__}: {error}')})"
        if heard.status is None:
            log.info("a message was not sent", extra={"delivery": sending.id}, exc_info=True)
    if heard.status is None:
        return Answer(None, problem)
    return Answer(heard.status, _plain(heard.body[:MOST_BYTES].decode(errors="replace")))


async def _post(sending: Sending, tls: ssl.SSLContext, private: bool, heard: _Heard) -> None:
    url = httpx.URL(sending.url)
    body, now = sending.body.encode(), int(time.time())
    headers = {
        "Host": url.netloc.decode(),
        "Content-Type": "application/json",
        "Accept-Encoding": "identity",
        "User-Agent": USER_AGENT,
        "webhook-id": sending.id,
        "webhook-timestamp": str(now),
        "webhook-signature": signature(sending.secret, sending.id, now, body),
    }
    async with httpx.AsyncClient(verify=tls, trust_env=False, timeout=TOTAL_S) as client:
        unreachable: Exception | None = None
        addresses = await _addresses(url, private)
        for number, address in enumerate(addresses, 1):
            # Not so long for one that others may stand in for.
            times = httpx.Timeout(TOTAL_S, connect=CONNECT_S if number < len(addresses) else None)
            there = url.copy_with(host=address)
            named = {"sni_hostname": url.raw_host.decode()}
            try:
                async with client.stream(
                    "POST", there, content=body, headers=headers, extensions=named, timeout=times
                ) as answer:
                    await heard.read(answer)
                    return
            except (httpx.ConnectError, httpx.ConnectTimeout) as error:
                unreachable = error
    assert unreachable is not None  # a name without addresses is an OSError
    raise unreachable


async def _addresses(url: httpx.URL, private: bool) -> list[str]:
    """What a name stands for now.

    Raises:
        _RefusedError: when any of it may not be connected to.
        OSError: when the name is not known.
    """
    port = url.port or (443 if url.scheme == "https" else 80)
    name = url.raw_host.decode().strip("[]")
    found = await anyio.getaddrinfo(name, port, type=socket.SOCK_STREAM)
    addresses = list(dict.fromkeys(str(place[0]) for *_, place in found))
    for address in addresses:
        if not private and not is_public(address):
            raise _RefusedError(_not_public(url.host, address))
    return addresses


def _plain(text: str) -> str:
    """The first words of a text, in one line that any screen can show."""
    return "".join(c if c.isprintable() else " " for c in text)[:SHOWN].strip()


class Deliverer:
    """Delivers what waits in the outbox, beside other processes that do.

    Args:
        outbox: of what is to be delivered.
        private: whether addresses that are not public are allowed.
    """

    def __init__(self, outbox: Outbox, *, private: bool) -> None:
        self._outbox = outbox
        self._private = private

    async def run(self) -> None:
        """Deliver until this is cancelled."""
        places, tls = Semaphore(AT_ONCE), httpx.create_ssl_context(trust_env=False)
        threads = CapacityLimiter(AT_ONCE + 1)
        async with anyio.create_task_group() as group:
            while True:
                await places.acquire()
                claimed_at = time.monotonic()
                sending = await self._claim(threads)
                if sending is None:
                    places.release()
                    await anyio.sleep(LOOK_S)
                    continue
                group.start_soon(self._deliver, sending, claimed_at, tls, threads, places)

    async def _claim(self, threads: CapacityLimiter) -> Sending | None:
        try:
            return await anyio.to_thread.run_sync(self._outbox.claim, limiter=threads)
        except DatabaseAwayError as error:
            log.warning("waiting for the database", extra={"error": str(error)[:200]})
        except Exception:
            log.exception("no message could be taken")
        return None

    async def _deliver(
        self,
        sending: Sending,
        claimed_at: float,
        tls: ssl.SSLContext,
        threads: CapacityLimiter,
        places: Semaphore,
    ) -> None:
        try:
            if time.monotonic() - claimed_at > LEASE_S - TOTAL_S:
                return  # this process was frozen: it is somebody else's, or will be
            answer = await send(sending, tls, private=self._private)
            finish = partial(self._outbox.finish, sending, answer.status, answer.text)
            noted = await anyio.to_thread.run_sync(
                partial(finish, good=answer.good), limiter=threads
            )
            told = {"delivery": sending.id, "owner": sending.owner, "status": answer.status}
            log.info("webhook", extra={**told, "noted": noted, "tries": sending.tries})
        except DatabaseAwayError as error:  # it is sent again after its lease
            log.warning("a delivery is not noted", extra={"error": str(error)[:200]})
        except Exception:
            log.exception("a delivery went wrong", extra={"delivery": sending.id})
        finally:
            places.release()
