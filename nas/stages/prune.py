"""The stage that cuts the choices that good networks do without."""

from __future__ import annotations

from collections.abc import Iterator

from nas.run.duration import GENERATION, Asked, Part, Plan
from nas.run.events import Event, Note, Progress
from nas.run.layout import PRUNED_SPACE_FILE, PRUNING_FILE, REPORT_CARD_FILE
from nas.run.opened import PRUNE
from nas.search.pruning.prune import PruningSettings, prune
from nas.search.ranking import ReportCard
from nas.stages.base import Run, size_text
from search_spaces.files import write_atomically
from search_spaces.loading import dumped


def work(run: Run) -> Iterator[Event]:
    """Cut the choices that good networks do without."""
    scorer = run.scorer
    card = ReportCard.from_json(run.folder.read_json(REPORT_CARD_FILE))
    rows = run.observed_rows
    objectives = scorer.score(rows).objectives
    # Quality stands first; costs of networks that were not timed stay predicted.
    objectives[:, 0] = run.qualities()
    result = prune(
        run.domain,
        scorer.score,
        card,
        rows,
        objectives,
        seed=run.spec.seed * 16 + PRUNE,
        settings=PruningSettings(min_pairwise_accuracy=run.spec.budget.min_pairwise_accuracy),
        keep=run.folder.protected,
    )
    write_atomically(run.folder.path / PRUNED_SPACE_FILE, dumped(result.space))
    run.folder.write_json(PRUNING_FILE, result.to_json())
    if result.refused:
        yield Note("prune", result.refused)
    cuts = "1 choice" if len(result.cuts) == 1 else f"{len(result.cuts)} choices"
    message = f"{cuts} cut, {size_text(result.space)} of {size_text(run.domain)} networks remain"
    yield Progress("prune", 1, 1, message)


def plan(asked: Asked) -> Plan:
    """How much there is to do where the ranker can be trusted; nothing where not."""
    settings = PruningSettings()
    evolved = settings.population * (settings.generations + 1)
    generations = evolved / asked.spec.budget.evolution.population
    # The sample is scored at once, which takes little beside.
    what = f"{settings.sample + evolved:,} networks scored"
    return Plan(what, (Part(GENERATION, generations),))
