"""Which networks of the supernet train in each update.

A sampler is drawn from once per update, in order. To go on from update n, draw n times and throw
the result away: that costs microseconds and needs no state in the checkpoint.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from search_spaces import variation
from search_spaces.architecture import Architecture
from search_spaces.space import Genotypes, SearchSpace
from supernet.training_settings import TrainingSettings


class ArchitectureSampler(Protocol):
    """Draws the networks of the next update; the first one is the teacher where there is one."""

    def draw(self) -> list[Architecture]:
        """The networks of the next update, one or more."""
        ...


class SingleNetwork:
    """Always the same network: training from scratch."""

    def __init__(self, architecture: Architecture) -> None:
        self._architecture = architecture

    def draw(self) -> list[Architecture]:
        """The network."""
        return [self._architecture]


class UniformSampler:
    """`num_random` independent uniform draws per update.

    Source: SPOS (Guo et al. 2020); HAT trains one per update.
    """

    def __init__(self, space: SearchSpace, num_random: int, seed: int) -> None:
        self._space = space
        self._num_random = num_random
        self._rng = np.random.default_rng([seed, 101])

    def draw(self) -> list[Architecture]:
        """Random networks."""
        return self._space.decode(variation.sample(self._space, self._rng, self._num_random))


class SandwichSampler:
    """The largest, `num_random` random ones and the smallest.

    Source: the sandwich rule of universally slimmable networks (Yu and Huang 2019). The largest
    is largest in every size; its attention kinds are drawn at random in each update, so that
    every kind is trained at full width. Without the smallest, which nobody takes of a space that
    is wide below, those between are trained more (experiments/LOG.md, 2026-11-28).
    """

    def __init__(
        self, space: SearchSpace, num_random: int, seed: int, smallest: bool = True
    ) -> None:
        self._space = space
        self._smallest = smallest
        self._random = UniformSampler(space, num_random, seed)
        self._rng = np.random.default_rng([seed, 102])
        self._ends = np.concatenate([variation.largest(space), variation.smallest(space)])
        self._kinds = [i for i, slot in enumerate(space.slots) if slot.gene.endswith("attention")]

    def draw(self) -> list[Architecture]:
        """Largest first, smallest last, where it is wanted."""
        ends = self._ends.copy()
        ends[:, self._kinds] = self._rng.integers(
            self._space.num_choices[self._kinds], size=(2, len(self._kinds))
        )
        largest, smallest = self._space.decode(self._space.canonical(ends))
        return [largest, *self._random.draw(), *([smallest] if self._smallest else [])]


class FairSampler:
    """Every choice of every gene is trained equally often.

    Each slot deals its choices from a shuffled deck, without replacement, and is dealt from only
    when its layer is there; so the counts of any two choices of a slot never differ by more than
    one.

    Source: FairNAS (Chu et al. 2021), strict fairness; there all genes have equally many choices
    and the networks of an update use up every deck, here decks run on across updates.
    """

    def __init__(self, space: SearchSpace, num_random: int, seed: int) -> None:
        self._space = space
        self._num_random = num_random
        self._rng = np.random.default_rng([seed, 103])
        self._decks: list[list[int]] = [[] for _ in space.slots]
        self._deciding = frozenset(space.deciding_columns)

    def draw(self) -> list[Architecture]:
        """Networks dealt from the decks."""
        return self._space.decode(np.concatenate([self._deal() for _ in range(self._num_random)]))

    def _deal(self) -> Genotypes:
        row = np.zeros((1, len(self._space.slots)), dtype=np.int16)
        for column, slot in enumerate(self._space.slots):
            if slot.layer is None:
                row[0, column] = self._card(column)
        active = self._space.active(row)
        for column, slot in enumerate(self._space.slots):
            if slot.layer is not None and active[0, column]:
                row[0, column] = self._card(column)
                if column in self._deciding:  # heads behind it, which a layer may have none of
                    active = self._space.active(row)
        return row

    def _card(self, column: int) -> int:
        deck = self._decks[column]
        if not deck:
            deck.extend(self._rng.permutation(int(self._space.num_choices[column])).tolist())
        return deck.pop()


def build_sampler(space: SearchSpace, settings: TrainingSettings, seed: int) -> ArchitectureSampler:
    """The sampler the settings name."""
    match settings.sampling:
        case "uniform":
            return UniformSampler(space, settings.num_random, seed)
        case "sandwich":
            return SandwichSampler(space, settings.num_random, seed)
        case "largest":
            return SandwichSampler(space, settings.num_random, seed, smallest=False)
        case "fair":
            return FairSampler(space, settings.num_random, seed)
