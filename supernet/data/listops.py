"""ListOps: nested lists of digits under MIN, MAX, MED and SM, generated rather than stored.

The rules are the Long Range Arena's: below the greatest depth (the root has depth 1) a node is an
operator with probability 0.25 and a digit otherwise; an operator has 2 to 10 arguments; a digit
counts 1 towards the length and an operator 2 (itself and its closing bracket) plus its arguments;
only lengths strictly between two bounds are kept, and duplicates are dropped.

Source: Tay et al., "Long Range Arena" (2021), section 2.1.1, after Nangia and Bowman (2018). We
differ in drawing many trees at once, level by level, and in dropping duplicates across all splits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from search_spaces.errors import DataError, UsageError
from supernet.data.tokenizer import PAD

SYMBOLS = ("<pad>", *"0123456789", "[MIN", "[MAX", "[MED", "[SM", "]")
VOCAB_SIZE = len(SYMBOLS)
FIRST_DIGIT, FIRST_OPERATOR, CLOSE = 1, 11, 15

OPERATOR_PROBABILITY = 0.25
MAX_DEPTH = 10
MIN_ARGUMENTS, MAX_ARGUMENTS = 2, 10

TREES_PER_DRAW = 4096
MAX_DRAWS_WITHOUT_GAIN = 50

Tokens = NDArray[np.int8]


@dataclass(frozen=True, slots=True)
class LengthBounds:
    """Kept are the lengths strictly between `above` and `below`, counted in tokens.

    The Long Range Arena has 500 and 2,000; the default suits a CPU.

    Raises:
        UsageError: where no list fits between the bounds (the shortest has 4 tokens).
    """

    above: int = 128
    below: int = 512

    def __post_init__(self) -> None:
        if self.above < 0 or self.below < 5 or self.below - self.above < 2:
            raise UsageError(
                f"ListOps lengths strictly between {self.above} and {self.below} do not exist; "
                "the shortest list has 4 tokens, and the bounds must lie at least 2 apart"
            )


class _Level(NamedTuple):
    """The nodes of one depth of many trees; nodes of a parent stand side by side."""

    parent: NDArray[np.intp]  # index into the level above; at the root the tree's own number
    token: Tokens


def evaluate(tokens: Sequence[int]) -> int:
    """Value of a list, a digit from 0 to 9; padding is skipped.

    Raises:
        DataError: when the tokens are not exactly one well-formed list or digit.
    """
    pending: list[tuple[int, list[int]]] = [(PAD, [])]
    for token in tokens:
        if token >= CLOSE:
            operator, arguments = pending.pop()
            if token > CLOSE or not arguments or not pending:
                raise DataError("not a ListOps list: a bracket closes nothing or an empty operator")
            pending[-1][1].append(_apply(operator, arguments))
        elif token >= FIRST_OPERATOR:
            pending.append((token, []))
        elif token != PAD:
            pending[-1][1].append(token - FIRST_DIGIT)
    if len(pending) != 1 or len(pending[0][1]) != 1:
        raise DataError("not a ListOps list: expected one closed list or one digit")
    return pending[0][1][0]


def generate(count: int, bounds: LengthBounds, seed: int) -> list[Tokens]:
    """Draw distinct lists; a larger `count` only appends to what a smaller one gives.

    Args:
        count: number of lists.
        bounds: kept lengths.
        seed: of the draw; equal seeds give equal lists.

    Returns:
        `count` token rows of different lengths, without padding.

    Raises:
        DataError: when so many different lists cannot be found between the bounds.
    """
    found: dict[bytes, Tokens] = {}
    rng = np.random.default_rng(seed)
    draws_without_gain = 0
    while len(found) < count:
        before = len(found)
        for tokens in _draw(rng, bounds):
            found.setdefault(tokens.tobytes(), tokens)
        draws_without_gain = 0 if len(found) > before else draws_without_gain + 1
        if draws_without_gain == MAX_DRAWS_WITHOUT_GAIN:
            raise DataError(
                f"found only {len(found)} of {count} different ListOps lists with lengths "
                f"strictly between {bounds.above} and {bounds.below}; widen the bounds"
            )
    return list(found.values())[:count]


def pad(rows: Sequence[Tokens]) -> NDArray[np.int64]:
    """Rows of different lengths as one matrix (rows, longest), filled up with 0 at the end."""
    padded = np.full((len(rows), max(map(len, rows), default=0)), PAD, dtype=np.int64)
    for target, tokens in zip(padded, rows, strict=True):
        target[: len(tokens)] = tokens
    return padded


def _apply(operator: int, arguments: list[int]) -> int:
    match SYMBOLS[operator]:
        case "[MIN":
            return min(arguments)
        case "[MAX":
            return max(arguments)
        case "[SM":
            return sum(arguments) % 10
    middle, ordered = len(arguments) // 2, sorted(arguments)
    # The integer part of the median: digits are not negative, so rounding down is the same.
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) // 2


def _draw(rng: np.random.Generator, bounds: LengthBounds) -> Iterator[Tokens]:
    """One batch of random trees as token rows, those of a wrong length left out."""
    levels = _grow(rng)
    lengths = _lengths(levels)
    ends = np.cumsum(lengths[0])
    tokens = _lay_out(levels, lengths, ends - lengths[0])
    for tree in np.flatnonzero((lengths[0] > bounds.above) & (lengths[0] < bounds.below)):
        yield tokens[ends[tree] - lengths[0][tree] : ends[tree]]


def _grow(rng: np.random.Generator) -> list[_Level]:
    levels: list[_Level] = []
    parent = np.arange(TREES_PER_DRAW, dtype=np.intp)
    for depth in range(1, MAX_DEPTH + 1):
        nodes = len(parent)
        token = rng.integers(FIRST_DIGIT, FIRST_OPERATOR, nodes, dtype=np.int8)
        opens = rng.random(nodes) < (OPERATOR_PROBABILITY if depth < MAX_DEPTH else 0.0)
        operators = np.flatnonzero(opens)
        token[operators] = rng.integers(FIRST_OPERATOR, CLOSE, len(operators), dtype=np.int8)
        levels.append(_Level(parent, token))
        arguments = rng.integers(MIN_ARGUMENTS, MAX_ARGUMENTS + 1, len(operators))
        parent = np.repeat(operators, arguments)
    return levels


def _lengths(levels: list[_Level]) -> list[NDArray[np.int64]]:
    """Tokens of the subtree under every node, level by level from the root."""
    lengths: list[NDArray[np.int64]] = []
    below = np.zeros(len(levels[-1].token), dtype=np.int64)
    for depth in reversed(range(len(levels))):
        level = levels[depth]
        lengths.insert(0, below + np.where(level.token >= FIRST_OPERATOR, 2, 1))
        if depth:
            nodes_above = len(levels[depth - 1].token)
            sums = np.bincount(level.parent, weights=lengths[0], minlength=nodes_above)
            below = sums.astype(np.int64)
    return lengths


def _lay_out(
    levels: list[_Level], lengths: list[NDArray[np.int64]], starts: NDArray[np.int64]
) -> Tokens:
    """All trees as one row of tokens, in reading order; `starts` says where each tree begins."""
    tokens = np.zeros(int(lengths[0].sum()), dtype=np.int8)
    for depth, level in enumerate(levels):
        if depth:
            # A node stands after its parent's symbol and after the siblings before it.
            before = np.cumsum(lengths[depth]) - lengths[depth]
            first = np.searchsorted(level.parent, level.parent, side="left")
            starts = starts[level.parent] + 1 + before - before[first]
        tokens[starts] = level.token
        opens = level.token >= FIRST_OPERATOR
        tokens[starts[opens] + lengths[depth][opens] - 1] = CLOSE
    return tokens
