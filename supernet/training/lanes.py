"""Threads that compute the gradients of an update together, each on some of its rows.

One operation that is spread over the cores of a processor waits for the slowest of them, and what
is too small to be spread leaves them idle; networks of a few million parameters are full of such.
So half of the cores compute one half of the rows, from the first layer to the loss and back, beside
the others, and gradients are added up as those of processes are (`supernet.training.parallel`). Who
has which rows follows from the number of threads that the settings ask for, and gradients are added
in one order, so that neither how many cores there are nor which thread is first decides weights.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait

import torch
from torch import Tensor

from supernet.slices import Slices
from supernet.threads import cpu_threads
from supernet.training.parallel import Share
from supernet.training_settings import TrainingSettings

MOST = 2
"""Lanes of a training. Each has gradients of its own, and more than two were not measured
(experiments/LOG.md, 2026-11-30)."""

Compute = Callable[[Share, Slices], Tensor]
"""Adds the gradients of a share of an update to those of slices, and gives its losses."""


class Lanes:
    """The threads of one training that ask for operations.

    Args:
        slices: of the model that trains.
        settings: the numbers; `TrainingSettings.threads` are dealt out to the lanes.
        device: where the model is. A graphics card has one lane, and so has an odd number of
            threads, and a training with dropout, whose random numbers would depend on which thread
            comes first.

    Attributes:
        count: of lanes, at least 1.
    """

    def __init__(self, slices: Slices, settings: TrainingSettings, device: str) -> None:
        threads = settings.threads or 1
        several = device == "cpu" and settings.dropout == 0.0 and threads % MOST == 0
        self.count = MOST if several else 1
        self._threads = threads // self.count  # of each, where there are several
        self._first = slices
        self._others = [slices.beside() for _ in range(1, self.count)]
        self._pool: ThreadPoolExecutor | None = None
        if self._others:
            own = (self._threads,)
            self._pool = ThreadPoolExecutor(
                len(self._others), "lane", initializer=torch.set_num_threads, initargs=own
            )

    def begin(self) -> None:
        """A new update, see `Slices.begin`."""
        for slices in (self._first, *self._others):
            slices.begin()

    def sum(self, shares: Sequence[Share], compute: Compute) -> Tensor:
        """The gradients and losses of all shares, which are dealt out in turns.

        Args:
            shares: of an update, at least one; of each batch as many as there are lanes.
            compute: called in several threads at once, each time with other slices. What it raises
                is raised once all threads have ended.
        """
        if self._pool is None:
            return _summed(shares, compute, self._first)
        with cpu_threads(self._threads):
            busy = [
                self._pool.submit(_summed, shares[number :: self.count], compute, slices)
                for number, slices in enumerate(self._others[: len(shares) - 1], start=1)
            ]
            try:
                losses = _summed(shares[:: self.count], compute, self._first)
            finally:
                wait(busy)
        for one in busy:
            losses += one.result()
        for slices in self._others:
            slices.add_up()
        return losses


def _summed(shares: Sequence[Share], compute: Compute, slices: Slices) -> Tensor:
    first, *others = (compute(share, slices) for share in shares)
    return sum(others, start=first)
