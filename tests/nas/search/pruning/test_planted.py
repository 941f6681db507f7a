"""Pruning where it is known what every choice is worth, on 20 planted spaces.

With a predictor that is never wrong, nothing useful is cut. A ranker that learnt from 160 noisy
losses can be wrong about what is useful, so there the true loss is bounded. The rule's numbers were
chosen on seeds below 300 (`experiments/LOG.md`); the seeds here are others.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest

from nas.search.evolution import Evaluate, Scores
from nas.search.pruning.prune import PrunedSpace, prune
from nas.search.ranking.base import Ranker
from nas.search.ranking.gaussian import GaussianProcess
from nas.search.ranking.pairwise import PairwiseLinear, PairwiseTrees
from nas.search.ranking.report_card import Fidelity, ReportCard, quick_card
from search_spaces.encoding import encode_features
from search_spaces.space import Choice, Genotypes
from search_spaces.variation import sample
from tests.support.planted import SPACE, Floats, Planted, Rugged, Truth

SEEDS = range(300, 320)
OBSERVED = 160
# A choice worth at least this share of the true hypervolume is useful, one worth nothing useless.
USEFUL = 0.01
# What a learnt ranker's mistakes may cost in any of the spaces.
MOST_LOST = 0.03


@dataclass(frozen=True, eq=False)
class Case:
    """What pruning did to a planted space, and what it should know."""

    model: Planted
    truth: Truth
    pruned: PrunedSpace

    @property
    def cuts(self) -> set[tuple[str, Choice]]:
        return {(cut.name, cut.choice) for cut in self.pruned.cuts}


def pruned(
    model: Planted,
    evaluate: Evaluate,
    rows: Genotypes,
    points: Floats,
    seed: int,
    error: float = 0.0,
) -> Case:
    held_out = Fidelity(0.9, 0.95, 0.95, 100)
    card = ReportCard("any", OBSERVED, 5, held_out, {}, {}, (), {}, error=error)
    return Case(model, Truth(model), prune(SPACE, evaluate, card, rows, points, seed))


def known(seed: int) -> Case:
    """With a predictor that is never wrong."""
    model = Planted(seed)
    rows = sample(SPACE, np.random.default_rng(seed), OBSERVED)
    return pruned(model, lambda r: Scores(model(r), np.zeros(len(r))), rows, model(rows), seed)


def learnt(seed: int, make: Callable[[], Ranker], noise: float) -> Case:
    """With a ranker fitted to noisy losses of a random sample."""
    model, rng = Planted(seed), np.random.default_rng([seed, 1])
    rows = sample(SPACE, rng, OBSERVED)
    points = model(rows)
    points[:, 0] *= np.exp(rng.normal(0, noise, OBSERVED))
    features = encode_features(SPACE, rows)
    error = quick_card(features, points[:, 0], make, seed).error
    assert error is not None
    ranker = make().fit(features, points[:, 0])
    return pruned(model, predicting(ranker, model), rows, points, seed, error)


def predicting(ranker: Ranker, model: Planted) -> Evaluate:
    """Predicted loss and true cost."""

    def evaluate(rows: Genotypes) -> Scores:
        losses = ranker.predict(encode_features(SPACE, rows))
        return Scores(np.column_stack([losses, model(rows)[:, 1]]), np.zeros(len(rows)))

    return evaluate


def found(cases: list[Case]) -> int:
    """How many planted choices were cut in all layers, of two a case."""
    return sum(len(case.model.useless & case.cuts) for case in cases)


@pytest.fixture(scope="module", autouse=True)
def few_rankers() -> None:
    """Here rankers are fitted as everywhere else."""


@pytest.mark.parametrize("seed", SEEDS[::2])
def test_the_planted_choices_are_useless_and_others_are_not(seed: int) -> None:
    model = Planted(seed)
    worth = Truth(model).worth()
    assert {worth[choice] for choice in model.useless} == {0.0}
    genes = {choice: lost for choice, lost in worth.items() if len(choice[0].split(".")) == 2}
    assert sum(lost >= USEFUL for lost in genes.values()) >= 7


def test_who_knows_the_space_cuts_what_is_useless_and_nothing_useful() -> None:
    cases = [known(seed) for seed in SEEDS[::2]]
    for case in cases:
        worth = case.truth.worth()
        assert {cut: worth[cut] for cut in case.cuts if worth[cut] >= USEFUL} == {}
        assert case.truth.reach(case.pruned.space) > 1 - USEFUL
    assert found(cases) >= 16  # of 20


@pytest.mark.parametrize(
    ("make", "seeds", "least"), [(PairwiseTrees, SEEDS[::4], 2), (PairwiseLinear, SEEDS[::2], 6)]
)
def test_who_learnt_it_cuts_some_that_is_useless_and_loses_little(
    make: Callable[[], Ranker], seeds: range, least: int
) -> None:
    """Trees, which take long to fit, on every fourth space."""
    cases = [learnt(seed, make, noise=0.02) for seed in seeds]
    assert min(case.truth.reach(case.pruned.space) for case in cases) > 1 - MOST_LOST
    assert found(cases) >= least  # of two a space


def test_what_the_true_front_needs_is_cut_by_the_error_on_known_networks_alone() -> None:
    """A Gaussian process hardly errs where it has seen the answer, and far more elsewhere."""
    seed, model = 0, Rugged(0, 0.1)
    rows = sample(SPACE, np.random.default_rng([seed, 1]), 100)
    features, points = encode_features(SPACE, rows), model(rows)
    ranker = GaussianProcess().fit(features, points[:, 0])
    known = float(np.sqrt(np.mean((ranker.predict(features) - points[:, 0]) ** 2)))
    unseen = quick_card(features, points[:, 0], GaussianProcess, seed).error
    assert unseen is not None and unseen > 5 * known
    evaluate = predicting(ranker, model)
    bold, careful = (
        pruned(model, evaluate, rows, points, seed, error) for error in (known, unseen)
    )
    worth = careful.truth.worth()
    assert any(worth[cut] > 0 for cut in bold.cuts if cut[0] == "encoder.ffn_dim")
    assert all(worth[cut] == 0 for cut in careful.cuts)
    assert careful.truth.reach(careful.pruned.space) == 1
