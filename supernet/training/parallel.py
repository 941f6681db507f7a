"""Several processes that train one model together, each on its share of every update.

All ranks hold the same weights, draw the same networks and see the same batches. A rank computes
the gradients of its share; their sum is, up to rounding, what one process alone would have
computed: shares are weighted by the labels in them, because an update's loss is a mean over labels.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol, Self

import torch
import torch.distributed as dist
from torch import Tensor

from search_spaces.turns import waiting

# Gradients go over the wire in pieces of so many numbers: few calls, and little memory on top.
BUCKET = 1 << 24


class Divisible(Protocol):
    """A batch that can be cut by rows; every row has at least one label."""

    def __len__(self) -> int:
        """Rows."""
        ...

    @property
    def num_labels(self) -> int:
        """Labels that the batch's loss is the mean of, at least 1."""
        ...

    def part(self, rows: slice) -> Self:
        """Some of the rows, padded as in the whole batch."""
        ...


@dataclass(frozen=True, slots=True)
class Share:
    """A batch, or some rows of it, and the share of the update's labels that it holds.

    In what is recorded for many batches the share is a scalar tensor on their device.
    """

    batch: Any
    weight: float | Tensor


class Group:
    """A group of one: everything is its own share, and there is nothing to exchange.

    Attributes:
        rank: number of this process, from 0; rank 0 writes files.
        size: processes.
    """

    rank = 0
    size = 1

    def shares(self, batches: Sequence[Divisible], parts: int = 1) -> list[Share]:
        """What this rank computes of an update.

        As many batches as go round are handed out whole, which wastes nothing on short rows; each
        of the others is cut by rows. A rank for which no row is left takes one with no weight, so
        that every rank has gradients of the same parameters.

        Args:
            batches: of the update.
            parts: that each batch of this rank is cut into besides, as far as it has rows; they are
                computed one after the other.

        Source: a label counts the same in whichever batch of an update it stands, as in fairseq,
        which divides the sum over all batches and workers by all tokens.
        """
        total = sum(batch.num_labels for batch in batches)
        whole = len(batches) // self.size * self.size
        mine = [
            Share(one, one.num_labels / total) for one in batches[self.rank : whole : self.size]
        ]
        mine += [_cut(one, self.rank, self.size, total) for one in batches[whole:]]
        return [piece for share in mine for piece in _pieces(share, parts, total)]

    def add_up(self, parameters: Iterable[Tensor]) -> None:
        """Replace the gradients of parameters by their sum over the group."""

    def sum(self, values: Tensor) -> list[float]:
        """The sums over the group of numbers ``(K,)``; one that is not finite stays so."""
        return values.tolist()

    def agrees(self, value: int) -> bool:
        """Whether all ranks have the same number."""
        return True

    def largest(self, value: int) -> int:
        """The largest of the numbers that the ranks have."""
        return value


class ProcessGroup(Group):
    """The default group of `torch.distributed`, which has to be initialised.

    Args:
        device: where gradients are; numbers are exchanged there too, as NCCL wants it.
    """

    def __init__(self, device: str = "cpu") -> None:
        self.rank = dist.get_rank()
        self.size = dist.get_world_size()
        self._device = device

    def add_up(self, parameters: Iterable[Tensor]) -> None:
        """See `Group.add_up`; which parameters have gradients must be the same everywhere."""
        if self.size > 1:
            with self._together():
                for bucket in _buckets(p.grad for p in parameters if p.grad is not None):
                    _add_up(bucket)

    def sum(self, values: Tensor) -> list[float]:
        """See `Group.sum`."""
        numbers = values.to(self._device, torch.float64, copy=True)
        with self._together():
            dist.all_reduce(numbers)
        return numbers.tolist()

    def agrees(self, value: int) -> bool:
        """See `Group.agrees`."""
        return self._most(value, -value) == [value, -value]

    def largest(self, value: int) -> int:
        """See `Group.largest`."""
        return self._most(value)[0]

    def _most(self, *values: int) -> list[int]:
        most = torch.tensor(values, dtype=torch.int64, device=self._device)
        with self._together():
            dist.all_reduce(most, op=dist.ReduceOp.MAX)
        found: list[int] = most.tolist()
        return found

    def _together(self) -> AbstractContextManager[None]:
        """While ranks wait for each other: one that gives way must not have the others keep on.

        Ranks on graphics cards have one each, which they do not give way on for each other.
        """
        return waiting() if self._device == "cpu" else nullcontext()


def _cut(batch: Divisible, number: int, size: int, total: int) -> Share:
    """One of `size` parts of a batch, of an update with so many labels."""
    if number >= len(batch):
        return Share(batch.part(slice(0, 1)), 0.0)
    part = batch.part(slice(number, None, size))
    return Share(part, part.num_labels / total)


def _pieces(share: Share, parts: int, total: int) -> list[Share]:
    """A share in so many parts, as far as it has rows; one without weight has a single one."""
    size = 1 if parts == 1 else min(parts, len(share.batch))
    if size == 1:
        return [share]
    return [_cut(share.batch, number, size, total) for number in range(size)]


def _buckets(gradients: Iterable[Tensor]) -> Iterable[list[Tensor]]:
    """Neighbours together until there are `BUCKET` numbers."""
    bucket, count = list[Tensor](), 0
    for gradient in gradients:
        bucket.append(gradient)
        count += gradient.numel()
        if count >= BUCKET:
            yield bucket
            bucket, count = [], 0
    if bucket:
        yield bucket


def _add_up(gradients: list[Tensor]) -> None:
    """One exchange for several gradients."""
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    dist.all_reduce(flat)
    for gradient, total in zip(gradients, flat.split([g.numel() for g in gradients]), strict=True):
        gradient.copy_(total.view_as(gradient))
