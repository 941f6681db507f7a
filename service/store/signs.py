"""Whose signs of life stand still, without asking what time it is.

A clock that is set back lets a dead worker look alive, and one that is set forward a living one
dead. So each process remembers the last sign of every running job, and for how long it has itself
seen that one unchanged, by its own monotonic clock.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass

LOOKS = 4  # that it takes at least; a process that was itself paused has seen nothing meanwhile


@dataclass(frozen=True, slots=True)
class _Seen:
    sign: Hashable
    silent_s: float


class Signs:
    """The signs of life of all running jobs, as this process has seen them.

    Args:
        clock: seconds that only grow.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._guard = threading.Lock()
        self._looked_at = clock()
        self._seen: dict[str, _Seen] = {}

    def look(self, found: Mapping[str, Hashable], stale_s: float) -> dict[str, Hashable]:
        """Look at the signs that the running jobs give now.

        Args:
            found: job → anything that changes whenever its worker gives a sign of life.
            stale_s: seconds of silence after which a worker counts as gone.

        Returns:
            The jobs whose workers are gone, with their last sign.
        """
        with self._guard:
            now = self._clock()
            passed_s = min(now - self._looked_at, max(stale_s, 0.0) / LOOKS)
            self._looked_at = now
            before, self._seen = self._seen, {}
            for job, sign in found.items():
                known = before.get(job)
                same = known is not None and known.sign == sign
                self._seen[job] = _Seen(sign, known.silent_s + passed_s if known and same else 0.0)
            return {job: one.sign for job, one in self._seen.items() if one.silent_s > stale_s}
