"""How often one client may ask, and how many streams it may hold open."""

from __future__ import annotations

import ipaddress
import threading
import time
from collections import OrderedDict
from collections.abc import Callable

MOST_KEYS = 10_000


IPV6_NETWORK = 64  # bits: what one customer gets, and can choose addresses from as often as asked


def network_of(address: str) -> str:
    """What limits for an address count by: itself, or for IPv6 the network it is in."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return address[:100]  # a proxy knows its clients by whatever name
    if found.version == 4:
        return address
    return str(ipaddress.ip_network((int(found), IPV6_NETWORK), strict=False))


class RateLimit:
    """A bucket for each key, filled evenly, that holds a minute's worth of requests.

    Buckets are of this process: with several API processes a client gets as many times more.

    Args:
        per_minute: requests.
        clock: seconds that only grow.
    """

    def __init__(self, per_minute: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._most = float(per_minute)
        self._clock = clock
        self._lock = threading.Lock()
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def wait_s(self, key: str, take: float = 1.0) -> float:
        """Take from the key's bucket.

        Args:
            key: whose bucket.
            take: how much; 0 only looks.

        Returns:
            0 when there was enough, otherwise the seconds until there will be.
        """
        with self._lock:
            now = self._clock()
            level, since = self._buckets.pop(key, (self._most, now))
            level = min(self._most, level + (now - since) * self._most / 60)
            enough = level >= max(take, 1.0)
            self._buckets[key] = (level - take if enough else level, now)
            if len(self._buckets) > MOST_KEYS:
                self._buckets.popitem(last=False)
            return 0.0 if enough else (1.0 - level) * 60 / self._most


class Streams:
    """Counts the open event streams of each token."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._open: dict[str, int] = {}

    def enter(self, key: str) -> bool:
        """Open one more, unless there are too many."""
        with self._lock:
            if self._open.get(key, 0) >= self._most:
                return False
            self._open[key] = self._open.get(key, 0) + 1
            return True

    def leave(self, key: str) -> None:
        """Close one."""
        with self._lock:
            self._open[key] -= 1
            if not self._open[key]:
                del self._open[key]

    @property
    def total(self) -> int:
        """How many are open."""
        with self._lock:
            return sum(self._open.values())
