"""Runs as pages and the API show them: read once for every change, and only as much as is shown.

A search may have observed tens of thousands of networks. Reading them takes seconds, and drawing
all of them makes a page that no browser likes, so what is kept of a run is its front and a sample
of the rest. Imported where it is used: it brings along what reads runs.
"""

from __future__ import annotations

import gc
import logging
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ContextDecorator, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Generic, TypeVar

from nas.results.contents import RunContents
from nas.results.partial_front import (
    PartialFront,
    hypervolume_history,
    origin,
    partial_front,
    reference,
)
from nas.results.reader import read_contents
from nas.run.folder import RunFolder
from nas.run.layout import EVENTS_FILE, WORKERS_FOLDER
from nas.search.front import Front, FrontEntry
from search_spaces.errors import DamagedRunError
from search_spaces.json_text import UNREADABLE

log = logging.getLogger("service.api.run_cache")

T = TypeVar("T")

MOST_DRAWN, MOST_IN_ALL = 300, 450  # networks of a kind, in one chart and in all of a page
MOST_KEPT = 30_000  # networks of all runs together, each of one to five kilobytes

_CONTENTS = (".json", ".jsonl", ".toml")
_UNREAD = ("export", WORKERS_FOLDER)


@dataclass(frozen=True)
class RunView:
    """A run and what is known of its front.

    Attributes:
        contents: with the front so far as its front, once anything was measured, and a sample of
            the other networks.
        found: the same front.
        curve: hypervolume over measured networks.
        path: the run's folder.
        observed: how many networks were observed.
        measured: of how many networks the quality was measured.
    """

    contents: RunContents
    found: PartialFront
    curve: list[tuple[int, float]]
    path: Path
    observed: int = 0
    measured: int = 0

    @property
    def final(self) -> bool:
        """Whether the front is the run's result."""
        return self.found.front is not None

    @property
    def weight(self) -> int:
        """How many networks it holds."""
        run = self.contents
        timed = sum(map(len, run.profiles.values()))
        held = (run.observed, run.verified, run.population, run.failed, self.found.entries)
        return timed + sum(map(len, held))


@dataclass(slots=True)
class _Turn:
    """Who makes a value, and how many are there for it."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    waiting: int = 0


class Kept(Generic[T]):
    """What was made last, for as long as it is the same thing, within a weight.

    Args:
        most: weight of all together; the last one is kept however much it weighs.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._values: OrderedDict[str, tuple[object, T, int]] = OrderedDict()
        self._changing = threading.Lock()
        self._making: dict[str, _Turn] = {}

    def get(self, key: str, version: object, make: Callable[[], T], weigh: Callable[[T], int]) -> T:
        """The value of a key in that version; who asks while it is made waits for it."""
        with self._alone(key):
            with self._changing:
                known = self._values.get(key)
                if known is not None and known[0] == version:
                    self._values.move_to_end(key)
                    return known[1]
            value = make()
            with self._changing:
                self._values[key] = version, value, weigh(value)
                self._values.move_to_end(key)
                while len(self._values) > 1 and self.weight > self.most:
                    self._values.popitem(last=False)
            return value

    @contextmanager
    def _alone(self, key: str) -> Iterator[None]:
        """While others make the same value; who asks for another one waits for nobody."""
        with self._changing:
            turn = self._making.setdefault(key, _Turn())
            turn.waiting += 1
        try:
            with turn.lock:
                yield
        finally:
            with self._changing:
                turn.waiting -= 1
                if not turn.waiting:
                    del self._making[key]

    @property
    def weight(self) -> int:
        """Of all that is kept."""
        return sum(weight for _, _, weight in self._values.values())


class Uncollected(ContextDecorator):
    """The garbage collector rests while any thread is in here.

    Reading a large run makes hundreds of thousands of objects without a cycle and lets nearly all
    go again. Collections in between find nothing and stop every thread for a quarter of a second.
    """

    def __init__(self) -> None:
        self._inside, self._changing = 0, threading.Lock()

    def __enter__(self) -> None:
        with self._changing:
            self._inside += 1
            gc.disable()

    def __exit__(self, *_: object) -> None:
        with self._changing:
            self._inside -= 1
            if self._inside == 0:
                gc.enable()


uncollected = Uncollected()
_RUNS: Kept[RunView] = Kept(MOST_KEPT)


def cached_run(folder: RunFolder) -> RunView:
    """A run, finished or not, as it is now."""
    version = version_of(folder.path)
    return _RUNS.get(str(folder.path), version, lambda: read_run(folder), lambda v: v.weight + 1)


@uncollected
def cached_networks(folder: RunFolder, wanted: Sequence[str]) -> RunView:
    """The same with networks, as far as the run knows them, that are not in the sample."""
    view = cached_run(folder)
    missing = [one for one in wanted if view.contents.network(one) is None]
    if not missing or view.observed <= len(view.contents.observed):
        return view
    whole = read_contents(folder)
    found = [entry for one in missing if (entry := whole.network(one))]
    observed = (*view.contents.observed, *found)
    return replace(view, contents=replace(view.contents, observed=observed))


@contextmanager
def showing(path: Path) -> Iterator[None]:
    """Tell of damage where what a run's files say cannot be shown, though it could be read.

    Raises:
        DamagedRunError: in place of what pictures and words trip over, which the log keeps.
    """
    try:
        yield
    except UNREADABLE as error:
        log.exception("a run cannot be shown", extra={"run": path.name})
        raise DamagedRunError(f"{path} holds what cannot be shown ({error})") from error


def version_of(path: Path) -> tuple[tuple[str, int, int, int], ...]:
    """What changes whenever a file does that a run is read from."""
    return tuple(sorted(_versions(path, path)))


def _versions(folder: Path, root: Path) -> Iterator[tuple[str, int, int, int]]:
    for entry in os.scandir(folder):
        if entry.is_dir(follow_symlinks=False):
            if entry.name not in _UNREAD:
                yield from _versions(Path(entry.path), root)
        elif entry.name.endswith(_CONTENTS) and entry.name != EVENTS_FILE:
            try:
                status = entry.stat()
            except FileNotFoundError:  # replaced or deleted just now
                continue
            yield entry.path, status.st_ino, status.st_mtime_ns, status.st_size


@uncollected
def read_run(folder: RunFolder) -> RunView:
    """Read a run anew, and let go of what is not shown."""
    contents = read_contents(folder)
    found = partial_front(contents)
    curve = hypervolume_history(contents, found)
    if found.front is None and found.entries:
        corner = tuple(reference(contents, found))
        volume = curve[-1][1]
        front = Front(found.objectives, corner, found.entries, volume, origin=origin(found))
        contents = replace(contents, front=front)
    measured = len({entry.id for entry in (*contents.observed, *contents.verified)})
    thin = _thinned(contents)
    found = replace(found, measured=(), predicted=thin.population)
    return RunView(thin, found, curve, folder.path, len(contents.observed), measured)


def most_drawn(contents: RunContents) -> int:
    """How many networks of a kind each chart shows: fewer where a page has several charts."""
    return min(MOST_DRAWN, MOST_IN_ALL // max(1, len(contents.costs)))


def _thinned(contents: RunContents) -> RunContents:
    """A run with a sample of its networks; none of those that are looked for by id is lost."""
    most = most_drawn(contents)
    kept = {one.id for one in contents.retrained} | {one.id for one in contents.views}
    verified = sample(contents.verified, most, kept)
    return replace(
        contents,
        verified=verified,
        observed=sample(contents.observed, most, kept | {entry.id for entry in verified}),
        population=sample(contents.population, most, kept),
    )


def sample(
    entries: Sequence[FrontEntry], most: int, kept: frozenset[str] | set[str] = frozenset()
) -> tuple[FrontEntry, ...]:
    """Some of the entries, evenly spread and in their order: both ends, and all that are kept.

    Args:
        entries: in the order over which to spread.
        most: how many, beside those that are kept.
        kept: ids of entries that are there in any case.
    """
    if len(entries) <= most:
        return tuple(entries)
    step = (len(entries) - 1) / (most - 1)
    places = {round(number * step) for number in range(most)}
    return tuple(
        entry for place, entry in enumerate(entries) if place in places or entry.id in kept
    )
