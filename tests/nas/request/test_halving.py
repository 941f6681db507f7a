"""When candidates stop, and what they cost."""

from __future__ import annotations

import pytest

from nas.request.halving import stops, trainings


@pytest.mark.parametrize(
    ("number", "shares", "cost"),
    [(1, [], 1.0), (2, [0.5], 1.5), (3, [0.2, 0.5], 1.7), (5, [0.08, 0.2, 0.5], 1.86)],
)
def test_three_cost_1_7_trainings(number: int, shares: list[float], cost: float) -> None:
    assert stops(number) == shares
    assert trainings(number) == pytest.approx(cost)
