"""Options that several commands share, and what the shell may complete."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path
from typing import Any

import typer

from nas.cli.listeners.targets import MLFLOW, TENSORBOARD, Target, read_target
from nas.executors.base import EVALUATION_TIMEOUT_S, ExecutorKind, ExecutorSettings
from nas.executors.opening import check_installed
from nas.objectives import OBJECTIVES, QUALITY
from nas.request import picks
from nas.request.presets import PRESETS, setting_names
from nas.request.protected_choices import ALL, NONE
from nas.results.state import RUNS, find_runs
from search_spaces.conventions import CONVENTIONS
from search_spaces.errors import UnknownNameError, UsageError
from search_spaces.loading import space_names
from supernet.export.formats import FORMATS


class Device(StrEnum):
    """Where networks are trained and timed."""

    cpu = "cpu"
    cuda = "cuda"


# -- completion -----------------------------------------------------------------------------------


def complete_space(incomplete: str) -> list[str]:
    """Shipped spaces and TOML files."""
    files = [str(path) for path in sorted(Path().glob("*.toml"))]
    return _starting([*space_names(), *(f"./{name}" for name in files), *files], incomplete)


def complete_preset(incomplete: str) -> list[str]:
    """Presets."""
    return _starting(PRESETS, incomplete)


def complete_convention(incomplete: str) -> list[str]:
    """Ways of counting."""
    return _starting(CONVENTIONS, incomplete)


def complete_run(incomplete: str) -> list[str]:
    """Run folders below ``runs`` and beside it."""
    found = [*find_runs(RUNS), *find_runs(Path())]
    return _starting(map(str, found), incomplete)


def complete_pick(incomplete: str) -> list[str]:
    """Ways to choose a network."""
    costs = [f"{name}<=" for name in OBJECTIVES]
    return _starting([*picks.WORDS, *costs], incomplete)


def complete_retrain_pick(incomplete: str) -> list[str]:
    """Ways to choose networks to retrain."""
    return [*complete_pick(incomplete), *_starting(["front"], incomplete)]


def complete_keep(incomplete: str) -> list[str]:
    """Words for vetoes."""
    return _starting([ALL, NONE], incomplete)


def complete_objectives(incomplete: str) -> list[str]:
    """Quality with each cost."""
    costs = [name for name in OBJECTIVES if name != QUALITY]
    return _starting([f"{QUALITY},{name}" for name in costs], incomplete)


def complete_data(incomplete: str) -> list[str]:
    """The word for the generated corpus, and prepared or binarised folders, also in ``data``."""
    files = (
        file
        for folder in (Path(), Path("data"))
        for form in ("*/manifest.json", "*/dict.*.txt")
        for file in folder.glob(form)
    )
    return _starting(["synthetic", *sorted({str(file.parent) for file in files})], incomplete)


def complete_setting(incomplete: str) -> list[str]:
    """Numbers of a budget."""
    return _starting([f"{name}=" for name in setting_names()], incomplete)


def complete_format(incomplete: str) -> list[str]:
    """Formats of exports."""
    return _starting(FORMATS, incomplete)


def complete_log(incomplete: str) -> list[str]:
    """Loggers."""
    return _starting([TENSORBOARD, MLFLOW, f"{MLFLOW}="], incomplete)


def complete_limit(incomplete: str) -> list[str]:
    """Costs that can be limited."""
    return _starting([f"{name}=" for name in OBJECTIVES if name != QUALITY], incomplete)


def _starting(names: Iterable[str], incomplete: str) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]


# -- shared options -------------------------------------------------------------------------------

SPACE: Any = typer.Option(
    ...,
    "--space",
    metavar="NAME|FILE",
    help="A shipped space (nas space list) or a TOML file of your own.",
    autocompletion=complete_space,
)
RUN: Any = typer.Argument(
    ...,
    metavar="RUN",
    help="A run folder, or the name of one in runs/.",
    autocompletion=complete_run,
)
JSON: Any = typer.Option(False, "--json", help="Print JSON for scripts.")
EVENTS: Any = typer.Option(
    False, "--json", help="Print each event as a line of JSON, and the result as the last one."
)
QUIET: Any = typer.Option(
    False, "--quiet", "-q", help="No progress and no table: only the last lines."
)
PICK: Any = typer.Option(
    picks.BEST,
    "--pick",
    metavar=picks.METAVAR,
    help=picks.HELP,
    autocompletion=complete_pick,
)

RETIME: Any = typer.Option(
    False,
    "--retime",
    help="Forget first what was timed for this space, workload and device, here and in the cache, "
    "and time it anew; the supernet stays.",
)

KEEP: Any = typer.Option(
    [],
    "--keep",
    metavar="GENE=CHOICE",
    help="A choice that pruning may not cut: encoder.attention=omni, several with commas, in one "
    "layer encoder.2.attention=omni; or all. Repeatable.",
    autocompletion=complete_keep,
)
KEEP_AGAIN: Any = typer.Option(
    [],
    "--keep",
    metavar="GENE=CHOICE|all|none",
    help="Do the pruning and all that follows again, with these vetoes in place of those before: "
    "what may not be cut, all (undo every cut) or none. Repeatable.",
    autocompletion=complete_keep,
)

LOG: Any = typer.Option(
    [],
    "--log",
    metavar="tensorboard|mlflow",
    help="Log the run there too, with mlflow=URI to a server or store of your choice; needs the "
    "extra of that name. Repeatable.",
    autocompletion=complete_log,
)


EXECUTOR: Any = typer.Option(
    "local",
    "--executor",
    help="Where networks are evaluated and timed: in this process, or by workers of a Ray "
    "cluster. The result is the same.",
)
RAY_ADDRESS: Any = typer.Option(
    None,
    "--ray-address",
    metavar="auto|HOST:PORT",
    help="The Ray cluster: auto for the one this machine belongs to, or the address of its head.",
    show_default="a Ray of its own on this machine",
)
CPUS_PER_WORKER: Any = typer.Option(
    None,
    "--cpus-per-worker",
    metavar="N",
    help="CPUs reserved for each worker of --executor ray.",
    show_default="as many as the run has threads; 1 beside a GPU",
)
WORKERS: Any = typer.Option(
    None,
    "--workers",
    metavar="N",
    help="Most workers of --executor ray.",
    show_default="as many as the cluster has room for",
)
TRAIN_WORKERS: Any = typer.Option(
    None,
    "--train-workers",
    metavar="N",
    help="Processes of --executor ray that train the supernet together. The weights depend on "
    "this number in their last bits.",
    show_default="as many as there are workers",
)
EVALUATION_TIMEOUT: Any = typer.Option(
    EVALUATION_TIMEOUT_S,
    "--evaluation-timeout",
    metavar="SECONDS",
    help="Give the evaluation of a network up after that long; tried twice, it counts as failed.",
)


def read_executor(
    kind: ExecutorKind,
    ray_address: str | None,
    cpus_per_worker: int | None,
    workers: int | None,
    train_workers: int | None = None,
    timeout_s: float = EVALUATION_TIMEOUT_S,
) -> ExecutorSettings:
    """Where a run is to be worked on.

    Raises:
        UsageError: when the options do not fit together, or Ray is not installed.
    """
    settings = ExecutorSettings(
        kind, ray_address, cpus_per_worker, workers, timeout_s, train_workers
    )
    if kind == "ray":
        check_installed()
    return settings


# -- NAME=VALUE -----------------------------------------------------------------------------------


def read_limits(given: Iterable[str]) -> dict[str, float]:
    """``["latency_ms=5"]`` → ``{"latency_ms": 5.0}``.

    Raises:
        UsageError: for another form, or a value that is no number.
    """
    limits = {}
    for name, text in _pairs("--limit", given, "latency_ms=5").items():
        try:
            limits[name] = float(text)
        except ValueError:
            raise UsageError(
                f"--limit {name}={text}: {text!r} is no number; for example {name}=2e5"
            ) from None
    return limits


def read_settings(given: Iterable[str]) -> dict[str, str]:
    """``["supernet.epochs=30"]`` → ``{"supernet.epochs": "30"}``.

    Raises:
        UsageError: for another form.
        UnknownNameError: for a number there is not, naming the nearest.
    """
    settings = _pairs("--set", given, "supernet.epochs=30")
    known = setting_names()
    for name in settings:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=2, cutoff=0.4)
            hint = f"; did you mean {' or '.join(near)}?" if near else ""
            raise UnknownNameError(
                f"there is no setting {name!r}{hint} (nas search --list-settings names all)"
            )
    return settings


def read_logs(given: Iterable[str]) -> tuple[Target, ...]:
    """``["mlflow=http://host"]`` → where to log, each place once.

    Raises:
        UsageError: for a logger there is not, or one whose package is not installed.
    """
    return tuple(dict.fromkeys(read_target(text) for text in given))


def _pairs(option: str, given: Iterable[str], example: str) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for text in given:
        name, equals, value = (part.strip() for part in text.partition("="))
        if not (name and equals and value):
            raise UsageError(f"{option} takes NAME=VALUE, for example {example}; given {text!r}")
        if name in pairs:
            raise UsageError(f"{option} {name} is given twice: {pairs[name]} and {value}")
        pairs[name] = value
    return pairs
