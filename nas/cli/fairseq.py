"""`nas fairseq …`, and what `nas retrain --backend fairseq` does."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any

import typer

from nas.cli import options
from nas.cli.consoles import say, tell
from nas.cli.listeners.targets import Target
from nas.cli.progress import Screen, choose_screen, follow
from nas.cli.results import final_lines
from nas.results.state import open_run
from nas.run.folder import RunFolder
from search_spaces.errors import UsageError


class Backend(StrEnum):
    """Who trains."""

    own = "own"
    fairseq = "fairseq"


BACKEND: Any = typer.Option(
    Backend.own,
    "--backend",
    help="Who trains: this package, or fairseq with the settings of the mFormer paper, for which "
    "a folder with the exact commands is written (translation).",
)
RUN_FAIRSEQ: Any = typer.Option(
    False, "--run", help="With --backend fairseq: run it here as well, and take its best weights."
)
FAIRSEQ_OPTIONS: Any = typer.Option(
    [],
    "--fairseq-option",
    metavar="TEXT",
    help="With --run: further options of fairseq-train, as '--max-update 1000'. Repeatable.",
)


def check_backend(backend: Backend, runs: bool, extra: Sequence[str]) -> None:
    """Refuse options of fairseq's where it does not train.

    Raises:
        UsageError: naming the option.
    """
    if backend is Backend.own and (runs or extra):
        raise UsageError(f"{'--run' if runs else '--fairseq-option'} needs --backend fairseq")
    if extra and not runs:
        raise UsageError("--fairseq-option needs --run; without, add the options to train.sh")


def retrain_with_fairseq(
    folder: RunFolder,
    how: str,
    runs: bool,
    extra: Sequence[str],
    logs: tuple[Target, ...],
    screen: Screen,
) -> None:
    """Write the folder of a network; with `runs` train there, and take the weights."""
    from nas.fairseq.backend import (
        check_untrained,
        find_program,
        import_checkpoints,
        run_job,
    )
    from nas.fairseq.folder import prepare_job

    if runs:
        find_program("fairseq-train")  # before anything is written
    options.use_threads(folder.spec.budget.threads)
    job = prepare_job(folder, how)
    if runs:
        check_untrained(folder, job)
    say(f"{'Network':<8} {job.entry.id}")
    say(f"{'Folder':<8} {job.path}")
    if not runs:
        say(f"{'Next':<8} {shlex.quote(str(job.path / 'train.sh'))}  (see README.md beside it)")
        return
    tell(f"training; to follow it: tail -f {shlex.quote(str(job.path / 'train.log'))}")
    words = [word for text in extra for word in shlex.split(text)]
    best = run_job(job, words)
    follow(folder, import_checkpoints(folder, [best], replaces=True), screen, logs)
    for line in final_lines(folder, [job.entry.id]):
        say(line)


def import_weights(
    run: str = options.RUN,
    checkpoints: list[Path] = typer.Argument(
        ..., metavar="CHECKPOINT...", help="Of the plug-in; several are averaged."
    ),
    replaces: bool = typer.Option(
        False, "--replace", help="Give up weights of the network that the run has already."
    ),
    log: list[str] = options.LOG,
    quiet: bool = options.QUIET,
    json_lines: bool = options.EVENTS,
) -> None:
    """Take weights that fairseq trained into a run, and score them once on the test split.

    After it nas translate, evaluate and export know the network as after nas retrain.
    """
    logs = options.read_logs(log)
    folder = open_run(run)
    options.use_threads(folder.spec.budget.threads)
    from nas.fairseq.backend import import_checkpoints

    events = import_checkpoints(folder, checkpoints, replaces)
    follow(folder, events, choose_screen(quiet, json_lines), logs)
    if not json_lines:
        for line in final_lines(folder):
            say(line)


def user_dir() -> None:
    """Print the folder that fairseq's commands take as --user-dir."""
    from supernet.export.fairseq_plugin import USER_DIR

    say(str(USER_DIR))
