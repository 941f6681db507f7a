"""Batches of pairs and of streams of text, in an order that (seed, epoch) alone decides.

Pairs: batches hold a number of tokens. The encoder reads the source and an end mark; the decoder
reads a begin mark and the target, and should predict the target and an end mark.

Streams: segments of the text, in random order or each going on with the last. The network reads
each token and should predict the next one; before the first token stands a begin mark, or nothing,
and then the first is read alone. Of a split of lines that stand alone each line is a segment.

Shapes: B rows or segments of a batch, S source tokens, T target tokens or tokens of a segment, C
tokens of a context.
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
from supernet.data.prepared import PairSplit, StreamSplit
from supernet.data.text_files import TokenRows
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
    source = padded_rows(split.source, rows, ends=True)
    inputs = padded_rows(split.target, rows, begins=True)
    targets = padded_rows(split.target, rows, ends=True)
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
    matrix = padded_rows(TokenRows.of(rows), np.arange(len(rows)), ends=True)
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


def padded_rows(
    rows: TokenRows, chosen: Indices, begins: bool = False, ends: bool = False
) -> Tensor:
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


@dataclass(frozen=True, eq=False, slots=True)
class StreamBatch:
    """Some segments of a text.

    Attributes:
        inputs: what the network reads, int64 ``(B, T)``, 0 behind the end of the text.
        targets: what it should predict, int64 ``(B, T)``, 0 where there is nothing to predict.
        mask: bool ``(B, T)``, True where there is a token to predict; nowhere else are targets.
        num_tokens: tokens to predict.
        continues: whether row i goes on where row i of the batch before ended, so that a memory
            of it may be carried over.
        context: what the network would have read before `inputs`, int64 ``(B, C)``, 0 before the
            begin of the text; None where it was not asked for.
        recalled: which targets count as recalled, bool ``(B, T)``; None where that is not known.
    """

    inputs: Tensor
    targets: Tensor
    mask: Tensor
    num_tokens: int
    continues: bool
    context: Tensor | None = None
    recalled: Tensor | None = None

    def __len__(self) -> int:
        return len(self.inputs)

    @property
    def num_labels(self) -> int:
        """Tokens to predict."""
        return self.num_tokens

    def part(self, rows: slice) -> StreamBatch:
        """Some of the segments, padded as they are here."""
        return StreamBatch(
            self.inputs[rows],
            self.targets[rows],
            self.mask[rows],
            num_tokens=int(self.mask[rows].sum()),
            continues=self.continues,
            context=None if self.context is None else self.context[rows],
            recalled=None if self.recalled is None else self.recalled[rows],
        )

    def to(self, device: torch.device | str | None) -> StreamBatch:
        """The same batch on another device; None leaves it where it is."""
        if device is None:
            return self
        moved = {
            name: getattr(self, name).to(device, non_blocking=True)
            for name in ("inputs", "targets", "mask", "context", "recalled")
            if getattr(self, name) is not None
        }
        return replace(self, **moved)


def stream_batches(
    split: StreamSplit,
    max_tokens: int,
    length: int,
    seed: int = 0,
    epoch: int = 0,
    shuffle: bool = True,
    device: torch.device | str | None = None,
    context: int | None = None,
) -> Iterator[StreamBatch]:
    """One pass over a text in segments of `length`, each token predicted exactly once.

    Where no mark stands before the text, its first token is not predicted.

    Args:
        split: what to go through.
        max_tokens: of a batch; ``max_tokens // length`` segments are side by side.
        length: tokens of a segment, at least 1; lines that stand alone have their own.
        seed: of the order, at least 0.
        epoch: number of the pass, at least 0.
        shuffle: segments in random order, cut at other places in every pass; False keeps the order
            of the text.
        device: where batches go.
        context: tokens before each segment that batches bring along, for networks with a memory;
            they are not predicted and do not count among `max_tokens`. None for no context.

    Raises:
        UsageError: when a segment has more than `max_tokens`, or on wrong numbers.
    """
    length = split.longest_segment(length)
    _check_segments(max_tokens, length)
    check_order(seed, epoch)
    if context is not None and context < 0:
        raise UsageError(f"context must be at least 0 tokens; given {context}")
    rng = np.random.default_rng((seed, epoch))
    if split.alone:
        edges = split.rows.offsets
    else:
        first = int(rng.integers(1, length + 1)) if shuffle else length
        low = min(int(split.begin is None), len(split))
        cuts = range(min(low + first, len(split)), len(split), length)
        edges = np.unique([low, *cuts, len(split)])
    starts, ends = edges[:-1], edges[1:]
    order = rng.permutation(len(starts)) if shuffle else np.arange(len(starts))
    count = max_tokens // length
    parts = [order[at : at + count] for at in range(0, len(order), count)]

    def batch(part: Indices) -> StreamBatch:
        segments = _segments(split, starts[part], ends[part], False)
        if context is not None:
            segments = replace(segments, context=_context(split, starts[part], context))
        return segments.to(device)

    return (batch(part) for part in parts)


def recurrent_batches(
    split: StreamSplit,
    max_tokens: int,
    length: int,
    warm_up: int,
    device: torch.device | str | None = None,
) -> Iterator[StreamBatch]:
    """One pass over a text in which every batch continues the rows of the one before.

    The text is cut into segments of `length` tokens, and these into lanes that are read side by
    side; each token is predicted exactly once. A lane reads `warm_up` segments before the first of
    which it predicts tokens. With as many as a network's outputs can depend on, every token is
    predicted as if the text were read in one lane, however many there are. So that the warm-up is a
    third of the reading at most, a short text has fewer lanes than fit into a batch, down to one.

    Source: Dai et al., "Transformer-XL" (2019), section 3.2. Their lanes begin without a memory.

    Args:
        split: what to go through.
        max_tokens: of a batch.
        length: tokens of a segment, at least 1.
        warm_up: segments that a lane reads first, at least 0; the first lane, at the begin of the
            text, has none before it and predicts all that it reads.
        device: where batches go.

    Raises:
        UsageError: as `stream_batches`.
    """
    _check_segments(max_tokens, length)
    total = len(split)
    segments = -(-total // length)
    most = max(1, (segments - warm_up) // max(1, 2 * warm_up))
    lanes = min(max_tokens // length, most)
    own = max(0, -(-(segments - warm_up) // lanes))
    # Lane i reads from segment i * own on, and all read warm_up + own segments.
    begins = np.arange(lanes) * own * length
    stops = np.minimum(begins + (warm_up + own) * length, total)
    scored = np.where(begins > 0, begins + warm_up * length, 0)

    def batch(step: int) -> StreamBatch:
        starts = np.minimum(begins + step * length, stops)
        ends = np.minimum(starts + length, stops)
        return _segments(split, starts, ends, step > 0, scored)

    return (batch(step).to(device) for step in range(min(segments, warm_up + own)))


def _check_segments(max_tokens: int, length: int) -> None:
    if not 1 <= length <= max_tokens:
        raise UsageError(
            f"segments of {length} tokens do not fit into batches of at most {max_tokens}; "
            "both must be at least 1, and a segment no longer than a batch"
        )


def _segments(
    split: StreamSplit,
    starts: Indices,
    ends: Indices,
    continues: bool,
    scored: Indices | None = None,
) -> StreamBatch:
    """The text from `starts` to `ends`, ``(B,)`` each, to be predicted from `scored` on."""
    width = int((ends - starts).max(initial=0))
    places = starts[:, None] + np.arange(width)
    read = places < ends[:, None]
    mask = read if scored is None else read & (places >= scored[:, None])
    if split.scored is not None:
        mask = mask & split.scored[np.minimum(places, len(split) - 1)]
    recalled = None
    if split.recalled is not None:
        recalled = torch.from_numpy(mask & split.recalled[np.minimum(places, len(split) - 1)])
    inputs, targets = (np.full(mask.shape, PAD, dtype=np.int64) for _ in range(2))
    targets[mask] = split.rows.tokens[places[mask]]
    inputs[read] = _inputs(split, places[read])
    if split.alone:
        inputs[:, :1] = BOS
    return StreamBatch(
        inputs=torch.from_numpy(inputs),
        targets=torch.from_numpy(targets),
        mask=torch.from_numpy(mask),
        num_tokens=int(mask.sum()),
        continues=continues,
        recalled=recalled,
    )


def _context(split: StreamSplit, starts: Indices, count: int) -> Tensor:
    """What stands before these places of the text, ``(B, C)``."""
    places = starts[:, None] + np.arange(-count, 0)
    context = np.full(places.shape, PAD, dtype=np.int64)
    there = places >= 0
    context[there] = _inputs(split, places[there])
    return torch.from_numpy(context)


def _inputs(split: StreamSplit, places: Indices) -> Indices:
    """What the network reads to predict the tokens at these places."""
    before: Indices = split.rows.tokens[np.maximum(places - 1, 0)]
    return before if split.begin is None else np.where(places == 0, split.begin, before)
