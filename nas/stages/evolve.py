"""The stage that evolves networks on predictions."""

from __future__ import annotations

from collections.abc import Iterator

from nas.run.duration import GENERATION, Asked, Part, Plan, counted
from nas.run.events import Event, Progress
from nas.run.layout import POPULATION_FILE
from nas.search.evolution import EvolutionSettings, Generation, evolve
from nas.stages.base import Run


def work(run: Run) -> Iterator[Event]:
    """Evolve networks on predictions."""
    budget = run.spec.budget.evolution
    settings = EvolutionSettings(
        population=budget.population,
        generations=budget.generations,
        mutation_rate=budget.mutation_rate,
    )
    scorer, space = run.scorer, run.pruned
    done = [Generation.from_json(line) for line in run.folder.read_journal(POPULATION_FILE)]
    generations = evolve(
        space,
        lambda rows: scorer.score(space.translate(rows, run.domain)),
        settings,
        run.spec.seed,
        done,
    )
    scored = sum(len(generation.genotypes) for generation in done)
    for generation in generations:
        run.folder.append(POPULATION_FILE, [generation.to_json()])
        scored += len(generation.genotypes)
        message = f"{scored:,} networks scored"
        yield Progress("evolve", generation.number, settings.generations, message)


def plan(asked: Asked) -> Plan:
    """How much there is to do."""
    budget = asked.spec.budget.evolution
    what = f"{counted(budget.generations, 'generation')} of {budget.population:,}"
    return Plan(what, (Part(GENERATION, budget.generations + 1),))
