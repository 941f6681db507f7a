"""Tells when nodes leave a Ray cluster that a run counts on, and when none has room for a worker.

Ray waits for room without a word and without an end. A node that could not be reached for about a
minute is given up by the cluster, and its Ray ends when it can be reached again: somebody has to
start it there, and can only do so where this is told.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from search_spaces.errors import ExecutorError
from search_spaces.wording import RESUME, mark

# How often the cluster is asked.
LOOK_EVERY_S = 1.0
# Without a node that could have a worker this is told at once, but for one that is just restarted.
EMPTY_S = 10.0
# All may be full for a while.
FULL_S = 60.0
# A cluster that grows on demand needs minutes for a new machine.
START_TIMEOUT_S = 900.0
# Ray's numbers of reasons to leave: taken leave of by `ray stop`, and grown smaller.
_ON_PURPOSE = (1, 4)


class Nodes:
    """The nodes of the cluster that this process is connected to, as far as they matter to a run.

    Args:
        cpus: of a worker.
        gpus: of a worker.
        nodes: what the cluster says of its nodes; Ray is asked if not given.
        clock: monotonic seconds.
        address: ``HOST:PORT`` of the cluster's head; Ray is asked if not given.
    """

    def __init__(
        self,
        cpus: int,
        gpus: int,
        nodes: Callable[[], Sequence[Mapping[str, Any]]] | None = None,
        clock: Callable[[], float] = time.monotonic,
        address: Callable[[], str] | None = None,
    ) -> None:
        self._cpus, self._gpus, self._ask = cpus, gpus, nodes or _nodes
        self._clock, self._address = clock, address or _head_address
        self._there: set[str] = set()
        self._looked = -LOOK_EVERY_S
        self._waits_since: float | None = None
        self._said_so = False

    def begin(self) -> None:
        """Something else is worked on from now on: what was waited for before does not count."""
        self._waits_since, self._said_so = None, False

    def told(self, waits: bool) -> list[str]:
        """What has happened since this was asked last; to be asked often.

        Args:
            waits: whether nothing is worked on and something waits for room.

        Returns:
            Sentences, mostly none.

        Raises:
            ExecutorError: when it has waited for `START_TIMEOUT_S`.
        """
        now = self._clock()
        if not waits:
            self.begin()
        elif self._waits_since is None:
            self._waits_since = now
        if now - self._looked < LOOK_EVERY_S:
            return []
        self._looked = now
        nodes = self._ask()
        said = [*self._left(nodes)]
        if self._waits_since is not None:
            said += self._waited(now - self._waits_since, nodes)
        return said

    def gone(self, *ids: str) -> bool:
        """Whether all nodes of these ids are known to have left; of none it is true."""
        return {*ids} <= {one["NodeID"] for one in self._ask() if not one["Alive"]}

    def _left(self, nodes: Sequence[Mapping[str, Any]]) -> Iterator[str]:
        alive = {one["NodeID"] for one in nodes if one["Alive"]}
        lost, self._there = self._there - alive, alive
        for one in nodes:
            if one["NodeID"] in lost and one.get("DeathReason") not in _ON_PURPOSE:
                name = one["NodeManagerHostname"]
                yield f"{name} has left the Ray cluster; to have it back, type there: {self._join}"

    def _waited(self, seconds: float, nodes: Sequence[Mapping[str, Any]]) -> Iterator[str]:
        large = [one for one in nodes if one["Alive"] and self._holds(one["Resources"])]
        worker = f"a worker with {self._cpus} CPU{'s' * (self._cpus != 1)}"
        worker += f" and {self._gpus} GPU" if self._gpus else ""
        join = f"on a host that is to join, type: {self._join}"
        if seconds > START_TIMEOUT_S:
            what = "ray status tells what runs there" if large else join
            raise ExecutorError(
                f"the Ray cluster has had no room for {worker} for {START_TIMEOUT_S / 60:g} "
                f"minutes; {what}; then go on with {mark(RESUME, 'nas resume')}"
            )
        if self._said_so or seconds < (FULL_S if large else EMPTY_S):
            return
        self._said_so = True
        wait = f"this waits for up to {(START_TIMEOUT_S - seconds) / 60:.0f} minutes"
        if large:
            yield f"the Ray cluster has no room for {worker} at present; {wait}"
        else:
            yield f"no node of the Ray cluster can have {worker}; {wait}; {join}"

    def _holds(self, offer: Mapping[str, float]) -> bool:
        return offer.get("CPU", 0) >= self._cpus and offer.get("GPU", 0) >= self._gpus

    @property
    def _join(self) -> str:
        return f"ray start --address={self._address()}"


def _nodes() -> Sequence[Mapping[str, Any]]:
    import ray

    nodes: Sequence[Mapping[str, Any]] = ray.nodes()
    return nodes


def _head_address() -> str:
    import ray

    return str(ray.get_runtime_context().gcs_address)
