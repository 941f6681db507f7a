"""`nas fairseq`, and what `nas retrain --backend fairseq` does."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

import typer

from nas.console import options
from nas.console.commands.results import finish, follow
from nas.console.listeners.targets import LOG, Target, read_logs
from nas.console.output import say, tell
from nas.console.plugins import USE
from nas.console.progress import ProgressReporter, choose_reporter
from nas.fairseq.plugin import USER_DIR
from nas.results.state import open_run
from nas.run.events import ArchitectureMeasured, Event
from nas.run.folder import RunFolder
from nas.run.threads import use_threads

app = typer.Typer(
    no_args_is_help=True,
    help="Work together with fairseq.",
    epilog="Example: nas fairseq user-dir",
    rich_help_panel=USE,
)


def train(
    folder: RunFolder,
    how: str,
    runs: bool,
    extra: Sequence[str],
    logs: tuple[Target, ...],
    screen: ProgressReporter,
) -> list[str]:
    """Write the folder of a network; with `runs` train there, and take the weights.

    Returns:
        The networks that the run has weights of by now, to tell about.
    """
    from nas.fairseq.backend import check_untrained, find_program, import_checkpoints, run_job
    from nas.fairseq.folder import prepare_job

    if runs:
        find_program("fairseq-train")  # before anything is written
    use_threads(folder.spec.budget.threads)
    job = prepare_job(folder, how)
    if runs:
        check_untrained(folder, job)
    if not runs:
        say(f"{'Network':<8} {job.entry.id}")
        say(f"{'Folder':<8} {job.path}")
        say(f"{'Next':<8} {shlex.quote(str(job.path / 'train.sh'))}  (see README.md beside it)")
        return []
    log = shlex.quote(str(job.path / "train.log"))
    tell(f"training {job.entry.id}; to follow it: tail -f {log}")
    words = [word for text in extra for word in shlex.split(text)]
    best = run_job(job, words)
    follow(folder, import_checkpoints(folder, [best], replaces=True), screen, logs)
    return [job.entry.id]


@app.command(
    "import",
    epilog="Examples:\n\n"
    "nas fairseq import runs/wmt14-1a2b3c4d checkpoints/checkpoint_best.pt\n\n"
    "nas fairseq import runs/wmt14-1a2b3c4d checkpoints/checkpoint19?.pt --replace",
)
def import_weights(
    run: str = options.RUN,
    checkpoints: list[Path] = typer.Argument(
        ..., metavar="CHECKPOINT...", help="Of the plug-in; several are averaged."
    ),
    replaces: bool = typer.Option(
        False, "--replace", help="Give up weights of the network that the run has already."
    ),
    log: list[str] = LOG,
    quiet: bool = options.QUIET,
    json_lines: bool = options.EVENTS,
) -> None:
    """Take weights that fairseq trained into a run, and score them once on the test split.

    After it nas translate, evaluate and export know the network as after nas retrain.
    """
    logs = read_logs(log)
    folder = open_run(run)
    use_threads(folder.spec.budget.threads)
    from nas.fairseq.backend import import_checkpoints

    ids: list[str] = []
    events = _noted(import_checkpoints(folder, checkpoints, replaces), ids)
    follow(folder, events, choose_reporter(quiet, json_lines), logs)
    finish(folder, ids, quiet, json_lines)


def _noted(events: Iterator[Event], ids: list[str]) -> Iterator[Event]:
    """The same events; the networks that they tell the scores of are added to `ids`."""
    for event in events:
        if isinstance(event, ArchitectureMeasured):
            ids.append(event.architecture_id)
        yield event


@app.command(
    epilog="Example:\n\n"
    "fairseq-train data-bin --user-dir $(nas fairseq user-dir) --arch nas_transformer "
    "--nas-architecture arch.json --nas-space wmt14",
)
def user_dir() -> None:
    """Print the folder that fairseq's commands take as --user-dir."""
    say(str(USER_DIR))
