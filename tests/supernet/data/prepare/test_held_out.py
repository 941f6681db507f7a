"""What is held out: whole groups, each class in its share, and the ends of running text."""

from __future__ import annotations

import numpy as np
import pytest

from search_spaces.errors import DataError
from supernet.data.prepare.held_out import hold_out, hold_out_ends, joined_groups
from supernet.data.sources import holdout


def naive_groups(keys: list[list[int]]) -> list[int]:
    """Merge the groups of two examples that share a key, until nothing changes."""
    count = len(keys[0])
    groups = list(range(count))
    changed = True
    while changed:
        changed = False
        for one in range(count):
            for other in range(one):
                shared = any(side[one] == side[other] for side in keys)
                if shared and groups[one] != groups[other]:
                    least = min(groups[one], groups[other])
                    groups[one] = groups[other] = least
                    changed = True
    return groups


def same_parts(one: list[int], other: list[int]) -> bool:
    pairs = set(zip(one, other, strict=True))
    return len(pairs) == len(set(one)) == len(set(other))


@pytest.mark.parametrize("sides", [1, 2, 3])
def test_groups_are_those_of_the_slow_way(sides: int) -> None:
    rng = np.random.default_rng(sides)
    for most in (4, 20, 80):
        keys = [rng.integers(0, most, 40, dtype=np.uint64) for _ in range(sides)]
        found = joined_groups(keys).tolist()
        assert same_parts(found, naive_groups([side.tolist() for side in keys]))


def test_no_group_is_in_two_splits_and_classes_keep_their_shares() -> None:
    rng = np.random.default_rng(0)
    groups = rng.integers(0, 150, 1000)
    labels = rng.choice(3, 1000, p=[0.7, 0.2, 0.1])
    codes = hold_out(groups, labels, ("valid", "test"))
    assert all(len(set(codes[groups == group])) == 1 for group in set(groups.tolist()))
    for code in (1, 2):
        counts = np.bincount(labels[codes == code], minlength=3)
        assert 80 <= counts.sum() <= 100 and abs(counts[0] - 70) <= 10
    # Groups of one are held out as examples without groups are.
    alone = hold_out(np.arange(1000), labels, ("test",))
    assert (
        np.bincount(labels[alone == 2]).tolist()
        == np.bincount(labels[holdout(labels, 100)[1]]).tolist()
    )
    assert not hold_out(groups, labels, ()).any()


def test_large_groups_are_held_out_one_by_one() -> None:
    groups = np.repeat(np.arange(4), 25)
    codes = hold_out(groups, np.zeros(100, dtype=np.int64), ("valid", "test"))
    assert np.bincount(codes).tolist() == [50, 25, 25]
    for few in (np.zeros(100, dtype=np.int64), np.repeat(np.arange(2), 50)):
        with pytest.raises(DataError, match="all belong together"):
            hold_out(few, np.zeros(100, dtype=np.int64), ("valid", "test"))
    with pytest.raises(DataError, match="9 training examples are too few"):
        hold_out(np.arange(9), np.zeros(9, dtype=np.int64), ("test",))


def test_a_class_is_never_held_out_as_a_whole() -> None:
    labels = np.array([*([0] * 26), *([1] * 2), *range(2, 20)])
    for keys in (np.arange(len(labels)), np.arange(len(labels)) // 2):
        codes = hold_out(keys, labels, ("valid", "test"))
        assert {1, 2} <= set(codes.tolist()) and set(labels[codes == 0].tolist()) == set(range(20))
    with pytest.raises(DataError, match="no others of their class are left"):
        hold_out(np.arange(10), np.arange(10), ("test",))
    kept, held = holdout(labels, 10)
    assert set(labels[kept].tolist()) == set(range(20)) and len(held)
    few = np.array([0, 1, 1, 1])
    assert sum(len(set(few[holdout(few, n, left=0)[1]])) for n in (1, 2, 3)) == 5


def test_ends_of_files() -> None:
    codes = hold_out_ends([60, 20], ("valid", "test"))
    assert codes.tolist() == [0] * 54 + [1] * 3 + [2] * 3 + [0] * 18 + [1] + [2]
    assert hold_out_ends([60], ("test",)).tolist() == [0] * 57 + [2] * 3
    assert np.bincount(hold_out_ends([1] * 40, ("valid", "test"))).tolist() == [36, 2, 2]
    with pytest.raises(DataError, match=r"2 lines are too few .* --valid FILE"):
        hold_out_ends([2], ("valid", "test"))
