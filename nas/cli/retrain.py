"""`nas retrain`: networks of the front, trained from scratch."""

from __future__ import annotations

import typer

from nas.cli import options
from nas.cli.picking import FRONT, winners
from nas.cli.progress import choose_screen, follow
from nas.cli.run_state import open_run
from nas.cli.search import finish
from nas.executors.base import ExecutorKind
from nas.executors.opening import check_installed
from nas.tuning_record import MOST_TRIALS
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
    if tune and where.kind == "local":
        check_installed("--tune")
        raise UsageError("--tune tries settings side by side, which Ray does: add --executor ray")
    logs = options.read_logs(log)
    folder = open_run(run)
    from nas.front import read_front

    ids = winners(read_front(folder), pick, top)
    options.use_threads(folder.spec.budget.threads)
    from nas.retrain import retrain as run_retrain  # imports torch

    follow(folder, run_retrain(folder, ids, where, tune), choose_screen(quiet, json_lines), logs)
    finish(folder, ids, quiet, json_lines)
