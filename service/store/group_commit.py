"""Several writers' values in one transaction."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Generic, TypeVar

from sqlalchemy import Connection

V = TypeVar("V")
R = TypeVar("R")
Transaction = Callable[[], AbstractContextManager[Connection]]


class _Item(Generic[V, R]):
    """A value that waits to be written, and later what came of it."""

    def __init__(self, value: V) -> None:
        self.value = value
        self.results: list[R] = []  # one, once it is written
        self.error: BaseException | None = None
        self.leads = False  # whether its thread is the one that writes all that waits
        self._told = threading.Event()

    def tell(self, *, leads: bool = False) -> None:
        """Let its thread go on: the work is done, or it is its thread's turn to do it."""
        self.leads = leads
        self._told.set()

    def wait(self) -> None:
        """Wait to be told."""
        self._told.wait()


class GroupCommit(Generic[V, R]):
    """Collects values while a transaction is under way; the next one writes all of them.

    Seeing a transaction to the disk takes longer than what most of them write. One of the threads
    that wait leads: it writes what all of them came with, and then names one of those that have
    come in the meantime. So none does others' work for ever, and none waits for anything but the
    transaction that its value is in.

    Args:
        transaction: begins one, and keeps or undoes it.
        write: writes values, and gives a result for each, in their order.
    """

    def __init__(
        self,
        transaction: Transaction,
        write: Callable[[Connection, Sequence[V]], Sequence[R]],
    ) -> None:
        self._transaction = transaction
        self._write = write
        self._guard = threading.Lock()
        self._busy = False
        self._waiting: list[_Item[V, R]] = []

    def do(self, value: V) -> R:
        """Write a value, in one transaction with those of others.

        Raises:
            Exception: what went wrong with the transaction; then nothing of it is sure to be kept.
        """
        mine: _Item[V, R] = _Item(value)
        with self._guard:
            self._waiting.append(mine)
            mine.leads, self._busy = not self._busy, True
        if not mine.leads:
            mine.wait()
        if mine.leads:
            self._lead(mine)
        if mine.error is not None:
            raise mine.error
        return mine.results[0]

    def _lead(self, mine: _Item[V, R]) -> None:
        items: list[_Item[V, R]] = []
        try:
            with self._transaction() as connection:
                with self._guard:  # not before: more have come while the transaction had to wait
                    items, self._waiting = self._waiting, []
                results = self._write(connection, [item.value for item in items])
            for item, result in zip(items, results, strict=True):
                item.results.append(result)
        except BaseException as error:
            self._fail(mine, items, error)
            if not isinstance(error, Exception):
                raise
        finally:
            self._hand_over()
            for item in items:
                if item is not mine:
                    item.tell()

    def _fail(self, mine: _Item[V, R], items: list[_Item[V, R]], error: BaseException) -> None:
        """Tell all of them; what the leader came with is not to be tried by another."""
        with self._guard:
            if mine in self._waiting:
                self._waiting.remove(mine)
        for item in (mine, *items):
            item.error = error

    def _hand_over(self) -> None:
        with self._guard:
            following = self._waiting[0] if self._waiting else None
            self._busy = following is not None
        if following is not None:
            following.tell(leads=True)
