"""Batches of a text to model: segments of it, in random order or each going on with the last.

The network reads each token and should predict the next one; before the first token of the text
stands a begin mark.

Shapes: B segments of a batch, T tokens of a segment, C tokens of a context.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from search_spaces.errors import UsageError
from supernet.data.prepared import StreamSplit
from supernet.data.token_batches import Indices, check_order
from supernet.data.tokenizer import BOS, PAD


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
    """

    inputs: Tensor
    targets: Tensor
    mask: Tensor
    num_tokens: int
    continues: bool
    context: Tensor | None = None

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
        )

    def to(self, device: torch.device | str | None) -> StreamBatch:
        """The same batch on another device; None leaves it where it is."""
        if device is None:
            return self
        moved = {
            name: getattr(self, name).to(device, non_blocking=True)
            for name in ("inputs", "targets", "mask")
        }
        if self.context is not None:
            moved["context"] = self.context.to(device, non_blocking=True)
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

    Args:
        split: what to go through.
        max_tokens: of a batch; ``max_tokens // length`` segments are side by side.
        length: tokens of a segment, at least 1.
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
    _check_segments(max_tokens, length)
    check_order(seed, epoch)
    if context is not None and context < 0:
        raise UsageError(f"context must be at least 0 tokens; given {context}")
    rng = np.random.default_rng((seed, epoch))
    first = int(rng.integers(1, length + 1)) if shuffle else length
    edges = np.unique([0, *range(min(first, len(split)), len(split), length), len(split)])
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
    inputs, targets = (np.full(mask.shape, PAD, dtype=np.int64) for _ in range(2))
    targets[mask] = split.rows.tokens[places[mask]]
    inputs[read] = _inputs(split, places[read])
    return StreamBatch(
        inputs=torch.from_numpy(inputs),
        targets=torch.from_numpy(targets),
        mask=torch.from_numpy(mask),
        num_tokens=int(mask.sum()),
        continues=continues,
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
    return np.where(places == 0, BOS, before)
