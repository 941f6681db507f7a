"""Batches of pairs by number of tokens, in an order that (seed, epoch) alone decides.

The encoder reads the source and an end mark; the decoder reads a begin mark and the
target, and should predict the target and an end mark.

Shapes: B rows of a batch, S source tokens, T target tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from search_spaces.errors import UsageError
from supernet.data.prepared import PairSplit
from supernet.data.token_files import TokenRows
from supernet.data.tokenizer import BOS, EOS, PAD

Indices = NDArray[np.int64]

# Share of padding, above which batches of evaluation are made smaller.
MOST_PADDING = 0.1

_TENSORS = ("rows", "source", "source_mask", "inputs", "targets", "target_mask")


@dataclass(frozen=True, eq=False, slots=True)
class PairBatch:
    """Some pairs; padding is 0, at the end of rows.

    Attributes:
        rows: their numbers in the split, int64 ``(B,)``.
        source: int64 ``(B, S)``, each row ended by the end mark.
        source_mask: bool ``(B, S)``, True where there is a token.
        inputs: what the decoder reads, int64 ``(B, T)``, each row begun by the begin mark.
        targets: what it should predict, int64 ``(B, T)``, each row ended by the end mark.
        target_mask: bool ``(B, T)``, True where there is a token, of both.
        num_tokens: target tokens to predict, end marks included.
    """

    rows: Tensor
    source: Tensor
    source_mask: Tensor
    inputs: Tensor
    targets: Tensor
    target_mask: Tensor
    num_tokens: int

    def __len__(self) -> int:
        return len(self.source)

    @property
    def num_labels(self) -> int:
        """Target tokens to predict."""
        return self.num_tokens

    def part(self, rows: slice) -> PairBatch:
        """Some of the pairs, padded as they are here."""
        some = {name: getattr(self, name)[rows] for name in _TENSORS}
        return PairBatch(**some, num_tokens=int(some["target_mask"].sum()))

    def to(self, device: torch.device | str | None) -> PairBatch:
        """The same batch on another device; None leaves it where it is."""
        if device is None:
            return self
        moved = {name: getattr(self, name).to(device, non_blocking=True) for name in _TENSORS}
        return replace(self, **moved)


def pair_batches(
    split: PairSplit,
    max_tokens: int,
    seed: int = 0,
    epoch: int = 0,
    shuffle: bool = True,
    device: torch.device | str | None = None,
) -> Iterator[PairBatch]:
    """One pass over a split of pairs, in batches of pairs of similar lengths.

    Args:
        split: what to go through.
        max_tokens: a batch's rows times the longer of its two widths is at most this, marks and
            padding included. Evaluation takes smaller batches where these are mostly padding.
        seed: of the order, at least 0.
        epoch: number of the pass, at least 0; each has batches of its own.
        shuffle: False is for evaluation: always the same batches, longest first.
        device: where batches go.

    Returns:
        An iterator of batches; every pair comes in exactly one of them.

    Raises:
        UsageError: when the longest pair has more than `max_tokens`, or on negative numbers.
    """
    planned = plan_pair_batches(split, max_tokens, seed, epoch, shuffle)
    # An inner generator, so that wrong arguments are refused here and not at the first batch.
    return (collate_pairs(split, rows).to(device) for rows in planned)


def plan_pair_batches(
    split: PairSplit, max_tokens: int, seed: int = 0, epoch: int = 0, shuffle: bool = True
) -> list[Indices]:
    """The row numbers of every batch of a pass; arguments and errors as `pair_batches`."""
    check_order(seed, epoch)
    lengths = np.stack([split.source.lengths, split.target.lengths]) + 1
    longest = int(lengths.max(initial=0))
    if longest > max_tokens:
        raise UsageError(
            f"batches of at most {max_tokens} tokens cannot hold the longest pair, of {longest}; "
            f"allow at least {longest}"
        )
    if not shuffle:
        return _plan_evaluation(split, lengths, max_tokens)
    rng = np.random.default_rng((seed, epoch))
    order = rng.permutation(len(split))
    order = order[_by_length(lengths[:, order])]
    batches = _cut(order, lengths.max(axis=0)[order], max_tokens)
    return [batches[index] for index in rng.permutation(len(batches))]


def padding_share(split: PairSplit, batches: list[Indices]) -> float:
    """Share of padding in the two matrices of all batches, from 0 to 1."""
    lengths = np.stack([split.source.lengths, split.target.lengths]) + 1
    used = int(lengths.sum())
    places = sum(len(rows) * int(lengths[:, rows].max(axis=1).sum()) for rows in batches)
    return 1.0 - used / places if places else 0.0


def collate_pairs(split: PairSplit, rows: Indices) -> PairBatch:
    """The batch of these rows."""
    source = _matrix(split.source, rows, ends=True)
    inputs = _matrix(split.target, rows, begins=True)
    targets = _matrix(split.target, rows, ends=True)
    mask = inputs != PAD
    return PairBatch(
        rows=torch.from_numpy(np.asarray(rows, dtype=np.int64)),
        source=source,
        source_mask=source != PAD,
        inputs=inputs,
        targets=targets,
        target_mask=mask,
        num_tokens=int(mask.sum()),
    )


def source_batch(rows: list[list[int]]) -> tuple[Tensor, Tensor]:
    """Sources alone, for translating: int64 ``(B, S)`` ended by end marks, and their mask."""
    matrix = _matrix(TokenRows.of(rows), np.arange(len(rows)), ends=True)
    return matrix, matrix != PAD


def check_order(seed: int, epoch: int) -> None:
    """Refuse numbers that no order can be drawn from.

    Raises:
        UsageError: on a negative one.
    """
    for name, value in (("seed", seed), ("epoch", epoch)):
        if value < 0:
            raise UsageError(f"{name} must be at least 0; given {value}")


def _plan_evaluation(split: PairSplit, lengths: Indices, max_tokens: int) -> list[Indices]:
    """Longest first: what does not fit into memory shows at once.

    A small split has few pairs of each length, and large batches of it are mostly padding. In
    evaluation the size of a batch decides nothing but time, so smaller ones are taken.
    """
    order, longer = _by_length(lengths), lengths.max(axis=0)
    while True:
        batches = _cut(order, longer[order], max_tokens)[::-1]
        smaller = max_tokens // 2
        if padding_share(split, batches) < MOST_PADDING or smaller < longer.max(initial=1):
            return batches
        max_tokens = smaller


def _by_length(lengths: Indices) -> Indices:
    """An order in which neighbours have similar lengths on both sides, ties as they come in.

    Pairs are sorted by their longer side. Within one length they go from a longer source to a
    longer target, and back in the next, so that no batch has to hold both kinds.
    """
    longer = lengths.max(axis=0)
    lean = (lengths[0] - lengths[1]) * np.where(longer % 2, 1, -1)
    return np.lexsort((lean, longer))


def _cut(order: Indices, widths: Indices, max_tokens: int) -> list[Indices]:
    """Neighbours together as long as rows times the widest of them fit."""
    batches, start, widest = [], 0, 0
    for position, width in enumerate(widths.tolist()):
        widest = max(widest, width)
        if widest * (position - start + 1) > max_tokens:
            batches.append(order[start:position])
            start, widest = position, width
    if start < len(order):
        batches.append(order[start:])
    return batches


def _matrix(rows: TokenRows, chosen: Indices, begins: bool = False, ends: bool = False) -> Tensor:
    """Chosen rows with a begin or end mark, filled up with padding: int64 ``(B, longest)``."""
    starts = rows.offsets[chosen]
    lengths = rows.offsets[np.asarray(chosen) + 1] - starts - rows.gap
    width = int(lengths.max(initial=0)) + begins + ends
    matrix = np.full((len(chosen), width), PAD, dtype=np.int64)
    places = np.arange(width) - begins
    inside = (places >= 0) & (places < lengths[:, None])
    matrix[inside] = _gathered(rows.tokens, (starts[:, None] + places)[inside])
    if begins:
        matrix[:, 0] = BOS
    if ends:
        matrix[np.arange(len(chosen)), lengths + begins] = EOS
    return torch.from_numpy(matrix)


def _gathered(tokens: NDArray[Any], places: Indices) -> NDArray[Any]:
    return np.asarray(tokens[places])
