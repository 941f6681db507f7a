"""The stages that search on predictions, and the one that puts everything together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from nas.objectives import objective
from nas.run.events import Event, FrontUpdated, Note, Progress
from nas.run.layout import (
    FRONT_FILE,
    POPULATION_FILE,
    PRUNED_SPACE_FILE,
    PRUNING_FILE,
    REPORT_CARD_FILE,
)
from nas.run.opened import PRUNE
from nas.search.evolution import EvolutionSettings, Generation, evolve
from nas.search.front import FrontEntry, build_front
from nas.search.pruning.prune import PruningSettings, prune
from nas.search.ranking import ReportCard
from nas.stages.base import Run, size_text
from nas.stages.holding import with_held
from nas.stages.verification import measured_entries
from search_spaces.files import write_atomically
from search_spaces.loading import dump_space


def prune_space(run: Run) -> Iterator[Event]:
    """Cut the choices that good networks do without."""
    scorer = run.scorer
    card = ReportCard.from_json(run.folder.read_json(REPORT_CARD_FILE))
    rows = run.observed_rows
    objectives = scorer.score(rows).objectives
    # Quality stands first; costs of networks that were not timed stay predicted.
    objectives[:, 0] = run.qualities()
    result = prune(
        run.space,
        scorer.score,
        card,
        rows,
        objectives,
        seed=run.spec.seed * 16 + PRUNE,
        settings=PruningSettings(min_pairwise_accuracy=run.spec.budget.min_pairwise_accuracy),
        keep=run.folder.vetoes,
    )
    write_atomically(run.folder.path / PRUNED_SPACE_FILE, dump_space(result.space))
    run.folder.write_json(PRUNING_FILE, result.to_json())
    if result.refused:
        yield Note("prune", result.refused)
    cuts = "1 choice" if len(result.cuts) == 1 else f"{len(result.cuts)} choices"
    message = f"{cuts} cut, {size_text(result.space)} of {size_text(run.space)} networks remain"
    yield Progress("prune", 1, 1, message)


def evolve_population(run: Run) -> Iterator[Event]:
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
        lambda rows: scorer.score(space.translate(rows, run.space)),
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


def find_front(run: Run) -> Iterator[Event]:
    """Put everything that was measured together and keep what nothing dominates."""
    objectives = [objective(name, run.spec.quality) for name in run.spec.objectives]
    entries = with_held(run, measured_entries(run))
    device = run.elsewhere or ""
    front = build_front(entries, objectives, run.reference, run.spec.limits, device)
    run.folder.write_json(FRONT_FILE, front.to_json())
    points = tuple(_shown(entry, run.spec.objectives) for entry in front.entries)
    yield FrontUpdated("front", points, front.hypervolume)
    yield Progress("front", 1, 1, f"{len(front.entries)} networks")


def _shown(entry: FrontEntry, names: Sequence[str]) -> dict[str, float]:
    return dict(entry.measured) | {name: entry.value(name) for name in names}
