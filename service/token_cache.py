"""Remembers for a moment which tokens are good, so that not every request asks the database."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable

from service.auth import Token, digest_of

MOST_TOKENS = 1000


class TokenCache:
    """Good tokens by the digest of their secret, each for at most `fresh_s` seconds.

    A token that is revoked or expires is refused after that time at the latest. What is not good
    is never remembered: a token that was just made works at once, and guessing gains nothing.

    Args:
        look_up: gives the token with a digest, if it is good.
        fresh_s: seconds; with 0 every call looks it up.
        clock: seconds that only grow.
    """

    def __init__(
        self,
        look_up: Callable[[str], Token | None],
        fresh_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._look_up = look_up
        self._fresh_s = fresh_s
        self._clock = clock
        self._lock = threading.Lock()
        self._known: OrderedDict[str, tuple[Token, float]] = OrderedDict()

    def recent(self, secret: str) -> Token | None:
        """The token with that secret if it was good lately; asks nobody."""
        found = self._known.get(digest_of(secret))
        if found is None or self._clock() >= found[1]:
            return None
        return found[0]

    def valid(self, secret: str) -> Token | None:
        """The token with that secret, if it is good."""
        known = self.recent(secret)
        if known is not None:
            return known
        began, digest = self._clock(), digest_of(secret)  # it was good then, not when told
        token = self._look_up(digest)
        with self._lock:
            self._known.pop(digest, None)
            if token is not None:
                self._known[digest] = token, began + self._fresh_s
                if len(self._known) > MOST_TOKENS:
                    self._known.popitem(last=False)
        return token
