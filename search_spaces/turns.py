"""Turns on a device: many processes may compute on it at once, and whoever times there is alone.

Every device has three lock files in a folder of this machine and user. Who computes holds the lock
with others; who times holds it alone. Since somebody always computes, who wants to time takes the
gate first: processes that compute look at it between two batches (`give_way`), let go when it is
taken, and go on when it is free. Who waits for the gate holds the queue meanwhile, so that nobody
who has just let the gate go takes it again before. The kernel frees what a dead process held.

Each thread opens the files for itself, so that threads exclude each other as processes do.
`latency.turns` knows the names of devices.
"""

from __future__ import annotations

import fcntl
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from search_spaces.errors import NasError
from search_spaces.lock_files import LockFiles, lock_dir, try_lock, unlock

# Between two looks at a lock that another process has.
LOOK_EVERY_S = 0.05
# Who computes waits so long for those who time, and these so long for each other; they say so,
# once, when they have waited for a while.
PATIENCE_S = 1800.0
TELL_AFTER_S = 60.0
# Who times waits so long for those who compute: one that is stopped does not disturb. Once that
# was in vain, the next waits are short until everybody has let go again.
STUBBORN_S = 120.0
STUBBORN_AGAIN_S = 5.0
# Who made others wait lets them compute as long as it has timed, and at most so long.
MOST_REST_S = 30.0

_logger = logging.getLogger(__name__)


class _Party(threading.local):
    """What a thread has to do with devices.

    Attributes:
        depth: contexts it is in.
        wanted: names of the devices that it computes on.
        held: those whose lock it holds.
        timed: names of the devices that it times on.
        places: name → files, while it is in a context.
        settle: name → what ends the work that was started there.
        waited_s: seconds it has waited for others.
    """

    def __init__(self) -> None:
        self.clear()
        self.waited_s = 0.0

    def clear(self) -> None:
        """Forget everything but the waiting."""
        self.depth = 0
        self.wanted: frozenset[str] = frozenset()
        self.timed: frozenset[str] = frozenset()
        self.held: set[str] = set()
        self.places: dict[str, LockFiles] = {}
        self.settle: dict[str, Callable[[], object]] = {}


class Turns:
    """The part of one process in the turns of a machine.

    Args:
        folder: gives the folder of the lock files.
        clock: seconds that only grow.
        pause: waits so many seconds.
    """

    def __init__(
        self,
        folder: Callable[[], Path] = lock_dir,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], object] = time.sleep,
    ) -> None:
        self._folder, self._clock, self._pause = folder, clock, pause
        self._party = _Party()
        self._passed: set[str] = set()
        self._told: set[str] = set()
        self._stubborn: set[str] = set()
        self._rest_until: dict[str, float] = {}

    @contextmanager
    def computing(self, name: str, settle: Callable[[], object] = lambda: None) -> Iterator[None]:
        """Compute on a device, with others; within `timing` this does nothing.

        Args:
            name: of the device.
            settle: ends the work that was started there, before it is let go.
        """
        party = self._party
        party.settle[name] = settle
        wanted = frozenset() if party.timed else party.wanted | {name}
        with self._wanting(wanted):
            yield

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Let go of what is held while this thread only waits for other processes."""
        with self._wanting(frozenset()):
            yield

    @contextmanager
    def timing(self, names: Sequence[str]) -> Iterator[None]:
        """Be alone on devices; what this thread itself computes there rests meanwhile.

        Raises:
            NasError: when others have timed there for `PATIENCE_S`.
        """
        party = self._party
        new = sorted(set(names) - party.timed)
        with self._wanting(frozenset()), ExitStack() as taken:
            self._rest(new)
            for name in new:  # all take them in this order, so that no two wait for each other
                self._take_gate(name, taken)
            met = [name for name in new if self._take_lock(name, taken)]
            before, party.timed = party.timed, party.timed | set(new)
            begun = self._clock()
            try:
                yield
            finally:
                party.timed = before
                ended = self._clock()
                rest = min(ended - begun, MOST_REST_S)
                self._rest_until |= dict.fromkeys(met, ended + rest)

    def give_way(self) -> None:
        """Let those who want to time have their turn; microseconds when nobody does."""
        party = self._party
        for name in party.wanted:
            if name in party.held:
                if self._place(name).free():
                    continue
                self._leave(name)
            self._join(name)

    @property
    def waited_s(self) -> float:
        """Seconds that this thread has waited for others."""
        return self._party.waited_s

    # -- computing ----------------------------------------------------------------------------

    @contextmanager
    def _wanting(self, wanted: frozenset[str]) -> Iterator[None]:
        party = self._party
        before = party.wanted
        party.depth += 1
        try:
            self._want(wanted)
            self._join_wanted()
            yield
        finally:
            # What is held anew when an error passes through waits for the next `give_way`.
            party.depth -= 1
            self._want(before if party.depth else frozenset())
            if not party.depth:
                self._close()
        self._join_wanted()

    def _want(self, wanted: frozenset[str]) -> None:
        party = self._party
        for name in list(party.held - wanted):
            self._leave(name)
        party.wanted = wanted

    def _join_wanted(self) -> None:
        for name in self._party.wanted - self._party.held:
            self._join(name)

    def _join(self, name: str) -> None:
        party, place = self._party, self._place(name)
        begun = self._clock()
        while not place.join():
            if name in self._passed:
                return
            if self._clock() - begun >= PATIENCE_S:
                _logger.warning("going on although another process has timed for long on %s", name)
                self._passed.add(name)
            else:
                self._wait()
        party.held.add(name)
        self._passed.discard(name)

    def _leave(self, name: str) -> None:
        party = self._party
        party.held.discard(name)
        try:
            party.settle[name]()
        finally:
            unlock(self._place(name).lock)

    # -- timing -------------------------------------------------------------------------------

    def _rest(self, names: Sequence[str]) -> None:
        until = max((self._rest_until.pop(name, -1.0) for name in names), default=-1.0)
        while self._clock() < until:
            self._wait()

    def _take_gate(self, name: str, taken: ExitStack) -> None:
        place = self._place(name)
        with ExitStack() as queued:
            self._take(place.queue, name, queued)
            self._take(place.gate, name, taken)

    def _take(self, file: int, name: str, taken: ExitStack) -> None:
        """Take what others who time have before long, until `taken` closes."""
        begun = self._clock()
        while not try_lock(file, fcntl.LOCK_EX):
            waited_s = self._clock() - begun
            if waited_s >= PATIENCE_S:
                raise NasError(
                    f"another process has timed networks on this machine ({name}) for "
                    f"{PATIENCE_S:g} seconds; wait for it to end, or end it, and start again"
                )
            if waited_s >= TELL_AFTER_S and name not in self._told:
                self._told.add(name)
                _logger.warning(
                    "another process times networks on this machine (%s); this one waits for its "
                    "turn, as it will again and again without saying so",
                    name,
                )
            self._wait()
        taken.callback(unlock, file)

    def _take_lock(self, name: str, taken: ExitStack) -> bool:
        """Whether others had to be waited for."""
        lock, begun = self._place(name).lock, self._clock()
        taken.callback(unlock, lock)
        if try_lock(lock, fcntl.LOCK_EX):
            self._stubborn.discard(name)
            return False
        most = STUBBORN_AGAIN_S if name in self._stubborn else STUBBORN_S
        while not try_lock(lock, fcntl.LOCK_EX):
            if self._clock() - begun >= most:
                if name not in self._stubborn:
                    _logger.warning("timing on %s although a process there does not let go", name)
                self._stubborn.add(name)
                return True
            self._wait()
        self._stubborn.discard(name)
        return True

    # -- both ---------------------------------------------------------------------------------

    def _wait(self) -> None:
        before = self._clock()
        self._pause(LOOK_EVERY_S)
        self._party.waited_s += self._clock() - before

    def _place(self, name: str) -> LockFiles:
        places = self._party.places
        if name not in places:
            places[name] = LockFiles(self._folder(), name)
        return places[name]

    def _close(self) -> None:
        places = list(self._party.places.values())
        self._party.clear()
        for place in places:
            place.close()


TURNS = Turns()
give_way = TURNS.give_way
waiting = TURNS.waiting
