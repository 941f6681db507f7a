"""The stage that evaluates the networks that a searcher asks for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from nas.objectives import OBJECTIVES, QUALITY
from nas.results.failures import failed
from nas.run.duration import (
    CHECK,
    EVALUATION,
    FIT,
    GENERATION,
    OWN_UPDATE,
    Asked,
    Part,
    Plan,
    counted,
)
from nas.run.events import Event, FrontUpdated, Note, Progress
from nas.run.layout import OBSERVATIONS_FILE
from nas.search.evolution import EvolutionSettings, Scores
from nas.search.front import minimised
from nas.search.pareto import non_dominated
from nas.search.pruning.prune import PruningSettings
from nas.search.ranking.report_card import MIN_OBSERVATIONS
from nas.search.scoring import CostScorer
from nas.search.searchers.base import Problem, Searcher
from nas.search.searchers.one_shot import OneShot
from nas.search.searchers.rank_evolve import RankEvolve, RankEvolveSettings
from nas.stages.base import Run
from nas.stages.outcomes import (
    abort_stage,
    to_event,
    too_few_observations,
    too_many_failures,
    values_of,
)
from search_spaces.errors import DamagedRunError
from search_spaces.genotypes import Genotypes, Network

# Searchers that ask for one network at a time would tell of a front after each.
NETWORKS_PER_FRONT = 8


def work(run: Run) -> Iterator[Event]:
    """Measure the quality of networks until the searcher has had enough.

    What the journal knows is told to the searcher again, which then asks for what is missing.

    Raises:
        DamagedRunError: when the journal holds networks that the searcher never asked for.
        DivergedError, EvaluationError: when so many networks fail that it makes no sense to go on.
    """
    known = run.observations()
    total, shown = run.spec.budget.observations, 0
    asked: list[str] = []
    if run.spec.evaluator is not None:  # what is of no use follows from the first networks
        first = run.domain.decode(run.first_rows)
        asked = [network.id for network in first]
        for event in _observed(run, first, known):
            yield event
            yield Progress("observe", min(len(known), total), total)
    costs = _Costs(run.unobserved_costs)
    searcher = build_searcher(run, costs.score)
    while len(rows := searcher.ask()):
        networks = run.domain.decode(rows)
        for event in _observed(run, networks, known):
            yield event
            yield Progress("observe", min(len(known), total), total)
        asked += [network.id for network in networks]
        lines = [known[network.id] for network in networks]
        good = [not failed(line) for line in lines]
        costs.learn(rows[good], [line for line in lines if not failed(line)])
        _tell(run, searcher, rows, lines)
        if searcher.done >= shown + NETWORKS_PER_FRONT:
            shown = searcher.done
            yield _front(run, searcher)
    _put_in_order(run, list(dict.fromkeys(asked)), known)
    abort_stage(
        run.folder,
        "observe",
        [OBSERVATIONS_FILE],
        too_few_observations(known.values(), MIN_OBSERVATIONS),
    )
    yield Progress("observe", total, total, f"{searcher.done} networks")


def _put_in_order(run: Run, asked: Sequence[str], known: Mapping[str, dict[str, Any]]) -> None:
    """See that the journal holds what was asked for, in that order.

    What an evaluator of others has told may have cost hours: each answer is kept as it comes, and
    so are those that are asked for no more, because others failed then and did not later.

    Raises:
        DamagedRunError: when networks of this project are there that nobody asked for, or in
            another order.
    """
    if asked == list(known):
        return
    if run.spec.evaluator is None:
        raise DamagedRunError(f"{OBSERVATIONS_FILE} holds networks that nobody asked for")
    order = dict.fromkeys((*asked, *known))
    run.folder.write_journal(OBSERVATIONS_FILE, [known[one] for one in order])


class _Costs:
    """What networks cost, as far as it is known by now."""

    def __init__(self, now: CostScorer) -> None:
        self._now = now

    def learn(self, rows: Genotypes, lines: Sequence[Mapping[str, Any]]) -> None:
        """Take in what was told of networks."""
        self._now = self._now.learnt(rows, lines)

    def score(self, rows: Genotypes) -> Scores:
        """See `CostScorer.score`."""
        return self._now.score(rows)


def _observed(
    run: Run, networks: Sequence[Network], known: dict[str, dict[str, Any]]
) -> Iterator[Event]:
    """Evaluate and journal those networks that are not known yet."""
    missing = [network for network in networks if network.id not in known]
    for answers in run.evaluate("observe", missing):
        if isinstance(answers, Note):
            yield answers
            continue
        pairs = [(missing[place], outcome) for place, outcome in answers]
        lines = [
            {"id": network.id, "architecture": network.to_json(), **values_of(outcome)}
            for network, outcome in pairs
        ]
        known |= {line["id"]: line for line in lines}
        run.folder.append(OBSERVATIONS_FILE, lines)
        for network, outcome in pairs:
            yield to_event("observe", network, outcome)
        problem = too_many_failures(known.values(), run.spec.trains_alone)
        abort_stage(run.folder, "observe", [OBSERVATIONS_FILE], problem)


def _tell(
    run: Run, searcher: Searcher, rows: Genotypes, lines: Sequence[Mapping[str, Any]]
) -> None:
    """Report qualities from the origin; a failed network gets the reference quality."""
    failures = np.array([failed(line) for line in lines])
    qualities = [run.reference[0] if failed(line) else line[QUALITY] for line in lines]
    searcher.tell(rows, np.array(qualities, dtype=np.float64) - run.origin, failures)


def build_searcher(run: Run, costs: Callable[[Genotypes], Scores]) -> Searcher:
    """The searcher of a run, which has not been told anything yet.

    Args:
        run: the search.
        costs: see `Problem`.
    """
    spec, budget = run.spec, run.spec.budget
    objectives = [OBJECTIVES[name] for name in spec.objectives]
    reference = minimised(run.reference, objectives)
    reference[0] -= run.origin
    problem = Problem(run.domain, costs, reference)
    match spec.searcher:
        case "rank-evolve":
            settings = RankEvolveSettings(
                budget=budget.observations,
                batch=budget.rounds.batch,
                prune=budget.rounds.prune,
                keep=spec.keep,
                pruning=PruningSettings(min_pairwise_accuracy=budget.min_pairwise_accuracy),
                patience=budget.rounds.patience,
                evolution=EvolutionSettings(
                    population=budget.evolution.population,
                    generations=max(1, budget.evolution.generations // 2),
                    mutation_rate=budget.evolution.mutation_rate,
                ),
            )
            return RankEvolve(problem, run.first_rows, settings, spec.seed)
        case "ranknas":
            # Later stages rank, prune, evolve and verify.
            return OneShot(problem, run.sampled_rows, 0, spec.seed)
        case sampler:
            from nas.search.searchers.optuna_study import OptunaSearcher

            start = run.ends if spec.limits else None  # among them what keeps the limits
            start = start if spec.evaluator is None else run.first_rows
            return OptunaSearcher(problem, sampler, budget.observations, spec.seed, start=start)


def _front(run: Run, searcher: Searcher) -> FrontUpdated:
    """What nothing dominates so far, with costs that were predicted."""
    found = searcher.problem.points(searcher.good_rows, searcher.good_qualities)
    kept = found.violations == 0
    points = found.objectives[kept]
    points[:, 0] += run.origin
    best = points[non_dominated(points)]
    rows: tuple[dict[str, Any], ...] = tuple(
        {n: OBJECTIVES[n].minimised(v) for n, v in zip(run.spec.objectives, point, strict=True)}
        for point in best.tolist()
    )
    volume = searcher.problem.hypervolume(searcher.rows, searcher.qualities)
    return FrontUpdated("observe", rows, round(volume, 9))


def plan(asked: Asked) -> Plan:
    """How much there is to do at most: a searcher may have had enough earlier."""
    budget = asked.spec.budget
    parts, what = evaluating(asked, budget.observations)
    if asked.spec.searcher == "rank-evolve":
        first, batch = budget.rounds.first, budget.rounds.batch
        known = list(range(min(first, budget.observations), budget.observations, batch))
        generations = max(1, budget.evolution.generations // 2) + 1
        parts += [
            Part(FIT, sum(known) / budget.observations),
            Part(GENERATION, len(known) * generations),
        ]
    return Plan(f"up to {what}", tuple(parts))


def evaluating(asked: Asked, number: int) -> tuple[list[Part], str]:
    """What evaluating networks takes, also in words; workers share the networks."""
    spec, what, pieces = asked.spec, counted(number, "network"), max(1, number)
    if not spec.trains_alone:
        return [Part(EVALUATION, number, pieces)], f"{what} with inherited weights"
    seeds, updates = spec.budget.own_seeds, spec.budget.own_updates
    trained = number * seeds
    parts = [
        Part(OWN_UPDATE, trained * updates, pieces),
        Part(CHECK, trained, pieces),
        Part(EVALUATION, trained, pieces),
    ]
    several = "" if seeds == 1 else f" from {seeds} seeds"
    return parts, f"{what}, {counted(updates, 'update')} each{several}"
