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
from nas.cli.run_state import open_run
from nas.executors.base import ExecutorSettings
from nas.executors.opening import check_installed
from nas.request import picks
from nas.retraining.tuning_record import MOST_TRIALS
from search_spaces.errors import UsageError


@options.grouped(where=options.TRAINING_PLACE)
def retrain(
    run: str = options.RUN,
    pick: str = typer.Option(
        picks.BEST,
        "--pick",
        metavar=f"{picks.METAVAR}|{FRONT}",
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
    where: ExecutorSettings = options.PLACED,
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
        picks.read_pick(pick)
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
    from nas.front import read_front

    ids = winners(read_front(folder), pick, top)
    options.use_threads(folder.spec.budget.threads)
    from nas.retrain import retrain as run_retrain  # imports torch

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
