"""What a search does to networks: draw, mutate, cross, walk, enumerate.

Everything works on genotype matrices ``(N, S)`` (see `search_spaces.genotypes`), takes its
randomness as an argument, stays inside the space and returns canonical rows.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from search_spaces.architecture import base_kind
from search_spaces.errors import UsageError
from search_spaces.genotypes import Genotypes, GenotypeSpace, Position
from search_spaces.space import Slot

ENUMERATION_LIMIT = 1_000_000
# Of a space with at most this many networks per wanted one, every network is listed instead of
# drawing until enough different ones were met.
LISTING_RATIO = 4
MAX_ROUNDS = 200

_SMALLEST_KINDS = ("skip", "linear", "window", "softmax", "omni")
_LARGEST_KINDS = ("softmax", "omni", "window", "linear", "skip")


def sample(space: GenotypeSpace, rng: np.random.Generator, n: int) -> Genotypes:
    """Draw `n` networks, each slot uniformly and independently; repetitions may occur.

    Depths are therefore equally likely, although deeper networks are by far more numerous:
    uniform over architectures would hardly ever show a shallow one to a supernet or a ranker.

    Args:
        space: the space to draw from.
        rng: source of randomness.
        n: number of rows.

    Returns:
        ``(n, S)`` canonical rows.
    """
    return space.canonical(_draw(space, rng, n))


def sample_distinct(space: GenotypeSpace, rng: np.random.Generator, n: int) -> Genotypes:
    """Draw `n` different networks, or all of them where the space has no more than `n`.

    Small spaces (fewer than `LISTING_RATIO` times `n` networks) are listed and shuffled; others
    are sampled by `sample` until enough different rows were met.

    Returns:
        ``(min(n, space.size), S)`` distinct canonical rows in random order.

    Raises:
        UsageError: when a large space keeps giving the same few networks.
    """
    if space.size <= LISTING_RATIO * n:
        rows = enumerate_all(space, LISTING_RATIO * n)
        return rows[rng.permutation(len(rows))[:n]]
    rows = np.zeros((0, len(space.slots)), dtype=np.int16)
    for _ in range(MAX_ROUNDS):
        if len(rows) >= n:
            return rows[:n]
        rows = distinct(np.concatenate([rows, sample(space, rng, max(n, 64))]))
    raise UsageError(
        f"only {len(rows)} different networks of the space {space.name} were met in "
        f"{MAX_ROUNDS} rounds of sampling; {n} were asked for: ask for at most {len(rows)}"
    )


def half_alike(space: GenotypeSpace, rows: Genotypes) -> Genotypes:
    """Every second row with all layers like the first, as far as their choices allow.

    For what is a sum over layers: where each layer is drawn by itself such sums lie near their
    means, and what a choice costs is hardly told from few networks (experiments/LOG.md,
    2026-11-28).

    Args:
        space: of the rows.
        rows: ``(N, S)`` canonical rows.

    Returns:
        ``(N, S)`` canonical rows, the first as it is; there may be fewer different ones.
    """
    changed, first = rows.copy(), dict[str, int]()
    for column, slot in enumerate(space.slots):
        like = first.setdefault(slot.gene_name, column)
        choices = space.slots[like].choices
        places = [slot.choices.index(c) if c in slot.choices else -1 for c in choices]
        found = np.array(places, dtype=np.int16)[rows[1::2, like]]
        changed[1::2, column] = np.where(found < 0, rows[1::2, column], found)
    return space.canonical(changed)


def mutate(
    space: GenotypeSpace, genotypes: Genotypes, rate: float, rng: np.random.Generator
) -> Genotypes:
    """Change each gene that is there to another of its choices with probability `rate`.

    Layers that appear because the depth grew get random genes. A gene with one choice stays.

    Args:
        space: the space of the rows.
        genotypes: ``(N, S)`` canonical rows.
        rate: probability in [0, 1].
        rng: source of randomness.

    Returns:
        ``(N, S)`` canonical rows; row i is the mutant of row i.
    """
    if not 0 <= rate <= 1:
        raise UsageError(f"the mutation rate must lie between 0 and 1; given {rate}")
    choices = space.num_choices
    was_active = space.active(genotypes)
    hit = (rng.random(genotypes.shape) < rate) & was_active & (choices > 1)
    step = 1 + (rng.random(genotypes.shape) * (choices - 1)).astype(np.int16)
    moved = genotypes + step
    moved -= np.where(moved >= choices, choices, 0).astype(np.int16)
    child = np.where(hit, moved, genotypes)
    appeared = space.active(child) & ~was_active
    return space.canonical(np.where(appeared, _draw(space, rng, len(genotypes)), child))


def crossover(
    space: GenotypeSpace, a: Genotypes, b: Genotypes, rng: np.random.Generator
) -> Genotypes:
    """Take each gene from either parent with equal probability.

    A gene of a layer that only one parent has comes from that parent.

    Args:
        space: the space of both parents.
        a: ``(N, S)`` canonical rows.
        b: ``(N, S)`` canonical rows.
        rng: source of randomness.

    Returns:
        ``(N, S)`` canonical rows; row i is a child of ``a[i]`` and ``b[i]``.
    """
    if a.shape != b.shape:
        raise UsageError(f"parents must come in pairs; given {a.shape} and {b.shape}")
    coin = rng.random(a.shape) < 0.5
    from_a = space.active(a) & (coin | ~space.active(b))
    return space.canonical(np.where(from_a, a, b))


def neighbours(space: GenotypeSpace, genotype: Genotypes, ending: str = "") -> Genotypes:
    """All networks one gene away.

    What appears with a change, such as a layer, gets what `GenotypeSpace.completed` says.

    Args:
        space: the space of the row.
        genotype: one canonical row, ``(S,)`` or ``(1, S)``.
        ending: only genes whose name ends so, for example ``attention``.

    Returns:
        ``(K, S)`` distinct canonical rows without the row itself.
    """
    row = np.reshape(genotype, (1, -1))
    active = space.active(row)[0]
    template = np.where(active, row, space.completed(row))
    rows = []
    for column in np.flatnonzero(active).tolist():
        for index in range(len(space.slots[column].choices)):
            if index != row[0, column] and space.slots[column].name.endswith(ending):
                changed = template.copy()
                changed[0, column] = index
                rows.append(changed)
    empty = np.zeros((0, len(space.slots)), dtype=np.int16)
    return distinct(space.canonical(np.concatenate([empty, *rows])))


def smallest(space: GenotypeSpace) -> Genotypes:
    """The network with the smallest choice of every size, ``(1, S)``.

    Attention kinds: none where that is offered, else linear, else the smallest window, else
    softmax, else omni.
    """
    return _extreme(space, 0, _SMALLEST_KINDS)


def largest(space: GenotypeSpace) -> Genotypes:
    """The network with the largest choice of every size, ``(1, S)``.

    Attention kinds: softmax where it is offered, else omni, else the largest window, else linear,
    else none.
    """
    return _extreme(space, -1, _LARGEST_KINDS)


def enumerate_all(space: GenotypeSpace, limit: int = ENUMERATION_LIMIT) -> Genotypes:
    """Every network of the space once, ``(space.size, S)``.

    Raises:
        UsageError: when the space has more than `limit` networks.
    """
    if space.size > limit:
        raise UsageError(
            f"the space {space.name} has {space.size} networks, more than the {limit} that may "
            "be listed: sample it, or restrict it first"
        )
    columns = space.deciding_columns
    blocks = []
    for indices in itertools.product(*(range(space.num_choices[column]) for column in columns)):
        blocks.append(_all_that_decide(space, dict(zip(columns, indices, strict=True))))
    return np.concatenate(blocks)


def distinct(genotypes: Genotypes) -> Genotypes:
    """The first occurrence of each row, in the order given, ``(K, S)``."""
    rows = np.ascontiguousarray(genotypes)
    keys = rows.view(np.dtype((np.void, rows.dtype.itemsize * rows.shape[1]))).ravel()
    _, first = np.unique(keys, return_index=True)
    return rows[np.sort(first)]


def _draw(space: GenotypeSpace, rng: np.random.Generator, n: int) -> NDArray[np.int16]:
    """Uniform choice indices for all slots, those of missing layers included, ``(n, S)``."""
    return (rng.random((n, len(space.slots))) * space.num_choices).astype(np.int16)


def _all_that_decide(space: GenotypeSpace, fixed: dict[int, int]) -> Genotypes:
    """All rows with these indices in the deciding columns (column → index)."""
    row = np.zeros((1, len(space.slots)), dtype=np.int16)
    row[0, list(fixed)] = list(fixed.values())
    there = space.active(row)[0]
    if row[0, ~there].any():  # one that decides is itself not there: counted with another
        return row[:0]
    free = [column for column in np.flatnonzero(there).tolist() if column not in fixed]
    radices = [len(space.slots[column].choices) for column in free]
    number = np.arange(math.prod(radices))
    rows = np.repeat(row, len(number), axis=0)
    for column, radix in zip(reversed(free), reversed(radices), strict=True):
        rows[:, column] = number % radix
        number //= radix
    return rows


def _extreme(space: GenotypeSpace, end: int, kinds: Sequence[str]) -> Genotypes:
    row = [_extreme_index(slot, end, kinds) for slot in space.slots]
    return space.canonical(np.array([row], dtype=np.int16))


def _extreme_index(slot: Position, end: int, kinds: Sequence[str]) -> int:
    wanted: object = slot.choices[end]
    if isinstance(slot, Slot) and not slot.ordered:
        offered = [base_kind(str(choice)) for choice in slot.choices]
        kind = next(kind for kind in kinds if kind in offered)
        wanted = [choice for choice in slot.choices if base_kind(str(choice)) == kind][end]
    return slot.choices.index(wanted)
