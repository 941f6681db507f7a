"""Which training examples are held out for validation and test, where no files are given for these.

Examples that belong together stay together: those of a group, those that are equal and, of pairs,
those that share a side. So nothing that was learnt by heart is taken for skill. Lines of running
text are held out at the ends of files, since neighbours tell about each other.

Shapes: N examples, S sides, K classes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from search_spaces.errors import DataError
from search_spaces.wording import mark
from supernet.data.prepare.plan import SPLITS
from supernet.data.sources import SPLIT_SEED, VALID_MOST, VALID_SHARE, class_quotas

LINES_SHARE = 20  # one line of running text in so many goes to either split

Codes = NDArray[np.int8]  # (N,), each example's place in SPLITS
Groups = NDArray[np.int64]  # (N,)


def joined_groups(keys_SN: Sequence[NDArray[np.uint64]]) -> Groups:
    """Numbers of groups: examples with an equal key on any side are in one, and theirs too."""
    from scipy.sparse import coo_array  # late: it takes long to load
    from scipy.sparse.csgraph import connected_components

    numbers_SN = [np.unique(keys_N, return_inverse=True)[1] for keys_N in keys_SN]
    if len(numbers_SN) == 1:
        return numbers_SN[0].astype(np.int64)
    count = len(numbers_SN[0])
    # Examples and keys are the nodes of a graph, and the key of a side is an edge.
    offset, rows, columns = count, [], []
    for numbers_N in numbers_SN:
        rows.append(np.arange(count))
        columns.append(numbers_N + offset)
        offset += int(numbers_N.max(initial=-1)) + 1
    ends = (np.concatenate(rows), np.concatenate(columns))
    graph = coo_array((np.ones(len(ends[0]), dtype=np.int8), ends), shape=(offset, offset))
    return connected_components(graph, directed=False)[1][:count].astype(np.int64)


def hold_out(
    groups_N: Groups,
    labels_N: NDArray[np.int64],
    missing: Collection[str],
) -> Codes:
    """Hold out one in ten examples, at most 5,000, first for test and then for validation.

    Each class gets its share, as far as whole groups allow; the same in every run.

    Args:
        groups_N: the group of each example.
        labels_N: its class.
        missing: splits that were not given.

    Raises:
        DataError: when there are too few examples or groups.
    """
    codes_N = np.zeros(len(groups_N), dtype=np.int8)
    for split in reversed(SPLITS):
        if split not in missing:
            continue
        rest = np.flatnonzero(codes_N == 0)
        count = min(len(rest) // VALID_SHARE, VALID_MOST)
        if not count:
            raise DataError(
                f"{len(rest)} training examples are too few to hold some out for the {split} "
                f"split; give {mark(split)}"
            )
        held = _chosen(groups_N[rest], labels_N[rest], count)
        if len(held) == len(rest) or not len(held):
            raise DataError(
                f"the {len(rest)} training examples all belong together, as equal ones and those "
                f"of a group do, or no others of their class are left, so that none can be held "
                f"out for the {split} split; give {mark(split)}"
            )
        codes_N[rest[held]] = SPLITS.index(split)
    return codes_N


def _chosen(groups_N: Groups, labels_N: NDArray[np.int64], count: int) -> NDArray[np.intp]:
    """Indices of whole groups, about `count` examples; of each class some are left."""
    wanted = class_quotas(labels_N, count)
    order = np.argsort(groups_N, kind="stable")
    borders = np.flatnonzero(np.diff(groups_N[order])) + 1
    if not len(borders):
        return np.zeros(0, dtype=np.intp)
    starts, ends = np.append(0, borders), np.append(borders, len(order))

    def members(number: int) -> NDArray[np.intp]:
        return order[starts[number] : ends[number]]

    kept = np.bincount(labels_N)

    def classes(number: int) -> NDArray[np.int64]:
        return np.bincount(labels_N[members(number)], minlength=len(kept))

    shuffled = np.random.default_rng(SPLIT_SEED).permutation(len(starts)).tolist()
    left, taken = wanted.copy(), list[NDArray[np.intp]]()
    # First those that fit, then those that bring the classes nearer to their shares.
    for fits in (True, False):
        rest = []
        for number in shuffled:
            if not left.any():
                break
            inside = classes(number)
            nearer = np.abs(left - inside).sum() < np.abs(left).sum()
            allowed = nearer and _leaves_some(inside, kept)
            if allowed and ((inside <= left).all() or not fits):
                taken.append(members(number))
                left -= inside
                kept -= inside
            else:
                rest.append(number)
        shuffled = rest
    if not taken:  # all groups are larger than the split should be
        taken += map(members, _nearest(map(classes, range(len(starts))), wanted, kept))
    return np.sort(np.concatenate([np.zeros(0, dtype=np.intp), *taken]))


def _nearest(
    groups: Iterable[NDArray[np.int64]], wanted_K: NDArray[np.int64], kept_K: NDArray[np.int64]
) -> list[int]:
    """The number of the group that is nearest to the shares; none where each takes all of a class.

    Args:
        groups: how many examples of each class they hold, ``(K,)``.
        wanted_K: examples of each class that are wanted.
        kept_K: examples of each class that there are.
    """
    distances = {
        number: np.abs(inside_K - wanted_K).sum()
        for number, inside_K in enumerate(groups)
        if _leaves_some(inside_K, kept_K)
    }
    return [min(distances, key=distances.__getitem__)] if distances else []


def _leaves_some(inside_K: NDArray[np.int64], kept_K: NDArray[np.int64]) -> bool:
    return bool(((inside_K < kept_K) | (inside_K == 0)).all())


def hold_out_ends(counts: Sequence[int], missing: Collection[str]) -> Codes:
    """Hold out the last lines of every file, first those for validation.

    Args:
        counts: lines of each file.
        missing: splits that were not given.

    Raises:
        DataError: when there are too few lines.
    """
    codes_N = np.zeros(sum(counts), dtype=np.int8)
    # Lines that count for the next one to be held out: of files of a line each every twentieth is,
    # for either split another.
    unshared, end = {"valid": LINES_SHARE // 2, "test": 0}, 0
    for count in counts:
        end += count
        held = {}
        for split in unshared:
            if split in missing:
                held[split], unshared[split] = divmod(unshared[split] + count, LINES_SHARE)
        start = end - sum(held.values())
        for split, lines in held.items():
            codes_N[start : start + lines] = SPLITS.index(split)
            start += lines
    for split in missing:
        if SPLITS.index(split) not in codes_N:
            raise DataError(
                f"{len(codes_N):,} line{'s are' if len(codes_N) > 1 else ' is'} too few to hold "
                f"some out for the {split} split: give more, {mark(split)} FILE, or in "
                f"a folder of texts a file called {split}.txt; fold -s breaks a long line"
            )
    return codes_N
