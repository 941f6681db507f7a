"""Stops a job's process when its worker does not know for sure any more that the job is its own."""

from __future__ import annotations

import threading
import time
from types import TracebackType
from typing import Self

from service.jobs import LeaseLostError
from service.runner import Child


class Watchdog:
    """Watches a lease in a thread of its own, whatever the worker is waiting for.

    Args:
        lease_s: seconds after which a lease that was not confirmed counts as lost.
        confirmed_at: when it was confirmed last, by the monotonic clock.
    """

    def __init__(self, lease_s: float, confirmed_at: float) -> None:
        self._lease_s = lease_s
        self._until = confirmed_at + lease_s
        self._changed = threading.Condition()
        self._child: Child | None = None
        self._leaving = False
        self._expired = False
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self._changed:
            self._leaving = True
            self._changed.notify()
        self._thread.join()

    def confirm(self, at: float) -> None:
        """The lease was confirmed by a request that was sent at that moment."""
        with self._changed:
            self._until = at + self._lease_s

    def guard(self, child: Child) -> None:
        """Stop this process when the lease is lost.

        Raises:
            LeaseLostError: when it is lost already.
        """
        with self._changed:
            self._child = child
        self.check()

    def check(self) -> None:
        """See that the lease still holds.

        Raises:
            LeaseLostError: when it was not confirmed in time.
        """
        with self._changed:
            self._expired = self._expired or time.monotonic() >= self._until
            if self._expired:
                raise LeaseLostError(
                    f"the database did not confirm the lease for {self._lease_s:g} s"
                )

    def _watch(self) -> None:
        with self._changed:
            while not self._leaving and (left := self._until - time.monotonic()) > 0:
                self._changed.wait(left)
            if self._leaving:
                return
            self._expired = True
            child = self._child
        if child is not None:
            child.stop(0.0)
