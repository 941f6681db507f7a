"""What layers need alike is worked out once, and only while it is shared."""

from __future__ import annotations

import torch
from torch import Tensor

from supernet.shared import shared, sharing


class Counted:
    """A function that counts its calls."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, mask: Tensor | None, span: int, *, factor: int = 1) -> Tensor:
        """Something of its arguments."""
        self.calls += 1
        return torch.tensor(0 if mask is None else int(mask.sum())) + span * factor


def test_the_same_arguments_are_asked_for_once() -> None:
    make, mask = Counted(), torch.ones(3, dtype=torch.bool)
    with sharing():
        first = shared(make, mask, 2)
        assert shared(make, mask, 2) is first and first == 5
        assert make.calls == 1


def test_other_arguments_are_not_mixed_up() -> None:
    """Neither other numbers, nor another tensor of the same numbers, nor another function."""
    make, mask = Counted(), torch.ones(3, dtype=torch.bool)
    with sharing():
        found = [
            shared(make, mask, 2),
            shared(make, mask, 3),
            shared(make, mask.clone(), 2),
            shared(make, None, 2),
            shared(make, mask, 2, factor=4),
            shared(Counted(), mask, 2),
        ]
    assert [int(one) for one in found] == [5, 6, 5, 2, 11, 5]
    assert make.calls == 5


def test_outside_nothing_is_kept() -> None:
    make, mask = Counted(), torch.ones(3, dtype=torch.bool)
    shared(make, mask, 2)
    for _ in range(2):
        with sharing():
            shared(make, mask, 2)
    shared(make, mask, 2)
    assert make.calls == 4


def test_what_is_shared_within_is_shared_without() -> None:
    make, mask = Counted(), torch.ones(3, dtype=torch.bool)
    with sharing():
        shared(make, mask, 2)
        with sharing():
            shared(make, mask, 2)
        shared(make, mask, 2)
    assert make.calls == 1
