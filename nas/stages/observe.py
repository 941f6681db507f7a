"""The stage that really evaluates networks, those that a searcher asks for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from nas.events import ArchitectureMeasured, Event, FrontUpdated, Progress
from nas.evolution import EvolutionSettings
from nas.objectives import QUALITY
from nas.pareto import non_dominated
from nas.searchers.base import Problem, Searcher
from nas.searchers.one_shot import OneShot
from nas.searchers.rank_evolve import RankEvolve, RankEvolveSettings
from nas.stages.base import OBSERVATIONS_FILE, Run
from search_spaces.errors import DamagedRunError

# Searchers that ask for one network at a time would tell of a front after each.
NETWORKS_PER_FRONT = 8


def observe(run: Run) -> Iterator[Event]:
    """Measure the inherited quality of networks until the searcher has had enough.

    What the journal knows is told to the searcher again, which then asks for what is missing.

    Raises:
        DamagedRunError: when the journal holds networks that the searcher never asked for.
    """
    known = run.observations()
    searcher = build_searcher(run)
    total, shown = run.spec.budget.observations, 0
    asked: list[str] = []
    while len(rows := searcher.ask()):
        qualities = []
        for network in run.space.decode(rows):
            asked.append(network.id)
            if network.id not in known:
                measured = run.quality(network)
                known[network.id] = {
                    "id": network.id,
                    "architecture": network.to_json(),
                    **measured,
                }
                run.folder.append(OBSERVATIONS_FILE, [known[network.id]])
                yield ArchitectureMeasured("observe", network.id, measured)
            qualities.append(known[network.id][QUALITY])
            yield Progress("observe", len(asked), total)
        searcher.tell(rows, np.array(qualities, dtype=np.float64))
        if searcher.done >= shown + NETWORKS_PER_FRONT:
            shown = searcher.done
            yield _front(run, searcher)
    if asked != list(known):
        raise DamagedRunError(f"{OBSERVATIONS_FILE} holds networks that nobody asked for")
    yield Progress("observe", total, total, f"{searcher.done} networks")


def build_searcher(run: Run) -> Searcher:
    """The searcher of a run, which has not been told anything yet."""
    spec, budget = run.spec, run.spec.budget
    problem = Problem(run.space, run.costs.score, np.array(run.reference))
    match spec.searcher:
        case "rank-evolve":
            settings = RankEvolveSettings(
                budget=budget.observations,
                batch=budget.rounds.batch,
                prune=budget.rounds.prune,
                keep=spec.keep,
                patience=budget.rounds.patience,
                evolution=EvolutionSettings(
                    population=budget.evolution.population,
                    generations=max(1, budget.evolution.generations // 2),
                    mutation_rate=budget.evolution.mutation_rate,
                ),
            )
            return RankEvolve(problem, run.sampled_rows[: budget.rounds.first], settings, spec.seed)
        case "ranknas":
            # Later stages rank, prune, evolve and verify.
            return OneShot(problem, run.sampled_rows, 0, spec.seed)
        case sampler:
            from nas.searchers.optuna_study import OptunaSearcher

            return OptunaSearcher(problem, sampler, budget.observations, spec.seed)


def _front(run: Run, searcher: Searcher) -> FrontUpdated:
    """What nothing dominates so far, with costs that were predicted."""
    found = searcher.problem.points(searcher.rows, searcher.qualities)
    kept = found.violations == 0
    points = found.objectives[kept]
    best = points[non_dominated(points)]
    rows: tuple[dict[str, Any], ...] = tuple(
        dict(zip(run.spec.objectives, point, strict=True)) for point in best.tolist()
    )
    volume = searcher.problem.hypervolume(searcher.rows, searcher.qualities)
    return FrontUpdated("observe", rows, round(volume, 9))
