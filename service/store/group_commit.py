"""Several writers' work in one transaction."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, TypeVar

from sqlalchemy import Connection

T = TypeVar("T")
Work = Callable[[Connection], Any]
Transaction = Callable[[], AbstractContextManager[Connection]]


class _Item:
    """Work that waits, and later what came of it."""

    def __init__(self, work: Work) -> None:
        self.work = work
        self.done = False
        self.result: Any = None
        self.error: BaseException | None = None

    def run(self, connection: Connection) -> None:
        """Do the work behind a savepoint."""
        try:
            with connection.begin_nested():
                self.result = self.work(connection)
        except Exception as error:
            self.error = error


class GroupCommit:
    """Collects work while somebody writes; whoever is next does all of it at once.

    Args:
        writers: held while a transaction writes.
    """

    def __init__(self, writers: AbstractContextManager[Any]) -> None:
        self._writers = writers
        self._guard = threading.Lock()
        self._waiting: list[_Item] = []

    def do(self, work: Callable[[Connection], T], transaction: Transaction) -> T:
        """Do the work, in a transaction of whoever writes next.

        Args:
            work: is called once.
            transaction: begins one, and keeps or undoes it.

        Raises:
            Exception: what the work has raised; or what went wrong with the transaction, and then
                nothing of it was kept.
        """
        mine = _Item(work)
        with self._guard:
            self._waiting.append(mine)
        with self._writers:
            if not mine.done:
                self._do_all(transaction)
        if mine.error is not None:
            raise mine.error
        return mine.result  # type: ignore[no-any-return]

    def _do_all(self, transaction: Transaction) -> None:
        with self._guard:
            items, self._waiting = self._waiting, []
        try:
            with transaction() as connection:
                for item in items:
                    item.run(connection)
        except BaseException as error:
            for item in items:
                item.error = error
            if not isinstance(error, Exception):
                raise
        finally:
            for item in items:
                item.done = True
