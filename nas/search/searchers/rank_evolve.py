"""Search by ranking and evolving in turns, until nothing is gained any more.

A first sample is observed and a ranker fitted to it. Then, in rounds: the space is pruned, if that
is asked for, networks are evolved on what the ranker predicts, those that promise the largest gain
of hypervolume are observed, and the ranker is fitted anew.

Source: Hu et al., RankNAS, 2021, ranks, prunes and evolves once. The rounds and the choice by
expected gain are those of multi-objective Bayesian optimisation (Daulton et al., 2021), with
evolution, and all that is one gene from the front, in the place of its optimiser.

Shapes: N networks, S slots, M objectives.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from nas.search.evolution import Evaluate, EvolutionSettings, Scores, archive, evolve
from nas.search.pareto import constrained_ranks
from nas.search.pruning.prune import PruningSettings, prune
from nas.search.ranking import fitted_rows
from nas.search.ranking.ensemble import Ensemble
from nas.search.ranking.report_card import MIN_OBSERVATIONS, quick_card
from nas.search.searchers.base import Problem, Searcher
from nas.search.searchers.gain import by_chance, greedy_gain
from search_spaces.errors import UsageError
from search_spaces.genotypes import Genotypes, GenotypeSpace
from search_spaces.space import Choice, SearchSpace
from search_spaces.variation import distinct, neighbours

# Rankers mostly err less than they fear, down to half as much, in what was observed next. Numbers
# from 0.2 to 2 were compared in experiments/LOG.md.
TRUSTED_DEVIATIONS = 0.3
PRUNE = 3
NOUGHT = 1e-12  # of a quality that is as good as can be, and by which nothing can be divided


@dataclass(frozen=True)
class RankEvolveSettings:
    """How to go about it.

    Attributes:
        budget: most networks that are observed.
        batch: networks observed in a round.
        explore: of those, how many are taken because nothing is known about their like.
        prune: whether to evolve in a pruned space, pruned anew from the whole one whenever the
            observations have doubled. Off: it gained nothing (experiments/LOG.md).
        keep: gene or slot → choices that pruning may not cut.
        pruning: how careful it is.
        patience: rounds without gain after which the search ends; 0 never ends early.
        tolerance: gain of hypervolume, relative, that counts.
        evolution: of each round.
    """

    budget: int
    batch: int = 8
    explore: int = 1
    prune: bool = False
    keep: Mapping[str, Sequence[Choice]] = field(default_factory=dict)
    pruning: PruningSettings = field(default_factory=PruningSettings)
    patience: int = 4
    tolerance: float = 1e-4
    evolution: EvolutionSettings = field(
        default_factory=lambda: EvolutionSettings(population=96, generations=20)
    )

    def __post_init__(self) -> None:
        if min(self.budget, self.batch) < 1 or not 0 <= self.explore <= self.batch:
            raise UsageError(
                "rank-evolve needs a budget and a batch of at least 1, and no more to explore "
                f"than a batch has; given {self.budget}, {self.batch} and {self.explore}"
            )


class RankEvolve(Searcher):
    """See the module.

    Args:
        problem: what is searched.
        start: ``(N, S)`` distinct networks of the first sample; the ends of the space should be
            among them.
        settings: sizes.
        seed: decides everything random.
    """

    name = "rank-evolve"

    def __init__(
        self, problem: Problem, start: Genotypes, settings: RankEvolveSettings, seed: int
    ) -> None:
        super().__init__(problem)
        self.settings, self._start, self._seed = settings, start, seed
        self._volumes: list[float] = []
        if settings.prune and not isinstance(problem.space, SearchSpace):
            raise UsageError(
                f"the space {problem.space.name} has genes of its own, whose choices cannot be "
                "pruned: search it without pruning"
            )
        self._pruned: GenotypeSpace = problem.space
        self._prune_at = 0

    def ask(self) -> Genotypes:
        """See `Searcher.ask`."""
        left = self.settings.budget - self.done
        if self.done == 0:
            return self._start[:left]
        self._volumes.append(self.problem.hypervolume(self.good_rows, self.good_qualities))
        if left <= 0 or self._stalled():
            return self.rows[:0]
        return self._promising(min(left, self.settings.batch))

    def _stalled(self) -> bool:
        patience, volumes = self.settings.patience, self._volumes
        if patience == 0 or len(volumes) <= patience or volumes[-1] == 0:
            return False  # nothing that counts was found yet
        return volumes[-1] - volumes[-1 - patience] <= self.settings.tolerance * volumes[-1]

    def _promising(self, count: int) -> Genotypes:
        """New networks: those of the largest expected gain, the likeliest gain, the least known."""
        chosen = fitted_rows(self.good_qualities)
        features = self.problem.features(self.good_rows[chosen])
        ranker = Ensemble().fit(features, self.good_qualities[chosen])
        rows = self._candidates(ranker)
        features = self.problem.features(rows)
        mean, deviations = ranker.predict(features), ranker.deviations(features)
        expected = self.problem.points(rows, mean)
        known = self.problem.points(self.good_rows, self.good_qualities)
        front = known.objectives[known.violations == 0]
        spread = TRUSTED_DEVIATIONS * deviations
        sure = max(1, count - self.settings.explore)
        picked = greedy_gain(expected.objectives, spread, front, sure)
        chance = by_chance(expected.objectives, deviations, front)
        picked = list(dict.fromkeys([*picked, *chance]))[:sure]
        # Relative: what is bad anyway may be as unsure as it likes.
        doubt = np.argsort(-deviations / np.maximum(np.abs(mean), NOUGHT), kind="stable").tolist()
        return rows[list(dict.fromkeys([*picked, *doubt]))[:count]]

    def _candidates(self, ranker: Ensemble) -> Genotypes:
        """Networks not observed: what was evolved, and what is one gene from the front."""
        problem = self.problem

        def score(rows: Genotypes) -> Scores:
            return problem.points(rows, ranker.predict(problem.features(rows)))

        rows = self._candidates_in(self._smaller(score), score)
        if len(rows) == 0:  # a pruned space that was used up; the whole one may have more
            rows = self._candidates_in(problem.space, score)
        missed = problem.costs(rows).violations
        # Where nothing keeps the limits yet, those that miss them least.
        least = np.sort(missed)[: self.settings.batch]
        nearest: Genotypes = rows[missed <= (least.max(initial=0) if (least > 0).all() else 0)]
        return nearest

    def _candidates_in(self, space: GenotypeSpace, score: Evaluate) -> Genotypes:
        """Rows of the whole space, from a smaller one, that were not observed.

        They are what nothing dominates as predicted, the last generation, and all neighbours of
        the observed front, which are looked at even where the ranker expects nothing of them.
        """
        whole = self.problem.space
        found = self.problem.points(self.good_rows, self.good_qualities)
        front = self.good_rows[constrained_ranks(found.objectives, found.violations) == 0]
        start = space.encode(
            [network for network in whole.decode(front) if space.contains(network)]
        )
        seed = int(np.random.default_rng([self._seed, self.done]).integers(2**31))
        generations = list(
            evolve(
                space,
                lambda rows: score(space.translate(rows, whole)),
                self.settings.evolution,
                seed,
                start=start,
            )
        )
        kept = [archive(generations).genotypes, generations[-1].genotypes]
        kept += [neighbours(space, row) for row in start]
        rows = space.translate(distinct(np.concatenate(kept)), whole)
        known = {row.tobytes() for row in self.rows}
        new: Genotypes = rows[[row.tobytes() not in known for row in rows]]
        return new

    def _smaller(self, score: Evaluate) -> GenotypeSpace:
        """The space without the choices that good networks do without, as far as is known."""
        enough = len(self.good_qualities) >= MIN_OBSERVATIONS  # for a card of the ranker
        if self.settings.prune and enough and self.done >= self._prune_at:
            self._prune_at = 2 * self.done
            seed = int(np.random.default_rng([self._seed, self.done, PRUNE]).integers(2**31))
            chosen = fitted_rows(self.good_qualities)
            rows, qualities = self.good_rows[chosen], self.good_qualities[chosen]
            card = quick_card(self.problem.features(rows), qualities, Ensemble, seed)
            points = self.problem.points(rows, qualities).objectives
            space, asked = self.problem.space, self.settings
            assert isinstance(space, SearchSpace)  # see __init__
            found = prune(space, score, card, rows, points, seed, asked.pruning, asked.keep)
            self._pruned = found.space
        return self._pruned
