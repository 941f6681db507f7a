"""Values of several threads in one transaction, and whose turn it is to write."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from service.store.group_commit import GroupCommit
from service.store.turns import SUFFIX, Turns


class Book:
    """Keeps what was committed; its first transaction waits until it is let go."""

    def __init__(self) -> None:
        self.begun, self.let_go = threading.Event(), threading.Event()
        self.batches: list[list[int]] = []
        self.refused: set[int] = set()

    @contextmanager
    def transaction(self) -> Iterator[Any]:
        yield None

    def write(self, _: Any, values: Sequence[int]) -> list[int]:
        if not self.begun.is_set():
            self.begun.set()
            assert self.let_go.wait(30)
        if self.refused & set(values):
            raise OSError(f"refused {sorted(values)}")
        self.batches.append(list(values))
        return [10 * value for value in values]


def in_threads(book: Book, count: int) -> list[Any]:
    """Result or error of each of the values 0, 1, …; those after 0 come while 0 is written."""
    together: GroupCommit[int, int] = GroupCommit(book.transaction, book.write)

    def outcome(value: int) -> Any:
        try:
            return together.do(value)
        except OSError as error:
            return str(error)

    with ThreadPoolExecutor(count) as pool:
        first = pool.submit(outcome, 0)
        assert book.begun.wait(30)
        rest = [pool.submit(outcome, value) for value in range(1, count)]
        while len(together._waiting) < count - 1:
            pass
        book.let_go.set()
        return [one.result() for one in (first, *rest)]


def test_what_waits_is_written_together() -> None:
    book = Book()
    assert in_threads(book, 8) == [0, 10, 20, 30, 40, 50, 60, 70]
    assert (book.batches[0], sorted(book.batches[1])) == ([0], [1, 2, 3, 4, 5, 6, 7])


def test_what_goes_wrong_is_told_to_all_of_it_and_to_no_others() -> None:
    book = Book()
    book.refused = {3}
    outcomes = in_threads(book, 4)
    assert (outcomes[0], set(outcomes[1:])) == (0, {"refused [1, 2, 3]"})
    together: GroupCommit[int, int] = GroupCommit(book.transaction, book.write)
    assert together.do(5) == 50


def test_a_transaction_that_does_not_begin_fails_its_leader_only() -> None:
    book, fails = Book(), [True]

    @contextmanager
    def transaction() -> Iterator[Any]:
        if fails.pop():
            raise OSError("no database")
        fails.append(False)
        yield None

    book.begun.set()
    together: GroupCommit[int, int] = GroupCommit(transaction, book.write)
    with pytest.raises(OSError, match="no database"):
        together.do(1)
    fails.append(False)
    assert together.do(2) == 20
    assert book.batches == [[2]]


# -- turns ----------------------------------------------------------------------------------------

HOLD = """
import sys
from service.store.turns import Turns
with Turns(sys.argv[1]):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_one_process_writes_at_a_time_and_a_killed_one_gives_way(tmp_path: Path) -> None:
    database = str(tmp_path / "service.db")
    command = [sys.executable, "-c", HOLD, database]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    holder = subprocess.Popen(command, **pipes, cwd=Path(__file__).parents[1])
    assert holder.stdout is not None and holder.stdout.readline() == b"held\n"
    turns, taken = Turns(database), threading.Event()

    def take() -> None:
        with turns:
            taken.set()

    thread = threading.Thread(target=take)
    thread.start()
    assert not taken.is_set()
    holder.kill()
    holder.communicate()
    thread.join(30)
    assert taken.is_set()
    assert (tmp_path / f"service.db{SUFFIX}").stat().st_mode & 0o077 == 0
    turns.close()


def test_a_turn_ends_with_an_error_too(tmp_path: Path) -> None:
    turns = Turns(str(tmp_path / "service.db"))
    with pytest.raises(KeyError), turns:
        raise KeyError
    with turns:
        pass
    turns.close()


def test_a_database_that_nobody_shares_has_no_file(tmp_path: Path) -> None:
    with Turns(None), Turns(":memory:"):
        assert list(tmp_path.iterdir()) == []


def test_a_place_where_nothing_can_be_written_is_no_deadlock(tmp_path: Path) -> None:
    turns = Turns(str(tmp_path / "missing" / "service.db"))
    for _ in range(2):
        with pytest.raises(FileNotFoundError), turns:
            pass
