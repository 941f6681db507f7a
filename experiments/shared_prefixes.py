"""Networks that begin with the same layers, evaluated one after the other.

What the layers say that a network shares with the one before it is not computed again. All
placements of two kinds in L layers, in the order of a dictionary, take a 2/L-th of the time so.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn


class SharedPrefixes:
    """What blocks said last, batch by batch; the batch is known by what the first block is given.

    Args:
        blocks: of a stack of which every network has all.
    """

    def __init__(self, blocks: Sequence[nn.Module]) -> None:
        self._inner = [block.forward for block in blocks]
        self._batches: dict[bytes, dict[int, tuple[Tensor, Any, Any]]] = {}
        self._said: dict[int, tuple[Tensor, Any, Any]] = {}

    def step(self, number: int, x_BND: Tensor, layer: Any, *rest: Any) -> Any:
        """What a block says, anew only where its input or its sizes are others than the last."""
        if number == 0:
            digest = hashlib.blake2b(x_BND.cpu().numpy().tobytes()).digest()
            self._said = self._batches.setdefault(digest, {})
        known = self._said.get(number)
        same = known is not None and (number == 0 or known[0] is x_BND) and known[1] == layer
        if not same:
            known = x_BND, layer, self._inner[number](x_BND, layer, *rest)
            self._said[number] = known
        assert known is not None
        return known[2]


@contextmanager
def shared_prefixes(blocks: Sequence[nn.Module]) -> Iterator[None]:
    """Evaluate, within the context, only what the network before has not said already."""
    shared = SharedPrefixes(blocks)

    def forward(number: int) -> Any:
        return lambda x_BND, layer, *rest: shared.step(number, x_BND, layer, *rest)

    for number, block in enumerate(blocks):
        block.forward = forward(number)
    try:
        yield
    finally:
        for block in blocks:
            del block.forward
