"""Gradients of a single network by CUDA graphs.

Launching the kernels of an update takes the host as long as a card needs for all but the largest
batches. A network that trains alone asks for the same kernels whenever a batch has the same shape;
so they are recorded once for each shape and then asked for at once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import fields, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from supernet.training.card_memory import OutOfMemoryError
from supernet.training.parallel import Share

Compute = Callable[[Share], Tensor]

SEEN = 2
"""Updates of a shape before it is recorded: the first ones make what later ones use again."""
MOST_SHAPES = 128
"""Shapes recorded; each keeps its kernels' arguments in memory. Others are computed as ever."""


class GraphedGradients:
    """Calls a function that adds gradients to parameters, or replays what it did.

    The function must ask for the same of every batch of a shape, wait for nothing, and leave the
    gradients where it left them before.

    Args:
        compute: a share of an update → its losses, which are read before the next call.
        parameters: whose gradients it adds to.
    """

    def __init__(self, compute: Compute, parameters: Iterable[Tensor]) -> None:
        self._compute = compute
        self._parameters = [one for one in parameters if one.requires_grad]
        self._seen: Counter[Hashable] = Counter()
        self._recorded: dict[Hashable, _Recorded] = {}
        self._pool: Any = None

    def __call__(self, share: Share) -> Tensor:
        """The losses of a share; its gradients are added to the parameters'."""
        # The first share of an update overwrites gradients; the others add to them.
        key = _shape(share.batch), any(one.grad is not None for one in self._parameters)
        recorded = self._recorded.get(key)
        if recorded is None:
            self._seen[key] += 1
            if self._seen[key] <= SEEN or len(self._recorded) == MOST_SHAPES:
                return self._compute(share)
            recorded = self._recorded[key] = self._record(share)
        _fill(recorded.share, share)
        recorded.graph.replay()
        for parameter, gradient in recorded.gradients:
            parameter.grad = gradient
        return recorded.losses

    def clear(self) -> None:
        """Forget what was recorded, with the memory that it holds."""
        self._recorded.clear()
        self._seen.clear()
        self._pool = None

    def _record(self, share: Share) -> _Recorded:
        """What is computed of a share, without computing it."""
        device = self._parameters[0].device
        known = [one.grad for one in self._parameters]
        weight = torch.zeros((), device=device)
        kept = Share(_mapped(share.batch, torch.empty_like), weight)
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        graph = torch.cuda.CUDAGraph()
        try:
            # Threads that prepare the next batches may go on talking to the card.
            with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
                losses = self._compute(kept)
        except RuntimeError as error:
            # Ending a recording that ran out of memory fails, too.
            if isinstance(error.__context__, OutOfMemoryError):
                raise error.__context__ from None
            raise
        gradients = [(one, one.grad) for one in self._parameters if one.grad is not None]
        for one, before in zip(self._parameters, known, strict=True):
            one.grad = before
        return _Recorded(graph, kept, losses, gradients)


class _Recorded(NamedTuple):
    """A graph, what it reads, and what it writes."""

    graph: torch.cuda.CUDAGraph
    share: Share
    losses: Tensor
    gradients: Sequence[tuple[Tensor, Tensor]]


def _shape(batch: Any) -> Hashable:
    """What the kernels depend on: shapes of the tensors, and which there are."""
    return tuple(
        (name, tuple(value.shape), value.dtype) if isinstance(value, Tensor) else (name, None)
        for name, value in _parts(batch)
    )


def _parts(batch: Any) -> list[tuple[str, Any]]:
    return [(field.name, getattr(batch, field.name)) for field in fields(batch)]


def _mapped(batch: Any, make: Callable[[Tensor], Tensor]) -> Any:
    """The batch with each tensor exchanged."""
    return replace(batch, **{n: make(one) for n, one in _parts(batch) if isinstance(one, Tensor)})


def _fill(kept: Share, share: Share) -> None:
    """Put a share where a graph reads it."""
    assert isinstance(kept.weight, Tensor)
    kept.weight.fill_(share.weight)
    into = dict(_parts(kept.batch))
    for name, value in _parts(share.batch):
        if isinstance(value, Tensor):
            into[name].copy_(value, non_blocking=True)
