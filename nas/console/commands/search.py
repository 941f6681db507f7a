"""`nas search` and `nas resume`: the commands that search."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import typer

from latency.workload import Workload
from nas.console import options
from nas.console.commands.checked_spaces import checked_space
from nas.console.commands.data import shown_on
from nas.console.commands.results import finish, follow
from nas.console.commands.settings import list_settings as list_settings_then_exit
from nas.console.commands.spaces import made_space
from nas.console.listeners.targets import LOG, Target, read_logs
from nas.console.output import tell
from nas.console.progress import choose_reporter
from nas.executors.base import ExecutorSettings
from nas.request.architectures import read_architecture
from nas.request.protected_choices import as_options, read_protected, spelled
from nas.request.resolve import AttachedProfile, Resolved, StartingPoint, resolve
from nas.request.spec import DEFAULT_HOURS, SYNTHETIC, SearchRequest
from nas.results.state import RUNS, open_run
from nas.run.evaluators.opening import EvaluatorName
from nas.run.events import Event
from nas.run.folder import RunFolder
from nas.run.layout import DEVICE_PROFILE_FILE, EVENTS_FILE, LOCK_FILE, SPEC_FILE, record_file
from nas.run.termination import terminable
from nas.run.threads import use_threads
from search_spaces.architecture import Architecture
from search_spaces.errors import DataError, RunConflictError, UsageError
from search_spaces.files import write_atomically
from search_spaces.genes import GeneSpace, load_genes
from search_spaces.loading import space_names
from search_spaces.space import SearchSpace


@dataclass(frozen=True)
class Working:
    """How a run is worked on and what is told of it; no part of the request."""

    where: ExecutorSettings
    logs: tuple[Target, ...]
    quiet: bool
    json_lines: bool
    retime: bool


@options.grouped(request=options.SEARCH_REQUEST, where=options.PLACE)
def search(
    request: SearchRequest,
    out_dir: Path = typer.Option(
        None,
        "--out",
        help="The run folder.",
        show_default="runs/SPACE-DIGEST, with the digest of the request",
    ),
    list_settings: bool = typer.Option(
        False,
        "--list-settings",
        is_eager=True,
        callback=list_settings_then_exit,
        help="List what --set can override, with the value in each preset, of --space if that is "
        "given, and exit.",
    ),
    retime: bool = options.RETIME,
    where: ExecutorSettings = options.PLACED,
    log: list[str] = LOG,
    quiet: bool = options.QUIET,
    json_lines: bool = options.EVENTS,
) -> None:
    """Search a space for Pareto-optimal networks, verify them and retrain the chosen one.

    The same command in the same folder goes on where it stopped.
    """
    del list_settings  # its callback has done all there is to do
    how = Working(where, read_logs(log), quiet, json_lines, retime)
    found = resolve(request, Here(quiet or json_lines))
    folder = out_dir or RUNS / f"{found.space.name}-{found.spec.digest[:8]}"
    _work_on_search(folder, found, how)


class Here:
    """This machine, where a request names files.

    Args:
        quiet: tell nothing of what takes a while.
    """

    def __init__(self, quiet: bool = False) -> None:
        self._quiet = quiet

    def space(self, name: str) -> SearchSpace:
        """A shipped space, or one of a file, with tables that can be used."""
        return checked_space(name)

    def start(self, name: str) -> StartingPoint:
        """A checkpoint in a folder."""
        from nas.run.checkpoint import starting_point  # imports torch

        return starting_point(Path(name).expanduser())

    def made(self, data: str, hours: float | None, device: str) -> str:
        """The file of a space that is made once, and then lies beside the data."""
        folder = self.data(data)
        hours = DEFAULT_HOURS if hours is None else hours
        file = folder / f"space-{device}-{hours:g}h.toml"
        if not file.exists():
            made = made_space(folder, hours, device, self._quiet)
            write_atomically(file, made.text)
            if not self._quiet:
                tell(f"made a space of {made.size} networks: {file}, to be edited or made anew")
        return str(file)

    def data(self, name: str) -> Path:
        """A folder or file of data."""
        path = Path(name).expanduser()
        if not path.exists():
            raise UsageError(
                f"--data {name} does not exist: give a folder made by nas data prepare or "
                f"fairseq-preprocess, a file, or the word {SYNTHETIC}"
            )
        return path.resolve()

    def texts(self, path: Path, begun: StartingPoint) -> Path:
        """Data that are prepared once, in the cache folder."""
        from nas.run.checkpoint import prepared_texts  # imports torch

        with terminable(), choose_reporter(self._quiet, json_lines=False) as screen:
            found = prepared_texts(path, begun, shown_on(screen))
        if found != path and not self._quiet:
            tell(f"{path} as {begun.space.name} reads it: {found}")
        return found

    def architecture(self, name: str) -> Architecture:
        """A network in a file, or in a line of text."""
        return read_architecture(name)

    def dataset(self, name: str, file: Path | None) -> Path | None:
        """The file that was named; the first stage looks whether there is such a data set."""
        return file

    def genes(self, name: str) -> GeneSpace:
        """A space of genes in a file."""
        if name in space_names():
            raise UsageError(
                f"the space {name} holds networks that are trained here, and --evaluator is for "
                "those of a TOML file with [genes]: leave one of them out"
            )
        return load_genes(name)

    def evaluator(self, name: str) -> str:
        """The name with whole paths."""
        return EvaluatorName.read(name).here()

    def device_profile(
        self, name: str, space: SearchSpace, again: str, workload: Workload | None
    ) -> AttachedProfile:
        """The part of a device profile that is for a search."""
        from nas.profiling.device_profile import read_device_profile

        return read_device_profile(Path(name)).attached(space, again, workload)


@options.grouped(where=options.PLACE)
def resume(
    run: str = options.RUN,
    keep: list[str] = options.KEEP_AGAIN,
    retime: bool = options.RETIME,
    where: ExecutorSettings = options.PLACED,
    log: list[str] = LOG,
    quiet: bool = options.QUIET,
    json_lines: bool = options.EVENTS,
) -> None:
    """Go on with a run where it stopped; stages with damaged files are done again.

    With --keep the space is pruned anew, with --retime networks are timed anew; of the other
    stages those are done again that read what has changed. The executor may be another one than
    before.
    """
    how = Working(where, read_logs(log), quiet, json_lines, retime)
    folder = open_run(run)
    if keep:
        folder.protect(read_protected(folder.spec.space, keep))
    _tell_protected(folder, quiet or json_lines)
    _work(folder, how)


def _tell_protected(folder: RunFolder, quiet: bool) -> None:
    """Say which protected are in force; a damaged list is told before any work is done."""
    if not folder.protected:
        return
    protected = spelled(folder.spec.space, folder.protected)
    if not quiet:
        tell(f"kept from pruning: {as_options(protected)}")


def _work_on_search(path: Path, found: Resolved, how: Working) -> None:
    from nas.stages.feasibility import check_costs

    there = (path / SPEC_FILE).exists()
    if not there and found.spec.evaluator is None:
        check_costs(found.spec.space, found.spec.limits)
    attached = {} if found.profile is None else {DEVICE_PROFILE_FILE: found.profile.text}
    folder = RunFolder.create(path, found.spec, attached)
    if there and not how.quiet:
        with folder.locked():  # it does not go on where another process works on it
            pass
        tell(f"{path} holds this search already: going on where it stopped")
        _tell_protected(folder, how.json_lines)
    try:
        _work(folder, how)
    except typer.Exit as stopped:
        if isinstance(stopped.__cause__, UsageError | DataError) and not there:
            _forget_refused(folder)
        raise


def _work(folder: RunFolder, how: Working) -> None:
    screen = choose_reporter(how.quiet, how.json_lines)
    follow(folder, _search_events(folder, how), screen, how.logs)
    finish(folder, [], how.quiet, how.json_lines)


def _search_events(folder: RunFolder, how: Working) -> Iterable[Event]:
    use_threads(folder.spec.budget.threads)
    from nas.stages.pipeline import run_search  # running it imports torch

    return run_search(folder, how.where, how.retime, tells=True)


def _forget_refused(folder: RunFolder) -> None:
    """Leave no folder behind of a request that was refused before its first stage ended.

    The request has to be changed, and its folder would stand in the way of the changed one. A
    folder that another process works on stays.
    """
    path = folder.path
    with suppress(RunConflictError), folder.locked():
        if not folder.finished():
            for name in (SPEC_FILE, EVENTS_FILE, DEVICE_PROFILE_FILE):
                (path / name).unlink(missing_ok=True)
    if not (path / SPEC_FILE).exists():
        (path / LOCK_FILE).unlink(missing_ok=True)
        for left in ((path / record_file("*")).parent, path):
            if left.is_dir() and not any(left.iterdir()):
                left.rmdir()
