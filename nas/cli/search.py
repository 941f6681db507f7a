"""`nas search` and `nas resume`: the commands that search."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from nas.cli import options
from nas.cli.checked_spaces import checked_space
from nas.cli.consoles import tell
from nas.cli.listeners.targets import Target
from nas.cli.options import Device
from nas.cli.picking import check_pick
from nas.cli.progress import choose_screen, follow
from nas.cli.results import finish
from nas.cli.run_state import RUNS, open_run
from nas.cli.settings import list_settings as list_settings_then_exit
from nas.executors.base import ExecutorKind, ExecutorSettings
from nas.objectives import OBJECTIVES, QualityMetric
from nas.run.events import Event
from nas.run.folder import RunFolder
from nas.run.layout import DEVICE_PROFILE_FILE, EVENTS_FILE, SPEC_FILE
from nas.run.presets import PRESETS, budget_for
from nas.run.spec import SearcherName, SearchSpec, build_spec
from nas.run.vetoes import as_options, read_vetoes, spelled
from search_spaces.errors import DataError, RunConflictError, UsageError
from search_spaces.loading import dump_space
from search_spaces.space import SearchSpace

if TYPE_CHECKING:
    from nas.profiling.device_profile import CarriedProfile

SYNTHETIC = "synthetic"

Logs = tuple[Target, ...]


@dataclass(frozen=True)
class Working:
    """How a run is worked on and what is told of it; no part of the request."""

    where: ExecutorSettings
    logs: Logs
    quiet: bool
    json_lines: bool
    retime: bool


def search(
    space: str = options.SPACE,
    preset: str = typer.Option(
        "quick",
        metavar="|".join(PRESETS),
        help="How much to do.",
        autocompletion=options.complete_preset,
    ),
    objectives: str = typer.Option(
        "quality,latency_ms",
        metavar="NAME,NAME",
        help="What to minimise: quality, and any of latency_ms, flops, params, peak_memory_mb.",
        autocompletion=options.complete_objectives,
    ),
    quality: QualityMetric = typer.Option(
        "loss",
        help="What quality is: the validation loss, or for translation BLEU, which takes longer.",
    ),
    limit: list[str] = typer.Option(
        [],
        metavar="NAME=VALUE",
        help="The largest latency_ms, flops, params or peak_memory_mb allowed. Repeatable.",
        autocompletion=options.complete_limit,
    ),
    searcher: SearcherName = typer.Option(
        "rank-evolve",
        help="How networks to evaluate are chosen: by ranking and evolving in rounds, by doing "
        "so once as RankNAS does, or by one of Optuna's samplers.",
    ),
    device: Device = typer.Option(Device.cpu, help="Where networks are trained and timed."),
    seed: int = typer.Option(0, min=0, max=2**31 - 1, help="Seed of everything random."),
    dataset: str = typer.Option(
        None, metavar="NAME", help="The data set.", show_default="the space's own"
    ),
    data: str = typer.Option(
        None,
        metavar="DIR|FILE|synthetic",
        help="A folder made by nas data prepare, the file of a data set that is not built in, or "
        "the word synthetic: a generated corpus, to try a space with.",
        autocompletion=options.complete_data,
    ),
    out_dir: Path = typer.Option(
        None,
        "--out",
        help="The run folder.",
        show_default="runs/SPACE-DIGEST, with the digest of the request",
    ),
    pick: str = options.PICK,
    keep: list[str] = options.KEEP,
    settings: list[str] = typer.Option(
        [],
        "--set",
        metavar="NAME=VALUE",
        help="Override a number of the preset (--list-settings names them). Repeatable.",
        autocompletion=options.complete_setting,
    ),
    list_settings: bool = typer.Option(
        False,
        "--list-settings",
        is_eager=True,
        callback=list_settings_then_exit,
        help="List what --set can override, with the value in each preset, of --space if that is "
        "given, and exit.",
    ),
    threads: int = typer.Option(
        None, min=1, help="CPU threads.", show_default="the space's own, or one for each core"
    ),
    workload: str = typer.Option(
        None,
        metavar="KEY=VALUE,…",
        help="What is timed, over the space's own: batch, source, target, beam, dtype, mode.",
        show_default="the space's own",
    ),
    device_profile: Path = typer.Option(
        None,
        metavar="FILE",
        help="Predict latency from a file made by nas profile, here or on another machine. Only "
        "on the device it was made on are the best networks timed.",
    ),
    retime: bool = options.RETIME,
    executor: ExecutorKind = options.EXECUTOR,
    ray_address: str = options.RAY_ADDRESS,
    cpus_per_worker: int = options.CPUS_PER_WORKER,
    workers: int = options.WORKERS,
    train_workers: int = options.TRAIN_WORKERS,
    evaluation_timeout: float = options.EVALUATION_TIMEOUT,
    log: list[str] = options.LOG,
    quiet: bool = options.QUIET,
    json_lines: bool = options.EVENTS,
) -> None:
    """Search a space for Pareto-optimal networks, verify them and retrain the chosen one.

    The same command in the same folder goes on where it stopped.
    """
    del list_settings  # its callback has done all there is to do
    logs = options.read_logs(log)
    where = options.read_executor(
        executor, ray_address, cpus_per_worker, workers, train_workers, evaluation_timeout
    )
    if threads is not None:
        settings = [*settings, f"threads={threads}"]
    chosen, carried = for_device(space, workload, device_profile)
    path = _data_path(data)
    spec = build_spec(
        space_toml=dump_space(chosen),
        dataset=SYNTHETIC if data == SYNTHETIC else _dataset(chosen, dataset, path),
        data=None if path is None else str(path),
        device=device.value,
        objectives=tuple(name.strip() for name in objectives.split(",")),
        quality=quality,
        limits=options.read_limits(limit),
        searcher=searcher,
        preset=preset,
        budget=budget_for(chosen, preset, options.read_settings(settings)),
        seed=seed,
        pick=options.read_pick(pick),
        keep=read_vetoes(chosen, keep),
        device_profile=None if carried is None else carried.digest,
    )
    check_pick(spec)
    of_device = [one.name for one in OBJECTIVES.values() if one.predicted]
    if carried is not None and not any(map(spec.asks_for, of_device)):
        raise UsageError(
            f"--device-profile is for a search whose objectives or limits name "
            f"{' or '.join(of_device)}; given are {', '.join((*spec.objectives, *spec.limits))}"
        )
    folder = out_dir or RUNS / f"{chosen.name}-{spec.digest[:8]}"
    _work_on_search(folder, spec, carried, Working(where, logs, quiet, json_lines, retime))


def for_device(
    name: str, workload: str | None, file: Path | None
) -> tuple[SearchSpace, CarriedProfile | None]:
    """A space with the workload asked for, and the part of a device profile that is for it.

    Args:
        name: of the space, or its file.
        workload: as given; None for the space's own, or the profile's only one.
        file: a device profile, or None.

    Raises:
        UsageError, DataError: when they do not fit together or cannot be used.
    """
    from latency.workload import Workload

    space = checked_space(name)
    wanted = None if workload is None else Workload.parse(workload, space.workload)
    carried = None
    if file is not None:
        from nas.profiling.device_profile import read_device_profile

        profile = read_device_profile(file)
        profile.check_space(space, name)
        chosen = profile.choose(wanted, space.workload)
        wanted, carried = chosen.workload, profile.only(chosen)
    if wanted is not None:
        space = replace(space, workload=wanted.to_json())
    return space, carried


def resume(
    run: str = options.RUN,
    keep: list[str] = options.KEEP_AGAIN,
    retime: bool = options.RETIME,
    executor: ExecutorKind = options.EXECUTOR,
    ray_address: str = options.RAY_ADDRESS,
    cpus_per_worker: int = options.CPUS_PER_WORKER,
    workers: int = options.WORKERS,
    train_workers: int = options.TRAIN_WORKERS,
    evaluation_timeout: float = options.EVALUATION_TIMEOUT,
    log: list[str] = options.LOG,
    quiet: bool = options.QUIET,
    json_lines: bool = options.EVENTS,
) -> None:
    """Go on with a run where it stopped; stages with damaged files are done again.

    With --keep only prune, evolve, verify and front are done again, with --retime all but the
    training of the supernet. The executor may be another one than before.
    """
    logs = options.read_logs(log)
    where = options.read_executor(
        executor, ray_address, cpus_per_worker, workers, train_workers, evaluation_timeout
    )
    folder = open_run(run)
    if keep:
        folder.veto(read_vetoes(folder.spec.space, keep))
    _tell_vetoes(folder, quiet or json_lines)
    _work(folder, Working(where, logs, quiet, json_lines, retime))


def _tell_vetoes(folder: RunFolder, quiet: bool) -> None:
    """Say which vetoes are in force; a damaged list is told before any work is done."""
    vetoes = spelled(folder.spec.space, folder.vetoes)
    if vetoes and not quiet:
        tell(f"kept from pruning: {as_options(vetoes)}")


def _data_path(data: str | None) -> Path | None:
    """The folder or file that ``--data`` names; None where it names none.

    Raises:
        UsageError: when it is not there.
    """
    if data is None or data == SYNTHETIC:
        return None
    path = Path(data).expanduser()
    if not path.exists():
        raise UsageError(
            f"--data {data} does not exist: give a folder made by nas data prepare or "
            f"fairseq-preprocess, a file, or the word {SYNTHETIC}"
        )
    return path.resolve()


def _dataset(space: SearchSpace, given: str | None, data: Path | None) -> str:
    if data is not None and data.is_dir():
        return data.name
    name = given or space.data.get("dataset")
    if not isinstance(name, str):
        raise UsageError(
            f"the space {space.name} names no data set: give one with --dataset, a folder made by "
            'nas data prepare with --data, or write [data] dataset = "NAME" into its file'
        )
    return name


def _work_on_search(
    path: Path,
    spec: SearchSpec,
    carried: CarriedProfile | None,
    how: Working,
) -> None:
    from nas.profiling.device_profile import dumped
    from nas.stages.feasibility import check_costs

    there = (path / SPEC_FILE).exists()
    if not there:
        check_costs(spec.space, spec.limits)
    attached = {} if carried is None else {DEVICE_PROFILE_FILE: dumped(carried)}
    folder = RunFolder.create(path, spec, attached)
    if there and not how.quiet:
        tell(f"{path} holds this search already: going on where it stopped")
        _tell_vetoes(folder, how.json_lines)
    try:
        _work(folder, how)
    except typer.Exit as stopped:
        if isinstance(stopped.__cause__, UsageError | DataError) and not there:
            _forget_refused(folder)
        raise


def _work(folder: RunFolder, how: Working) -> None:
    screen = choose_screen(how.quiet, how.json_lines)
    follow(folder, _search_events(folder, how), screen, how.logs)
    finish(folder, [], how.quiet, how.json_lines)


def _search_events(folder: RunFolder, how: Working) -> Iterable[Event]:
    options.use_threads(folder.spec.budget.threads)
    from nas.stages.pipeline import run_search  # running it imports torch

    return run_search(folder, how.where, how.retime)


def _forget_refused(folder: RunFolder) -> None:
    """Leave no folder behind of a request that was refused before its first stage ended.

    The request has to be changed, and its folder would stand in the way of the changed one. A
    folder that another process works on stays.
    """
    path = folder.path
    with suppress(RunConflictError), folder.locked():
        if not any((path / "stages").glob("*.json")):
            for name in (SPEC_FILE, EVENTS_FILE, DEVICE_PROFILE_FILE):
                (path / name).unlink(missing_ok=True)
    if not (path / SPEC_FILE).exists():
        (path / ".lock").unlink(missing_ok=True)
        for left in (path / "stages", path):
            if left.is_dir() and not any(left.iterdir()):
                left.rmdir()
