"""Searchers that studies compare, ours and the best of others, and how far they get.

All are told the same exact costs: ours before it asks for a network, samplers of Optuna, which have
no way to know a cost before, with the answer. All but random search begin with both ends of the
space. Where a method has sizes to choose, each is a search of its own and the best counts.

N: networks; S: positions of a genotype.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from nas.search.evolution import EvolutionSettings, Scores, evolve
from nas.search.pareto import crowding_distance, hypervolume, non_dominated, non_dominated_ranks
from nas.search.searchers.base import Observe, Problem, Searcher, search
from nas.search.searchers.optuna_study import OptunaSearcher, SamplerName
from nas.search.searchers.rank_evolve import RankEvolve, RankEvolveSettings
from search_spaces.files import replacing
from search_spaces.genotypes import Genotypes
from search_spaces.variation import (
    distinct,
    largest,
    mutate,
    neighbours,
    sample,
    sample_distinct,
    smallest,
)

Floats = NDArray[np.float64]

FIRST = 32
POPULATIONS = (16, 32, 50, 100)
AGING = 50
# Objectives are scaled so that the reference front reaches from 0 to 1; this is the far corner.
MARGIN = 1.1


@dataclass(frozen=True, eq=False)
class SearchTask:
    """What is searched.

    Attributes:
        problem: the space, and costs that are known of any network.
        quality: of rows ``(N, S)``, ``(N,)``; what searchers are to ask for seldom.
    """

    problem: Problem
    quality: Observe

    def scores(self, rows: Genotypes) -> Scores:
        """All objectives of rows ``(N, S)``, really evaluated."""
        return self.problem.points(rows, self.quality(rows))

    def points(self, rows: Genotypes) -> Floats:
        """The same without limits, ``(N, M)``."""
        return self.scores(rows).objectives

    @property
    def ends(self) -> Genotypes:
        """The largest and the smallest network."""
        space = self.problem.space
        return distinct(np.concatenate([largest(space), smallest(space)]))


Search = Callable[[SearchTask, int, int], Genotypes]  # of so many evaluations, with a seed


def followed(searcher: Searcher, task: SearchTask) -> Genotypes:
    """The rows that a searcher asks for, in order."""
    for _ in search(searcher, task.quality):
        pass
    return searcher.rows


def rank_evolve_of(task: SearchTask, budget: int, seed: int) -> RankEvolve:
    """The product's own searcher, which never ends early."""
    rows = sample_distinct(task.problem.space, np.random.default_rng([seed, 77]), FIRST)
    start = distinct(np.concatenate([task.ends, rows]))[:FIRST]
    return RankEvolve(task.problem, start, RankEvolveSettings(budget=budget, patience=0), seed)


def rank_evolve(task: SearchTask, budget: int, seed: int) -> Genotypes:
    """The product's own searcher."""
    return followed(rank_evolve_of(task, budget, seed), task)


def at_random(task: SearchTask, budget: int, seed: int) -> Genotypes:
    """Random networks."""
    return sample_distinct(task.problem.space, np.random.default_rng(seed), budget)


def evolution(task: SearchTask, budget: int, seed: int, population: int) -> Genotypes:
    """The product's evolution on real evaluations; no network is asked for twice."""
    settings = EvolutionSettings(population, -(-budget // population))
    found = list(evolve(task.problem.space, task.scores, settings, seed, start=task.ends))
    rows: Genotypes = np.concatenate([generation.genotypes for generation in found])[:budget]
    return rows


def sampler(
    task: SearchTask, budget: int, seed: int, name: SamplerName, population: int = 50
) -> Genotypes:
    """A sampler of Optuna; networks that it asks for again cost nothing."""
    return followed(
        OptunaSearcher(task.problem, name, budget, seed, population, start=task.ends), task
    )


def local_search(task: SearchTask, budget: int, seed: int) -> Genotypes:
    """Pareto local search: the neighbours of each network of the front, in turns.

    Source: Paquete et al., Pareto local optimum sets, 2004.
    """
    space, rng = task.problem.space, np.random.default_rng(seed)
    rows, looked = task.ends, set[bytes]()
    while len(rows) < budget:
        front = rows[non_dominated(task.points(rows))]
        left = [row for row in front if row.tobytes() not in looked]
        if not left:
            break
        row = left[int(rng.integers(len(left)))]
        looked.add(row.tobytes())
        around = neighbours(space, row)
        rows = distinct(np.concatenate([rows, around[rng.permutation(len(around))]]))[:budget]
    return rows


def regularised(task: SearchTask, budget: int, seed: int) -> Genotypes:
    """Aging evolution of the youngest 50 networks; a parent is the best of ten by rank, then room.

    Source: Real et al., Regularized evolution for image classifier architecture search, 2019, with
    non-dominated ranks in the place of accuracy.
    """
    space, rng = task.problem.space, np.random.default_rng(seed)
    rows = distinct(np.concatenate([task.ends, sample(space, rng, AGING)]))[:budget]
    points, known = task.points(rows), {row.tobytes() for row in rows}
    rate = 1 / len(space.slots)
    while len(rows) < budget:
        young = points[-AGING:]
        ranks = non_dominated_ranks(young)
        place = np.lexsort((-crowding_distance(young, ranks), ranks)).argsort()
        rivals = rng.integers(len(young), size=10)
        parent = rows[-len(young) :][rivals[place[rivals].argmin()]][None]
        child = mutate(space, parent, rate, rng)
        if child.tobytes() in known:
            child = mutate(space, parent, min(1.0, 4 * rate), rng)
        if child.tobytes() not in known:
            known.add(child.tobytes())
            rows = np.concatenate([rows, child])
            points = np.concatenate([points, task.points(child)])
    return rows


# Searcher → its settings, of which the best counts → the search.
SEARCHERS: Mapping[str, Mapping[str, Search]] = {
    "rank-evolve": {"": rank_evolve},
    "random": {"": at_random},
    "evolution": {str(size): partial(evolution, population=size) for size in POPULATIONS},
    "nsga2": {str(size): partial(sampler, name="nsga2", population=size) for size in POPULATIONS},
    "tpe": {"": partial(sampler, name="tpe")},
    "gp": {"": partial(sampler, name="gp")},
    "local": {"": local_search},
    "regularised": {"": regularised},
}


def keep_rows(file: Path, rows: Genotypes) -> None:
    """Keep the networks of a search, in full or not at all."""
    with replacing(file) as temporary, temporary.open("wb") as stream:
        np.save(stream, rows)


# -- how far they get ---------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Measure:
    """Hypervolume as a share of the reference front's, scaled by its extent."""

    low: Floats
    extent: Floats
    whole: float

    @classmethod
    def of(cls, points: Floats) -> Self:
        """The measure whose reference is the front of these points ``(N, M)``."""
        front = points[non_dominated(points)]
        measure = cls(front.min(axis=0), np.ptp(front, axis=0), 1.0)
        return cls(measure.low, measure.extent, measure.share(front))

    def share(self, points: Floats) -> float:
        """Of points ``(N, M)``."""
        scaled = (points - self.low) / self.extent
        return hypervolume(scaled, np.full(len(self.low), MARGIN)) / self.whole

    def first_reach(self, points: Floats, level: float) -> float:
        """How many of the points, in order, it takes to this share; infinity if all do not."""
        if self.share(points) < level:
            return np.inf
        low, high = 1, len(points)
        while low < high:
            middle = (low + high) // 2
            low, high = (
                (low, middle) if self.share(points[:middle]) >= level else (middle + 1, high)
            )
        return low

    def best_setting(
        self, settings: Mapping[str, Sequence[Floats]], levels: Sequence[float]
    ) -> str:
        """The setting that got furthest.

        That is the one with the fewest evaluations, in the median, to the highest level; of equal
        ones to the next, and in the end the one with the largest share.

        Args:
            settings: setting → points ``(N, M)`` of each of its runs, in the order asked.
            levels: shares, rising.
        """

        def order(setting: str) -> tuple[float, ...]:
            runs = settings[setting]
            reach = [
                median([self.first_reach(points, level) for points in runs])
                for level in reversed(levels)
            ]
            return (*reach, -median([self.share(points) for points in runs]))

        return min(settings, key=order)


def median(values: Sequence[float]) -> float:
    """The number in the middle, of two the mean; infinity where the upper one is."""
    return float(np.median(values))


def cell(reach: Sequence[float]) -> str:
    """Median and range of numbers of evaluations, as they stand in tables."""
    return f"{words(median(reach))} ({words(min(reach))}–{words(max(reach))})"


def as_json(reach: Sequence[float]) -> list[int | None]:
    """Numbers of evaluations; None where the level was not reached."""
    return [None if np.isinf(count) else int(count) for count in reach]


def numbers(reach: Sequence[Any]) -> list[float]:
    """What `as_json` wrote."""
    return [np.inf if count is None else float(count) for count in reach]


def words(count: float) -> str:
    """A number of evaluations, or a cross where the budget did not do."""
    return f"{count:.0f}" if np.isfinite(count) else "×"
