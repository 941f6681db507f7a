"""Searchers: one contract for all, on a space whose qualities are known by a formula."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest
from numpy.typing import ArrayLike

from nas.objectives.size import network_costs
from nas.search.evolution import EvolutionSettings, Scores
from nas.search.pareto import non_dominated
from nas.search.pruning.prune import PrunedSpace, PruningSettings
from nas.search.ranking import PairwiseLinear
from nas.search.ranking.ensemble import Ensemble
from nas.search.searchers.base import Floats, Problem, Searcher, search
from nas.search.searchers.gain import greedy_gain
from nas.search.searchers.one_shot import OneShot
from nas.search.searchers.optuna_study import (
    MOST_REPEATS,
    OptunaSearcher,
    SamplerName,
    distributions,
    write_study,
)
from nas.search.searchers.rank_evolve import RankEvolve, RankEvolveSettings
from search_spaces.errors import UsageError
from search_spaces.loading import load_space, parse_space
from search_spaces.space import Genotypes
from search_spaces.variation import (
    distinct,
    enumerate_all,
    largest,
    neighbours,
    sample_distinct,
    smallest,
)
from tests.support.pipeline_cases import TINY

SPACE = parse_space(TINY, "space")
BUDGET = 24
EVOLUTION = EvolutionSettings(population=24, generations=6)


@pytest.fixture(scope="module", autouse=True)
def few_rankers() -> None:
    """Here networks are proposed by the rankers that everybody gets."""


def flops(rows: Genotypes) -> Floats:
    return network_costs(SPACE, rows)[:, 1:]


def cost(rows: Genotypes) -> Scores:
    return Scores(flops(rows), np.zeros(len(rows)))


def quality(rows: Genotypes) -> Floats:
    """Falls with the sizes; softmax in the first layer helps, as much as the width does."""
    kind = SPACE.slot_index["encoder.0.attention"]
    names = np.array(SPACE.slots[kind].choices)[rows[:, kind]]
    params = network_costs(SPACE, rows)[:, 0]
    result: Floats = 30.0 / params + 0.1 * (names != "softmax") + 0.3
    return result


ALL = enumerate_all(SPACE, 1000)
PROBLEM = Problem(SPACE, cost, np.array([2.0, flops(ALL).max()]))


def start(seed: int, count: int = 12) -> Genotypes:
    return sample_distinct(SPACE, np.random.default_rng(seed), count)


def rank_evolve(problem: Problem, seed: int, **settings: Any) -> RankEvolve:
    chosen = RankEvolveSettings(**{"budget": BUDGET, **settings}, evolution=EVOLUTION)
    return RankEvolve(problem, start(seed), chosen, seed)


SEARCHERS: dict[str, Callable[[Problem, int], Searcher]] = {
    "rank-evolve": rank_evolve,
    "rank-evolve, pruning": lambda problem, seed: rank_evolve(problem, seed, prune=True),
    "ranknas": lambda problem, seed: OneShot(
        problem, start(seed, 18), 6, seed, EVOLUTION, [PairwiseLinear]
    ),
    "nsga2": lambda problem, seed: OptunaSearcher(problem, "nsga2", BUDGET, seed, 10),
    "tpe": lambda problem, seed: OptunaSearcher(problem, "tpe", BUDGET, seed),
    "random": lambda problem, seed: OptunaSearcher(problem, "random", BUDGET, seed),
}


@pytest.fixture(params=SEARCHERS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@cache
def finished(name: str, seed: int = 7) -> Searcher:
    """One search for all tests that only look at it."""
    return run(SEARCHERS[name](PROBLEM, seed))


def run(searcher: Searcher) -> Searcher:
    for _ in search(searcher, quality):
        pass
    return searcher


def run_with_failures(searcher: Searcher, worth: float, *, told: bool = True) -> Genotypes:
    """The rows of a search of which every fourth kind of network fails; `worth` stands for it."""
    while len(rows := searcher.ask()):
        failed = rows.sum(axis=1) % 4 == 0
        searcher.tell(rows, np.where(failed, worth, quality(rows)), failed if told else None)
    return searcher.rows


class TestContract:
    """Every searcher, the same promises."""

    def test_asks_for_networks_of_the_space_once_and_within_its_budget(self, name):
        found = finished(name)
        assert 0 < found.done <= BUDGET
        assert len(distinct(found.rows)) == found.done
        assert np.array_equal(SPACE.canonical(found.rows), found.rows)
        assert all(SPACE.contains(network) for network in SPACE.decode(found.rows))
        assert len(found.ask()) == 0
        assert found.qualities == pytest.approx(quality(found.rows))

    def test_the_seed_decides_and_it_goes_on_when_told_again_what_it_knew(self, name):
        whole, again = finished(name), SEARCHERS[name](PROBLEM, 7)
        while again.done < BUDGET // 2 and len(rows := again.ask()):
            again.tell(rows, whole.qualities[again.done : again.done + len(rows)])
        assert np.array_equal(run(again).rows, whole.rows)
        assert not np.array_equal(finished(name, 6).rows, whole.rows)

    def test_learns_nothing_from_what_failed(self, name):
        found, same = (SEARCHERS[name](PROBLEM, 3) for _ in range(2))
        assert np.array_equal(run_with_failures(found, 2.0), run_with_failures(same, 90.0))
        assert len(distinct(found.rows)) == found.done and found.failed.any()
        assert np.array_equal(found.good_qualities, quality(found.good_rows))


def test_networks_that_are_all_as_good_as_can_be_are_searched():
    """A recall of 1 for every network: quality 0, as predicted too."""
    searcher = rank_evolve(PROBLEM, 3)
    while len(rows := searcher.ask()):
        searcher.tell(rows, np.zeros(len(rows)))
    assert len(distinct(searcher.rows)) == searcher.done > 12


def test_what_is_not_said_to_have_failed_is_learnt_from():
    rows = [run_with_failures(rank_evolve(PROBLEM, 3), v, told=False) for v in (2.0, 90.0)]
    assert not np.array_equal(*rows)


def share(searcher: Searcher) -> float:
    best = PROBLEM.hypervolume(ALL, quality(ALL))
    return PROBLEM.hypervolume(searcher.rows, searcher.qualities) / best


def test_rank_evolve_finds_what_a_random_sample_of_the_same_size_misses():
    ranked = np.mean([share(finished("rank-evolve", seed)) for seed in (6, 7)])
    drawn = np.mean([share(finished("random", seed)) for seed in (6, 7)])
    assert 1 - ranked < 0.5 * (1 - drawn)


def test_rank_evolve_ends_when_nothing_is_gained():
    patient = run(rank_evolve(PROBLEM, 1, budget=120, batch=16, patience=0))
    content = run(rank_evolve(PROBLEM, 1, budget=120, batch=16, patience=2))
    assert content.done < patient.done == 120
    assert share(content) > 0.95


def test_rounds_prune_as_carefully_as_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = set()

    def watched(space: Any, *given: Any) -> PrunedSpace:
        seen.add(given[5])
        return PrunedSpace(space)

    monkeypatch.setattr("nas.search.searchers.rank_evolve.prune", watched)
    careful = PruningSettings(min_pairwise_accuracy=0.95)
    run(rank_evolve(PROBLEM, 3, prune=True, pruning=careful))
    assert seen == {careful}


def test_rounds_do_not_prune_by_fewer_networks_than_a_card_needs():
    searcher = rank_evolve(PROBLEM, 3, prune=True)
    rows = searcher.ask()
    searcher.tell(rows, quality(rows), np.arange(len(rows)) >= 3)
    assert len(searcher.ask()) and searcher._pruned is SPACE
    searcher.tell(rows := searcher.ask(), quality(rows))
    assert len(searcher.ask()) and searcher._prune_at == 2 * searcher.done


class Flat(Ensemble):
    """Tells all networks apart, but none is expected to be better than what was observed."""

    def predict(self, features: ArrayLike) -> Floats:
        return 5.0 + super().predict(features)

    def deviations(self, features: ArrayLike) -> Floats:
        return np.full(len(np.asarray(features)), 0.1)


def test_without_any_gain_in_sight_rank_evolve_asks_for_the_likeliest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("nas.search.searchers.rank_evolve.Ensemble", Flat)
    ends = distinct(np.concatenate([largest(SPACE), smallest(SPACE), start(3)]))
    searcher = RankEvolve(
        PROBLEM, ends, RankEvolveSettings(budget=BUDGET, batch=6, explore=0, evolution=EVOLUTION), 3
    )
    rows = searcher.ask()
    searcher.tell(rows, quality(rows))
    ranker = Flat().fit(PROBLEM.features(rows), quality(rows))

    def short(those: Genotypes) -> Floats:
        """By how much they are expected to miss the best of what is as cheap."""
        cheap = flops(those) >= flops(rows).T
        best = np.where(cheap, quality(rows), np.inf).min(axis=1)
        return ranker.predict(PROBLEM.features(those)) - best

    new = ALL[[row.tobytes() not in {r.tobytes() for r in rows} for row in ALL]]
    assert short(searcher.ask()).max() < np.quantile(short(new), 0.1)


def test_rank_evolve_asks_for_networks_within_limits():
    most = float(np.median(flops(ALL)))

    def limited(rows: Genotypes) -> Scores:
        return Scores(flops(rows), np.maximum(0.0, flops(rows)[:, 0] / most - 1.0))

    found = run(rank_evolve(Problem(SPACE, limited, PROBLEM.reference), 2, patience=0))
    assert (flops(found.rows[12:])[:, 0] <= most).all()


def test_rank_evolve_looks_at_all_that_is_one_gene_from_the_front_within_limits():
    """Even where the ranker, here one that finds all networks alike, expects nothing of it."""
    most = float(np.median(flops(ALL)))
    problem = Problem(
        SPACE, lambda rows: Scores(flops(rows), 1.0 * (flops(rows)[:, 0] > most)), PROBLEM.reference
    )
    searcher = rank_evolve(problem, 4)
    searcher.tell(searcher.ask(), quality(start(4)))
    kept = flops(searcher.rows)[:, 0] <= most
    front = non_dominated(problem.points(searcher.rows, searcher.qualities).objectives[kept])
    beside = np.concatenate([neighbours(SPACE, row) for row in searcher.rows[kept][front]])
    wanted = {row.tobytes() for row in beside[flops(beside)[:, 0] <= most]}
    blind = Ensemble().fit(problem.features(searcher.rows), np.ones(searcher.done))
    looked_at = {row.tobytes() for row in searcher._candidates(blind)}
    assert wanted - {row.tobytes() for row in searcher.rows} <= looked_at


def test_a_search_goes_on_while_nothing_keeps_the_limits():
    problem = replace(PROBLEM, costs=lambda rows: Scores(flops(rows), 1 + flops(rows)[:, 0]))
    searcher = rank_evolve(problem, 2, patience=2, batch=4)
    asked = []
    while len(rows := searcher.ask()):
        asked.append(len(rows))
        searcher.tell(rows, quality(rows))
    assert searcher.done == BUDGET and set(asked[1:-1]) == {4}


def test_a_search_of_one_network_at_a_time_takes_what_promises_most(
    monkeypatch: pytest.MonkeyPatch,
):
    counts = []

    def watched(points: Any, spread: Any, front: Any, count: int) -> list[int]:
        counts.append(count)
        return greedy_gain(points, spread, front, count)

    monkeypatch.setattr("nas.search.searchers.rank_evolve.greedy_gain", watched)
    run(rank_evolve(PROBLEM, 3, batch=1, patience=0))
    assert set(counts) == {1}


def test_a_problem_counts_only_what_keeps_limits():
    half = Problem(SPACE, lambda rows: Scores(flops(rows), np.ones(len(rows))), PROBLEM.reference)
    assert half.hypervolume(ALL, quality(ALL)) == 0.0
    assert 0 < PROBLEM.hypervolume(ALL[:5], quality(ALL[:5])) < 1


def test_an_objective_whose_reference_is_nought_stays_as_it_is():
    zero = replace(PROBLEM, reference=PROBLEM.reference * [0.0, 1.0])
    volume = PROBLEM.hypervolume(ALL[:5], quality(ALL[:5]))
    assert zero.hypervolume(ALL[:5], quality(ALL[:5]) - 2.0) == pytest.approx(2 * volume)
    assert zero.hypervolume(ALL[:5], quality(ALL[:5])) == 0.0


@pytest.mark.parametrize("numbers", [{"budget": 0}, {"batch": 0}, {"explore": 9}, {"explore": -1}])
def test_settings_out_of_range_are_refused(numbers):
    with pytest.raises(UsageError, match="rank-evolve needs"):
        RankEvolveSettings(**{"budget": 10, **numbers})


def test_trials_have_a_parameter_for_every_slot():
    assert list(distributions(SPACE)) == [slot.name for slot in SPACE.slots]


def test_a_run_can_be_opened_as_a_study(tmp_path: Path):
    networks = SPACE.decode(ALL[[0, 100, 200]])
    measured = [{"quality": 1.0 / k, "flops": 2.0 * k, "params": 5.0} for k in (1, 2, 3)]
    file = tmp_path / "optuna.journal"
    for _ in range(2):  # writing again replaces it
        pairs = zip(networks, measured, strict=True)
        write_study(file, "mine", SPACE, ["quality", "flops"], pairs)
    backend = optuna.storages.journal.JournalFileBackend(str(file))
    study = optuna.load_study(study_name="mine", storage=optuna.storages.JournalStorage(backend))
    assert [trial.values for trial in study.trials] == [[1.0, 2.0], [0.5, 4.0], [1 / 3, 6.0]]
    assert study.trials[0].user_attrs["architecture"] == networks[0].id
    assert study.trials[0].params["encoder.embed_dim"] == 4
    assert study.metric_names == ["quality", "flops"]


def test_a_study_leaves_out_layers_that_a_network_has_not(tmp_path: Path):
    digits = load_space("digits")
    rows = sample_distinct(digits, np.random.default_rng(0), 20)
    shallow = rows[digits.depths(rows, "encoder") == 1][:1]
    write_study(
        tmp_path / "s",
        "s",
        digits,
        ["quality", "flops"],
        [(digits.decode(shallow)[0], {"quality": 1.0, "flops": 2.0})],
    )
    assert "encoder.0.ffn_dim" in (tmp_path / "s").read_text(encoding="utf-8")
    assert "encoder.1.ffn_dim" not in (tmp_path / "s").read_text(encoding="utf-8")


class Stuck(optuna.samplers.RandomSampler):
    """Asks for one and the same network for ever, as TPE does in small spaces."""

    def sample_independent(self, study, trial, name, distribution):  # type: ignore[no-untyped-def]
        if isinstance(distribution, optuna.distributions.IntDistribution):
            return distribution.low
        return distribution.choices[0]


def test_a_sampler_that_repeats_itself_is_helped_on_at_random() -> None:
    searcher = OptunaSearcher(PROBLEM, "tpe", BUDGET, seed=1)
    searcher._study.sampler = Stuck()
    for _ in search(searcher, quality):
        pass
    assert len(distinct(searcher.rows)) == searcher.done == BUDGET
    assert len(searcher._study.trials) == 1 + (BUDGET - 1) * (MOST_REPEATS + 1)


@pytest.mark.parametrize(
    ("name", "limited", "told"), [("tpe", False, True), ("gp", False, False), ("gp", True, True)]
)
def test_gp_hears_of_limits_only_where_there_are_any(
    name: SamplerName, limited: bool, told: bool
) -> None:
    searcher = OptunaSearcher(replace(PROBLEM, limited=limited), name, 2, seed=1)
    for _ in search(searcher, quality):
        pass
    assert [list(one.constraints) for one in searcher._study.trials] == [["limits"] * told] * 2


def test_a_used_up_space_ends_the_search() -> None:
    searcher = OptunaSearcher(PROBLEM, "random", len(ALL) + 1, seed=1)
    for _ in search(searcher, quality):
        pass
    assert searcher.done == len(ALL)
