"""RankNAS as published: observe a sample, rank, prune, evolve on predictions, measure the best.

Source: Hu et al., RankNAS, 2021, algorithm 1.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nas.search.evolution import EvolutionSettings, Scores, archive, evolve
from nas.search.pareto import spread_order
from nas.search.pruning.prune import prune
from nas.search.ranking import choose_ranker, fitted_rows
from nas.search.ranking.report_card import Factory
from nas.search.searchers.base import Problem, Searcher
from search_spaces.genotypes import Genotypes, GenotypeSpace
from search_spaces.space import SearchSpace

RANK, PRUNE = 1, 2


class OneShot(Searcher):
    """See the module.

    Args:
        problem: what is searched.
        sample: ``(N, S)`` networks that are observed first.
        verified: networks that are observed after the evolution.
        seed: decides everything random.
        evolution: its sizes.
        rankers: makers of those to choose from; `choose_ranker`'s own if not given.
    """

    name = "ranknas"

    def __init__(
        self,
        problem: Problem,
        sample: Genotypes,
        verified: int,
        seed: int,
        evolution: EvolutionSettings | None = None,
        rankers: Sequence[Factory] | None = None,
    ) -> None:
        super().__init__(problem)
        self._sample, self._verified, self._seed = sample, verified, seed
        self._evolution, self._rankers = evolution or EvolutionSettings(), rankers

    def ask(self) -> Genotypes:
        """See `Searcher.ask`: the sample, then the best that were evolved."""
        if self.done == 0:
            return self._sample
        if self.done > len(self._sample) or self._verified == 0:
            return self.rows[:0]
        return self._best()

    def _best(self) -> Genotypes:
        problem, seed = self.problem, self._seed
        fitted = fitted_rows(self.good_qualities)
        known, qualities = self.good_rows[fitted], self.good_qualities[fitted]
        features = problem.features(known)
        rng = np.random.default_rng([seed, RANK])
        ranker, card = choose_ranker(features, qualities, {}, rng, candidates=self._rankers)

        def score(rows: Genotypes) -> Scores:
            return problem.points(rows, ranker.predict(problem.features(rows)))

        observed = problem.points(known, qualities).objectives
        pruned: GenotypeSpace = problem.space
        if isinstance(problem.space, SearchSpace):  # whose genes pruning knows
            pruned = prune(problem.space, score, card, known, observed, seed * 16 + PRUNE).space

        def score_pruned(rows: Genotypes) -> Scores:
            return score(pruned.translate(rows, problem.space))

        found = archive(evolve(pruned, score_pruned, self._evolution, seed))
        rows = pruned.translate(found.genotypes, problem.space)
        evaluated = {row.tobytes() for row in self.rows}
        new = np.array([row.tobytes() not in evaluated for row in rows], dtype=bool)
        order = spread_order(found.objectives[new])
        chosen: Genotypes = rows[new][order[: self._verified]]
        return chosen
