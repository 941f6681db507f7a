"""The stage that checks a request before any work."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from nas.run.checkpoint import check_classes, check_tokenizer
from nas.run.duration import Asked, Plan
from nas.run.evaluator import check_data
from nas.run.evaluators.offered import OfferedCosts
from nas.run.events import Event, Note, Progress
from nas.run.layout import DATA_FILE, SPACE_FILE
from nas.run.training_memory import supernet_text
from nas.search.ranking.report_card import MIN_OBSERVATIONS
from nas.stages import feasibility
from nas.stages.base import Run, size_text
from search_spaces.errors import UsageError
from search_spaces.files import write_atomically
from search_spaces.genes import GeneSpace, dump_genes
from search_spaces.genotypes import GenotypeSpace
from search_spaces.loading import dump_space
from supernet.tasks.classification import ClassificationTask
from supernet.training.card_memory import card_bytes


def work(run: Run) -> Iterator[Event]:
    """Check that the request can be met and write the space down."""
    _check_size(run.domain)
    if run.offered is not None:
        yield from _declare_external(run, run.offered)
        return
    run.executor.check(run.spec)
    feasibility.check_request(run.spec, run.executor, run.device_profile)
    if run.spec.start is not None and run.spec.data is not None:
        check_tokenizer(Path(run.spec.data), run.spec.start, run.space.task)
    task = run.task
    if run.spec.start is not None and isinstance(task, ClassificationTask):
        check_classes(task.label_names, run.spec.start)
    check_data(run.quick_task, run.spec.quality)
    budget, alone = run.spec.budget, run.spec.trains_alone
    for training in (budget.retrain,) if alone else (budget.supernet, budget.retrain):
        task.check(training)
    write_atomically(run.folder.path / SPACE_FILE, dump_space(run.space))
    run.folder.write_json(
        DATA_FILE,
        {
            "dataset": task.name,
            "digest": task.digest,
            **task.describe(),
        },
    )
    if run.computes_on.startswith("cuda") and not alone:
        card = card_bytes(run.computes_on)
        yield Note("declare", supernet_text(run.space, budget.supernet, card, run.checkpoint))
    yield Progress("declare", 1, 1, f"{size_text(run.space)} networks")


def _declare_external(run: Run, offered: OfferedCosts) -> Iterator[Event]:
    """The same for networks that an evaluator of others knows."""
    run.executor.check(run.spec)
    assert isinstance(run.domain, GeneSpace)
    write_atomically(run.folder.path / SPACE_FILE, dump_genes(run.domain))
    run.folder.write_json(DATA_FILE, run.external_data(offered))
    told = f"; {', '.join(offered.names)} told of any network" if offered.names else ""
    yield Progress("declare", 1, 1, f"{size_text(run.domain)} networks{told}")


def _check_size(space: GenotypeSpace) -> None:
    if space.size < MIN_OBSERVATIONS:
        raise UsageError(
            f"the space {space.name} holds {space.size} network{'s' * (space.size != 1)}, and a "
            f"search needs at least {MIN_OBSERVATIONS} to learn what matters: give a gene more "
            "choices"
        )


def plan(asked: Asked) -> Plan:
    """How much there is to do."""
    return Plan("is done before anything is told")
