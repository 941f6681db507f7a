"""Tokens that only recall can tell: repeats of a pair of tokens from beyond a window.

A token x_t is *recalled* when the pair (x_{t-1}, x_t) was read before in the same segment, and the
last time at a distance of more than the window: attention to the last `window` tokens does not see
what followed x_{t-1} the last time, and a network that remembers it predicts x_t at once.

Source: Arora et al., "Zoology" (2023, arXiv 2312.04927), section 3.1, who score repeated bigrams
(AR hits) apart from all other tokens. We differ in leaving out what a window sees, instead of
bigrams that are frequent in training.

Shapes: N tokens of a text.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from supernet.data.prepared import StreamSplit
from supernet.data.tokenizer import BOS

Ints = NDArray[np.int64]


def with_recalled(split: StreamSplit, length: int, window: int) -> StreamSplit:
    """A split that knows which of its tokens are recalled.

    Args:
        split: a text.
        length: tokens of a segment in evaluation; rows that stand alone are segments themselves.
        window: tokens, at least 0.

    Returns:
        The split with `recalled`; as it is where no token is.
    """
    before, tokens, segments = _read(split, length)
    found = repeats_beyond(before, tokens, segments, window)
    if split.scored is not None:
        found &= split.scored
    return replace(split, recalled=found) if found.any() else split


def distances(split: StreamSplit, length: int) -> tuple[Ints, Ints]:
    """How far each token of a split is from what tells it, and from the beginning.

    Args:
        split: a text.
        length: as of `with_recalled`.

    Returns:
        How many tokens ago its bigram last stood in the segment, 0 where it did not, and its place
        in the segment, from 1; ``(N,)`` each.
    """
    before, tokens, segments = _read(split, length)
    first = np.flatnonzero(np.diff(segments, prepend=segments[:1] - 1))
    starts = np.repeat(first, np.diff(first, append=len(tokens)))
    return repeated_after(before, tokens, segments), np.arange(len(tokens)) - starts + 1


def _read(split: StreamSplit, length: int) -> tuple[Ints, Ints, Ints]:
    """The first and second token of each bigram, and the number of its segment."""
    tokens = np.asarray(split.rows.tokens, dtype=np.int64)
    before = np.concatenate([[BOS], tokens[:-1]])
    if split.alone:
        before[split.rows.offsets[:-1]] = BOS
        return before, tokens, np.repeat(np.arange(len(split.rows)), split.rows.lengths)
    # Without a mark before it the first token is in none.
    return before, tokens, (np.arange(len(tokens)) - (split.begin is None)) // length


def repeats_beyond(
    before_N: Ints, tokens_N: Ints, segments_N: Ints, window: int
) -> NDArray[np.bool_]:
    """Whether a bigram last stood in the same segment, more than `window` tokens ago: ``(N,)``.

    Args:
        before_N: the first token of each bigram.
        tokens_N: the second, each at least 0.
        segments_N: number of the segment, ascending.
        window: at least 0.
    """
    return repeated_after(before_N, tokens_N, segments_N) > window


def repeated_after(before_N: Ints, tokens_N: Ints, segments_N: Ints) -> Ints:
    """How many tokens ago a bigram last stood in the same segment; 0 where it did not: ``(N,)``.

    Args:
        before_N: as of `repeats_beyond`.
        tokens_N: the same.
        segments_N: the same.
    """
    pairs_N = before_N * (int(tokens_N.max(initial=0)) + 1) + tokens_N
    order_N = np.lexsort((pairs_N, segments_N))  # stable: within equal ones as they stand
    again = (np.diff(pairs_N[order_N]) == 0) & (np.diff(segments_N[order_N]) == 0)
    found_N = np.zeros(len(tokens_N), dtype=np.int64)
    found_N[order_N[1:]] = np.where(again, np.diff(order_N), 0)
    return found_N
