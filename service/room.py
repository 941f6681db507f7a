"""How many connections may be open, and who has to go for another one.

When there are as many as the process has files for, the one that has kept us waiting longest is
closed, so that half a request never stands in the way of a whole one.
"""

from __future__ import annotations

import asyncio
import logging
import resource
from collections import Counter, OrderedDict
from collections.abc import Sequence
from ipaddress import IPv4Network, IPv6Network, ip_address
from typing import Protocol

FILES_FOR_OTHERS = 128  # of the database, of run folders, of processes
MOST, MOST_OF_ONE = 2000, 512

TELL_S = 1.0  # between two lines about clients that were cut off
SHOWN = 5  # of their addresses

log = logging.getLogger("service.connections")


class Guest(Protocol):
    """A connection.

    Attributes:
        address: of its client.
        name: what limits for that address count by.
        loop: it is served by.
    """

    address: str
    name: str
    loop: asyncio.AbstractEventLoop

    def cut_off(self, reason: str) -> None:
        """Close it."""


def most_connections() -> int:
    """How many may be open; as many again may come at once before some of them are closed."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if files == resource.RLIM_INFINITY:
        return MOST
    return max(8, min(MOST, (files - FILES_FOR_OTHERS) // 2))


class Room:
    """The open connections of a process.

    Args:
        most: how many there may be.
        most_of_one: how many of one address; proxies may have all.
        proxies: networks of those.
    """

    def __init__(
        self,
        most: int,
        most_of_one: int = MOST_OF_ONE,
        proxies: Sequence[IPv4Network | IPv6Network] = (),
    ) -> None:
        self._most = most
        self._most_of_one = min(most_of_one, max(1, most // 2))
        self._proxies = proxies
        self._open: Counter[str] = Counter()
        self._total = 0
        # Those that we wait for, the one that we wait for longest first: all, and by address.
        self._waiting: OrderedDict[Guest, None] = OrderedDict()
        self._waiting_of: dict[str, OrderedDict[Guest, None]] = {}
        self._cut: Counter[str] = Counter()
        self._clients: set[str] = set()
        self._telling = False

    def enter(self, guest: Guest) -> None:
        """Count a connection that was opened; somebody may have to go for it."""
        name = guest.name
        self._open[name] += 1
        self._total += 1
        self.wait_for(guest)
        if self._total > self._most:
            next(iter(self._waiting)).cut_off("too many connections are open")
        elif self._open[name] > self._most_of_one and not self._is_proxy(guest.address):
            reason = "too many connections of this address are open"
            next(iter(self._waiting_of[name])).cut_off(reason)

    def leave(self, guest: Guest) -> None:
        """Forget a connection that was closed."""
        self.serve(guest)
        self._total -= 1
        self._open[guest.name] -= 1
        if not self._open[guest.name]:
            del self._open[guest.name]

    def wait_for(self, guest: Guest) -> None:
        """Nothing can be done for a connection until its client sends something."""
        self._waiting[guest] = None
        self._waiting_of.setdefault(guest.name, OrderedDict())[guest] = None

    def serve(self, guest: Guest) -> None:
        """There is something to do for a connection."""
        self._waiting.pop(guest, None)
        others = self._waiting_of.get(guest.name)
        if others is not None:
            others.pop(guest, None)
            if not others:
                del self._waiting_of[guest.name]

    def note(self, guest: Guest, reason: str) -> None:
        """Log that a client was cut off; those that follow within a second in one line."""
        self._cut[reason] += 1
        if len(self._clients) < SHOWN:
            self._clients.add(guest.name)
        if not self._telling:
            self._tell(guest.loop)

    def _tell(self, loop: asyncio.AbstractEventLoop) -> None:
        self._telling = bool(self._cut)
        if self._telling:
            extra = {"reasons": dict(self._cut), "clients": sorted(self._clients)}
            log.warning("clients were cut off", extra=extra)
            self._cut.clear()
            self._clients.clear()
            loop.call_later(TELL_S, self._tell, loop)

    def _is_proxy(self, address: str) -> bool:
        return any(ip_address(address) in network for network in self._proxies)
