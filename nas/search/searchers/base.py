"""The ask-and-tell interface of searchers.

A searcher is asked and told in turns. It is a function of its problem, its seed and what it was
told, so that a search that was cut short goes on by asking and telling again from the start, with
the answers that are known.

Shapes: N networks, S slots, M objectives, of which the first is the quality.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nas.search.evolution import Scores
from nas.search.pareto import hypervolume_share
from search_spaces.encoding import encode_features
from search_spaces.genotypes import Genotypes, GenotypeSpace

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Problem:
    """What is searched.

    Attributes:
        space: the networks.
        costs: of rows ``(N, S)``: the objectives besides quality, ``(N, M - 1)``, known or
            predicted without an observation, and by how much limits are missed.
        reference: ``(M,)``, a network that would be of no use.
        limited: whether networks can miss limits, or fail.
    """

    space: GenotypeSpace
    costs: Callable[[Genotypes], Scores]
    reference: Floats
    limited: bool = True

    def features(self, rows: Genotypes) -> Floats:
        """The rows as rankers see them."""
        return encode_features(self.space, rows)

    def points(self, rows: Genotypes, qualities: Floats) -> Scores:
        """All objectives of rows whose quality is known or guessed."""
        costs = self.costs(rows)
        points = np.column_stack([qualities, costs.objectives])
        return Scores(points, costs.violations)

    def hypervolume(self, rows: Genotypes, qualities: Floats) -> float:
        """Share, 0 to 1, of the box up to the reference that the rows within limits dominate."""
        found = self.points(rows, qualities)
        return hypervolume_share(found.objectives[found.violations == 0], self.reference)


class Searcher(ABC):
    """Chooses networks to observe.

    Attributes:
        name: as on the command line.
        problem: what is searched.
        rows: ``(N, S)``, all that it was told of, in order.
        qualities: ``(N,)`` of them, less is better.
        failed: ``(N,)``, which of them could not be evaluated. Their quality says that they are
            worth nothing, and no more: no ranker may be fitted to it.
    """

    name: str

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.rows: Genotypes = np.zeros((0, len(problem.space.slots)), dtype=np.int16)
        self.qualities: Floats = np.zeros(0)
        self.failed: Flags = np.zeros(0, dtype=bool)

    @abstractmethod
    def ask(self) -> Genotypes:
        """Networks to observe next, ``(K, S)``, none of them told before; none when it is done."""

    def tell(self, rows: Genotypes, qualities: Floats, failed: Flags | None = None) -> None:
        """Take in what the networks asked for are worth.

        Args:
            rows: what `ask` returned.
            qualities: ``(K,)``, finite.
            failed: ``(K,)``, which of them could not be evaluated; none if not given.
        """
        self.rows = np.concatenate([self.rows, rows])
        self.qualities = np.concatenate([self.qualities, qualities])
        lost = np.zeros(len(rows), dtype=bool) if failed is None else failed
        self.failed = np.concatenate([self.failed, lost])

    @property
    def good_rows(self) -> Genotypes:
        """The rows that could be evaluated."""
        good: Genotypes = self.rows[~self.failed]
        return good

    @property
    def good_qualities(self) -> Floats:
        """What they are worth."""
        good: Floats = self.qualities[~self.failed]
        return good

    @property
    def done(self) -> int:
        """Networks observed so far."""
        return len(self.rows)


Observe = Callable[[Genotypes], Floats]


def search(searcher: Searcher, observe: Observe) -> Iterator[tuple[Genotypes, Floats]]:
    """Ask and tell until the searcher has had enough.

    Yields:
        Each batch with its qualities, after the searcher was told.
    """
    while len(rows := searcher.ask()):
        qualities = observe(rows)
        searcher.tell(rows, qualities)
        yield rows, qualities
