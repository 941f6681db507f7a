"""How processes of a Ray cluster tell the one that started them what happens."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import ray
from ray import cloudpickle
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

POLL_S = 0.2


def here() -> NodeAffinitySchedulingStrategy:
    """Have a task or actor run on this very node."""
    return NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)


class Mailbox:
    """A list that any process of the cluster can add to, and the driver empties.

    It lives on the driver's own node: it is lost only where the driver is lost as well.
    """

    def __init__(self) -> None:
        actor: Any = ray.remote(_Box)
        self._box = actor.options(num_cpus=0, scheduling_strategy=here()).remote()

    def put(self, item: Any) -> None:
        """Add something, and see it there."""
        ray.get(self._box.put.remote(cloudpickle.dumps(item)))

    def fail(self, error: Exception) -> None:
        """Record a failure that is not worth retrying."""
        ray.get(self._box.fail.remote(cloudpickle.dumps(error)))

    @property
    def failure(self) -> Exception | None:
        """The first such failure."""
        error: bytes | None = ray.get(self._box.failure.remote())
        return None if error is None else cloudpickle.loads(error)

    def items(self, ended: Callable[[float], bool]) -> Iterator[Any]:
        """Everything that is put, in order.

        Args:
            ended: waits so many seconds at most; whether nobody will put anything any more.
        """
        over = False
        while not over:
            over = ended(POLL_S)
            yield from map(cloudpickle.loads, ray.get(self._box.take.remote()))

    def close(self) -> None:
        """End it; whoever still puts something in fails."""
        ray.kill(self._box)


class _Box:
    """Keeps bytes: to know what they say, its process would have to load torch."""

    def __init__(self) -> None:
        self._items: list[bytes] = []
        self._failure: bytes | None = None

    def put(self, item: bytes) -> None:
        self._items.append(item)

    def take(self) -> list[bytes]:
        items, self._items = self._items, []
        return items

    def fail(self, error: bytes) -> None:
        self._failure = self._failure or error

    def failure(self) -> bytes | None:
        return self._failure
