"""`nas retrain`: networks of a front, trained from scratch."""

from __future__ import annotations

import typer

from nas.cli import options
from nas.cli.fairseq import (
    BACKEND,
    FAIRSEQ_OPTIONS,
    RUN_FAIRSEQ,
    Backend,
    check_backend,
    retrain_with_fairseq,
)
from nas.cli.picking import FRONT, winners
from nas.cli.progress import choose_screen, follow
from nas.cli.results import finish
from nas.executors.base import ExecutorKind, ExecutorSettings
from nas.executors.opening import check_installed
from nas.results.state import open_run
from nas.retraining.tuning_record import MOST_TRIALS
from search_spaces.errors import UsageError


def retrain(
    run: str = options.RUN,
    pick: str = typer.Option(
        "best",
        "--pick",
        metavar="best|knee|cheapest|CONDITIONS|ID|front",
        help="The network to train from scratch, as with nas search, or the whole front.",
        autocompletion=options.complete_retrain_pick,
    ),
    top: int = typer.Option(
        None, min=1, help="Of --pick front only so many, those with the best quality."
    ),
    tune: int = typer.Option(
        None,
        metavar="N",
        min=0,
        max=MOST_TRIALS,
        help="Try N learning rates, dropouts and warm-ups with Ray Tune and keep the best by the "
        "validation loss; 0 goes back to the run's own.",
        show_default="the run's own settings",
    ),
    executor: ExecutorKind = options.EXECUTOR,
    ray_address: str = options.RAY_ADDRESS,
    cpus_per_worker: int = options.CPUS_PER_WORKER,
    workers: int = options.WORKERS,
    backend: Backend = BACKEND,
    run_fairseq: bool = RUN_FAIRSEQ,
    fairseq_options: list[str] = FAIRSEQ_OPTIONS,
    log: list[str] = options.LOG,
    quiet: bool = options.QUIET,
    json_lines: bool = options.EVENTS,
) -> None:
    """Train networks of the front from scratch and score each once on the test split.

    With --executor ray several are trained side by side.
    """
    if pick != FRONT:
        options.read_pick(pick)
    where = options.read_executor(executor, ray_address, cpus_per_worker, workers)
    check_backend(backend, run_fairseq, fairseq_options)
    _check_tuning(tune, where)
    if backend is Backend.fairseq:
        _check_fairseq(pick, top, tune, where)
    logs = options.read_logs(log)
    folder = open_run(run)
    screen = choose_screen(quiet, json_lines)
    if backend is Backend.fairseq:
        retrain_with_fairseq(folder, pick, run_fairseq, fairseq_options, logs, screen)
        return
    from nas.search.front import read_front

    ids = winners(read_front(folder), pick, top)
    options.use_threads(folder.spec.budget.threads)
    from nas.stages.retrain import retrain as run_retrain  # imports torch

    follow(folder, run_retrain(folder, ids, where, tune), screen, logs)
    finish(folder, ids, quiet, json_lines)


def _check_tuning(tune: int | None, where: ExecutorSettings) -> None:
    if tune and where.kind == "local":
        check_installed("--tune")
        raise UsageError("--tune tries settings side by side, which Ray does: add --executor ray")


def _check_fairseq(pick: str, top: int | None, tune: int | None, where: ExecutorSettings) -> None:
    given = {
        "--pick front": pick == FRONT,
        "--top": top is not None,
        "--tune": tune is not None,
        "--executor ray": where.kind == "ray",
    }
    wrong = [name for name, there in given.items() if there]
    if wrong:
        raise UsageError(
            f"{wrong[0]} does not go with --backend fairseq, which trains one network by itself"
        )
