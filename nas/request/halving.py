"""When candidates that train beside each other stop, and what all of that costs.

Successive halving: at every stop the better half goes on, and the last one left is trained to its
end. Three candidates cost 3 · 0.2 + 2 · 0.3 + 0.5 = 1.7 trainings.

Source: Jamieson and Talwalkar, Non-stochastic Best Arm Identification and Hyperparameter
Optimization, 2016.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

CANDIDATES = 3
"""That begin their training where nothing is said of how many, nor of which."""
MOST_CANDIDATES = 16
LAST_STOP, EARLIER = 0.5, 0.4  # share of the training at the last stop, and of it at the one before


def stops(number: int) -> list[float]:
    """The shares of the training at which the better half of so many candidates goes on."""
    shares: list[float] = []
    while number > 1:
        shares.insert(0, round(LAST_STOP * EARLIER ** len(shares), 6))
        number = (number + 1) // 2
    return shares


def legs(number: int, shares: Sequence[float]) -> Iterator[tuple[int, float]]:
    """How many candidates train up to each stop, and for which share of the training.

    Args:
        number: of candidates.
        shares: at which they stop.
    """
    before = 0.0
    for share in shares:
        yield number, share - before
        number, before = (number + 1) // 2, share


def trainings(number: int) -> float:
    """What so many candidates cost until one is trained whole, in whole trainings."""
    return sum(count * share for count, share in legs(number, [*stops(number), 1.0]))
