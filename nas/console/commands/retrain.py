"""`nas retrain`: networks of a front, trained from scratch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.metadata import entry_points

import typer

from nas.console import options
from nas.console.commands.picking import FRONT, winners
from nas.console.commands.results import finish, follow
from nas.console.listeners.targets import LOG, read_logs
from nas.console.progress import choose_reporter
from nas.executors.base import ExecutorSettings
from nas.executors.opening import check_installed
from nas.executors.retraining.asked import MOST_EPOCHS, MOST_TRIALS
from nas.request import picks
from nas.results.state import open_run, read_state
from nas.run.threads import use_threads
from search_spaces.errors import UsageError

OWN = "own"
# Who else trains: name → a function like `nas.fairseq.command.train`.
BACKENDS = {point.name: point for point in entry_points(group="nas.training_backends")}


def _check_known(backend: str) -> str:
    if backend not in (OWN, *BACKENDS):
        raise typer.BadParameter(
            f"{backend!r} is not one of {', '.join(map(repr, (OWN, *BACKENDS)))}."
        )
    return backend


@options.grouped(where=options.TRAINING_PLACE)
def retrain(
    run: str = options.RUN,
    pick: list[str] = typer.Option(
        [],
        "--pick",
        metavar=f"{picks.METAVAR}|{FRONT}",
        help="The network to train, as with nas search, or the whole front. Repeatable.",
        autocompletion=options.complete_retrain_pick,
        show_default=f"{picks.BEST}; with --from-scratch what the search has picked",
    ),
    top: int = typer.Option(
        None, min=1, help="Of --pick front only so many, those with the best quality."
    ),
    tune: int = typer.Option(
        None,
        metavar="N",
        min=0,
        max=MOST_TRIALS,
        help="Try N learning rates, dropouts and warm-ups with Ray Tune and keep the best on the "
        "validation split; 0 goes back to the run's own.",
        show_default="what was asked before, or the run's own",
    ),
    epochs: int = typer.Option(
        None,
        metavar="N",
        min=0,
        max=MOST_EPOCHS,
        help="Train for N epochs, anew from the first weights; 0 goes back to the run's own.",
        show_default="what was asked before, or the run's own",
    ),
    from_scratch: bool = typer.Option(
        False,
        "--from-scratch",
        help="Where the search began with a checkpoint: train them without it, for comparison; "
        "what was fine-tuned stays.",
    ),
    where: ExecutorSettings = options.PLACED,
    backend: str = typer.Option(
        OWN,
        "--backend",
        metavar="|".join([OWN, *BACKENDS]),
        callback=_check_known,
        help="Who trains: this package, or fairseq with the settings of the mFormer paper, for "
        "which a folder with the exact commands is written (translation).",
    ),
    run_backend: bool = typer.Option(
        False,
        "--run",
        help="With --backend fairseq: run it here as well, and take its best weights.",
    ),
    fairseq_options: list[str] = typer.Option(
        [],
        "--fairseq-option",
        metavar="TEXT",
        help="With --run: further options of fairseq-train, as '--max-update 1000'. Repeatable.",
    ),
    log: list[str] = LOG,
    quiet: bool = options.QUIET,
    json_lines: bool = options.EVENTS,
) -> None:
    """Train networks of the front, each alone, and score each once on the test split.

    From scratch, or on from what it inherits where the search began with a checkpoint.

    With --executor ray several are trained side by side.
    """
    for one in pick:
        if one != FRONT:
            picks.read_pick(one)
    _check_backend(backend, run_backend, fairseq_options, json_lines)
    _check_tuning(tune, where)
    if from_scratch:
        _check_scratch(backend, (tune, epochs), where)
    if backend != OWN:
        _check_single(backend, pick, top, (tune, epochs), where)
    logs = read_logs(log)
    folder = open_run(run)
    screen = choose_reporter(quiet, json_lines)
    if backend != OWN:
        train = BACKENDS[backend].load()
        how = pick[0] if pick else picks.BEST
        trained = train(folder, how, run_backend, fairseq_options, logs, screen)
        if trained:
            finish(folder, trained, quiet, json_lines)
        return
    from nas.search.front import read_front

    picked = read_state(folder, thorough=False).picked if from_scratch else None
    ids = winners(read_front(folder), pick or [picked or picks.BEST], top)
    use_threads(folder.spec.budget.threads)
    if from_scratch:
        from nas.stages.scratch import train_from_scratch  # imports torch

        follow(folder, train_from_scratch(folder, ids), screen, logs)
    else:
        from nas.stages.retrain import retrain as run_retrain  # imports torch

        follow(folder, run_retrain(folder, ids, where, tune, epochs), screen, logs)
    finish(folder, ids, quiet, json_lines)


def _check_tuning(tune: int | None, where: ExecutorSettings) -> None:
    if tune and where.kind == "local":
        check_installed("--tune")
        raise UsageError("--tune tries settings side by side, which Ray does: add --executor ray")


def _check_scratch(
    backend: str, asked: tuple[int | None, int | None], where: ExecutorSettings
) -> None:
    given = {
        "--tune": asked[0] is not None,
        "--epochs": asked[1] is not None,
        "--executor ray": where.kind == "ray",
        f"--backend {backend}": backend != OWN,
    }
    _refuse(
        given,
        "--from-scratch, which trains here, with the run's own settings and for as long as was "
        "asked of the fine-tuned network",
    )


def _check_backend(backend: str, runs: bool, extra: Sequence[str], json_lines: bool) -> None:
    if backend == OWN and (runs or extra):
        raise UsageError(f"{'--run' if runs else '--fairseq-option'} needs --backend fairseq")
    if extra and not runs:
        raise UsageError("--fairseq-option needs --run; without, add the options to train.sh")
    if json_lines and backend != OWN and not runs:
        raise UsageError(
            f"--json with --backend {backend} needs --run; without, only a folder is written"
        )


def _check_single(
    backend: str,
    pick: Sequence[str],
    top: int | None,
    asked: tuple[int | None, int | None],
    where: ExecutorSettings,
) -> None:
    given = {
        "--pick front": FRONT in pick,
        "a second --pick": len(pick) > 1,
        "--top": top is not None,
        "--tune": asked[0] is not None,
        "--epochs": asked[1] is not None,
        "--executor ray": where.kind == "ray",
    }
    _refuse(given, f"--backend {backend}, which trains one network by itself")


def _refuse(given: Mapping[str, bool], beside: str) -> None:
    """Refuse the first of the options that are there and do not go with another."""
    if wrong := next((name for name, there in given.items() if there), None):
        raise UsageError(f"{wrong} does not go with {beside}")
