"""A search from Python, with an evaluator that is an object at hand.

::

    from nas.searching import Answer, search

    front = search("mine.toml", MyEvaluator(), ["quality", "latency"], out="runs/mine")
    for entry in front.entries:
        print(entry.network, entry.measured)

It makes a run folder, like ``nas search``, so all commands that look at runs take it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from nas.executors.asking import check_named
from nas.executors.base import EVALUATION_TIMEOUT_S, ExecutorKind, ExecutorSettings
from nas.request.fields import first_problem
from nas.request.resolve import external_spec
from nas.request.spec import SearchRequest
from nas.results.state import RUNS
from nas.run.evaluators import Answer, Evaluator
from nas.run.evaluators.opening import EvaluatorName
from nas.run.folder import RunFolder
from nas.run.threads import use_threads
from nas.search.front import Front, read_front
from search_spaces.errors import UsageError
from search_spaces.genes import GeneSpace, dump_genes, given_genes, load_genes

__all__ = ["Answer", "Evaluator", "search"]


def search(
    space: GeneSpace | str | Path,
    evaluator: Evaluator | str,
    objectives: Sequence[str],
    *,
    out: str | Path | None = None,
    executor: ExecutorKind = "local",
    ray_address: str | None = None,
    workers: int | None = None,
    evaluation_timeout_s: float = EVALUATION_TIMEOUT_S,
    **asked: Any,
) -> Front:
    """Search a space of genes for the networks that nothing dominates.

    The same call with the same folder goes on where it stopped, and asks for nothing twice.

    Args:
        space: the genes, or the TOML file that holds them.
        evaluator: who tells what networks are worth, or the name of one, see
            `nas.run.evaluators.opening`.
        objectives: ``quality`` and costs that the evaluator tells.
        out: the run folder; ``runs/SPACE-DIGEST`` if not given.
        executor: ``local`` to ask in this process, ``ray`` to ask side by side, for which the
            evaluator is given by its name.
        ray_address: see `nas.executors.base.ExecutorSettings`.
        workers: of Ray, at most.
        evaluation_timeout_s: seconds after which an evaluation is given up.
        asked: other fields of `nas.request.spec.SearchRequest`, such as ``limits``, ``preset``,
            ``searcher``, ``seed`` and ``settings``.

    Returns:
        The front.

    Raises:
        NasError: for a request that cannot be, or when a stage fails; the run can be gone on with.
    """
    from nas.stages.pipeline import run_search  # imports torch

    genes = space if isinstance(space, GeneSpace) else load_genes(space)
    if out is None and isinstance(space, GeneSpace):
        given_genes(dump_genes(genes), "space")  # refuses a name that no folder can begin with
    if isinstance(evaluator, str):
        name, known = EvaluatorName.read(evaluator).here(), None
    else:
        name, known = f"{type(evaluator).__module__}:{type(evaluator).__qualname__}", evaluator
    values: Mapping[str, Any] = {**asked, "objectives": tuple(objectives), "evaluator": name}
    spec = external_spec(_request(values), genes, name)
    where = ExecutorSettings(executor, ray_address, workers=workers, timeout_s=evaluation_timeout_s)
    check_named(known, where)
    path = RUNS / f"{genes.name}-{spec.digest[:8]}" if out is None else Path(out)
    folder = RunFolder.create(path, spec)
    use_threads(spec.budget.threads)
    for _ in run_search(folder, where, evaluator=known):
        pass
    return read_front(folder)


def _request(values: Mapping[str, Any]) -> SearchRequest:
    """The request of these fields; its space is at hand.

    Raises:
        UsageError: one sentence naming the field at fault.
    """
    try:
        return SearchRequest(space="", **values)
    except ValidationError as error:
        raise UsageError(first_problem(error, SearchRequest)) from error
