"""Options that several commands share, groups of them made of a request, and completion."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, get_args

import typer
from annotated_types import Ge, Le
from pydantic import BaseModel, ValidationError

from nas.executors.base import EVALUATION_TIMEOUT_S, ExecutorKind, ExecutorSettings
from nas.executors.opening import check_installed
from nas.objectives import COSTS, OBJECTIVES, QUALITY
from nas.request import picks
from nas.request.fields import first_problem, option_of, read_texts, shown
from nas.request.presets import setting_names
from nas.request.protected_choices import ALL, NONE
from nas.request.spec import SYNTHETIC, SearchRequest
from nas.results.state import RUNS, find_runs
from search_spaces.conventions import CONVENTIONS
from search_spaces.errors import UsageError
from search_spaces.loading import space_names
from search_spaces.wording import mark
from supernet.export.formats import FORMATS

M = TypeVar("M", bound=BaseModel)

# -- completion -----------------------------------------------------------------------------------


def complete_space(incomplete: str) -> list[str]:
    """Shipped spaces and TOML files."""
    files = [str(path) for path in sorted(Path().glob("*.toml"))]
    return _starting([*space_names(), *(f"./{name}" for name in files), *files], incomplete)


def complete_run(incomplete: str) -> list[str]:
    """Run folders below ``runs`` and beside it."""
    found = [*find_runs(RUNS), *find_runs(Path())]
    return _starting(map(str, found), incomplete)


def complete_data(incomplete: str) -> list[str]:
    """The word for the generated corpus, and prepared or binarised folders, also in ``data``."""
    files = (
        file
        for folder in (Path(), Path("data"))
        for form in ("*/manifest.json", "*/dict.*.txt")
        for file in folder.glob(form)
    )
    return _starting([SYNTHETIC, *sorted({str(file.parent) for file in files})], incomplete)


def _starting(names: Iterable[str], incomplete: str) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]


def completing(*names: str) -> Callable[[str], list[str]]:
    """A completion that offers these."""

    def complete(incomplete: str) -> list[str]:
        return _starting(names, incomplete)

    return complete


complete_convention = completing(*CONVENTIONS)
complete_format = completing(*FORMATS)
_CONDITIONS = [f"{name}{'>=' if one.maximise else '<='}" for name, one in OBJECTIVES.items()]
complete_pick = completing(*picks.WORDS, *_CONDITIONS)
complete_retrain_pick = completing(*picks.WORDS, *_CONDITIONS, "front")
complete_keep = completing(ALL, NONE)
complete_objectives = completing(*(f"{QUALITY},{name}" for name in COSTS))
complete_setting = completing(*(f"{name}=" for name in setting_names()))
complete_limit = completing(*(f"{name}=" for name in COSTS))


# -- shared options -------------------------------------------------------------------------------

SPACE_HELP = str(SearchRequest.model_fields["space"].description)
RAY_HELP = "The Ray cluster: auto for the one this machine belongs to, or the address of its head."
SPACE: Any = typer.Option(
    ...,
    "--space",
    metavar="NAME|FILE",
    help=SPACE_HELP,
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
RETIME: Any = typer.Option(
    False,
    "--retime",
    help="Forget first what was timed for this space, workload and device, here and in the cache, "
    "and time it anew; the supernet stays.",
)

KEEP_AGAIN: Any = typer.Option(
    [],
    "--keep",
    metavar="GENE=CHOICE|all|none",
    help="Prune anew: the choices that may not be cut, in place of those before, all (undo every "
    "cut) or none. Repeatable.",
    autocompletion=complete_keep,
)


# -- groups of options ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Group:
    """Options that stand for one value.

    Attributes:
        options: name of a parameter → its type and its option.
        make: makes the value of what is given for these.
    """

    options: Mapping[str, tuple[Any, Any]]
    make: Callable[[dict[str, Any]], Any]


# Stands where a parameter needs a default; the options of its group take its place.
PLACED: Any = None


def grouped(**groups: Group) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the options of groups in place of the parameters of these names."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        parameters: list[inspect.Parameter] = []
        for name, one in inspect.signature(command, eval_str=True).parameters.items():
            if name not in groups:
                parameters.append(one)
                continue
            parameters += [
                inspect.Parameter(own, one.kind, default=option, annotation=kind)
                for own, (kind, option) in groups[name].options.items()
            ]

        @functools.wraps(command)
        def called(**given: Any) -> None:
            for name, group in groups.items():
                given[name] = group.make({own: given.pop(own) for own in group.options})
            command(**given)

        called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        called.__annotations__ = {one.name: one.annotation for one in parameters}
        return called

    return decorate


def _executor(given: dict[str, Any]) -> ExecutorSettings:
    settings = ExecutorSettings(
        given["executor"],
        given["ray_address"],
        given["cpus_per_worker"],
        given["workers"],
        given.get("evaluation_timeout", EVALUATION_TIMEOUT_S),
        given.get("train_workers"),
    )
    if settings.kind == "ray":
        check_installed()
    return settings


def _place(
    kind: Any, default: Any, name: str, metavar: str | None, usual: str | bool, text: str
) -> tuple[Any, Any]:
    return kind, typer.Option(default, name, metavar=metavar, show_default=usual, help=text)


_PLACE: Mapping[str, tuple[Any, Any]] = {
    "executor": _place(
        *(ExecutorKind, "local", "--executor", None, True),
        "Where networks are evaluated and timed: in this process, or by workers of a Ray cluster. "
        "The result is the same.",
    ),
    "ray_address": _place(
        *(str, None, "--ray-address", "auto|HOST:PORT", "a Ray of its own on this machine"),
        RAY_HELP,
    ),
    "cpus_per_worker": _place(
        *(int, None, "--cpus-per-worker", "N"),
        "as many as the run has threads; 1 beside a GPU or with --evaluator",
        "CPUs reserved for each worker of --executor ray.",
    ),
    "workers": _place(
        *(int, None, "--workers", "N", "as many as the cluster has room for"),
        "Most workers of --executor ray.",
    ),
}
_SEARCHING: Mapping[str, tuple[Any, Any]] = {
    "train_workers": _place(
        *(int, None, "--train-workers", "N", "as many as there are workers"),
        "Processes of --executor ray that train the supernet together. The weights depend on this "
        "number in their last bits.",
    ),
    "evaluation_timeout": _place(
        *(float, EVALUATION_TIMEOUT_S, "--evaluation-timeout", "SECONDS", True),
        "Give the evaluation of a network up after that long; it counts as failed, without "
        "--evaluator when it was tried twice.",
    ),
}
# Where one network is trained, and where a search is worked on.
TRAINING_PLACE = Group(_PLACE, _executor)
PLACE = Group({**_PLACE, **_SEARCHING}, _executor)


def request_options(model: type[M]) -> Group:
    """The options of a request: one for each field that has one."""
    options = {name: _option(model, name) for name in model.model_fields if option_of(model, name)}
    without = {f"no_{name}": name for name in options if _off(model, name)}
    options |= {flag: _without(model, name) for flag, name in without.items()}

    def make(given: dict[str, Any]) -> M:
        for flag, name in without.items():
            if given.pop(flag):
                if given[name] is not None:
                    told = f"{option_of(model, name)} {given[name]}"
                    raise UsageError(f"{told} and {_off(model, name)}: give one of them")
                given[name] = NONE
        values, texts = _values_and_texts(model, given)
        try:
            return model(**values, **read_texts(model, texts, mark))
        except ValidationError as error:
            raise UsageError(first_problem(error, model, mark)) from error

    return Group(options, make)


def _values_and_texts(
    model: type[BaseModel], given: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, list[str]]]:
    """What stands for a field as it is, and what has to be read, of the options that were given.

    Raises:
        UsageError: for an empty text, as of a variable that a script has not set.
    """
    values: dict[str, Any] = {}
    texts: dict[str, list[str]] = {}
    for name, value in given.items():
        field = model.model_fields[name]
        if shown(field).read is not None:
            if value is not None and value != []:
                texts[name] = [value] if isinstance(value, str) else value
        elif value == "" and field.default != "":
            raise UsageError(f"{option_of(model, name)} is empty: write a value, or leave it out")
        elif value is not None:
            values[name] = value
    return values, texts


def _option(model: type[BaseModel], name: str) -> tuple[Any, Any]:
    field = model.model_fields[name]
    how = shown(field)
    kind, default = field.annotation, field.default
    if str in get_args(kind):  # or a table, which no option holds
        kind = str
    if how.read is not None:
        kind, default = (list[str], []) if how.many else (str, ",".join(default) or None)
    if how.without:  # whose two options may not be given together, whatever is given
        default = None
    bounds = {type(one): one for one in field.metadata}
    least, most = bounds.get(Ge), bounds.get(Le)
    option = typer.Option(
        default,
        option_of(model, name),
        metavar=how.metavar,
        help=f"{field.description}{' Repeatable.' if how.many else ''}",
        min=None if least is None else least.ge,
        # What is no number at all is told by the request.
        max=None if most is None or float in (kind, *get_args(kind)) else most.le,
        show_default=how.usual or True,
        autocompletion=_COMPLETIONS.get(name),
    )
    return kind, option


def _off(model: type[BaseModel], name: str) -> str:
    return shown(model.model_fields[name]).without


def _without(model: type[BaseModel], name: str) -> tuple[Any, Any]:
    return bool, typer.Option(
        False, _off(model, name), help=f"The same as {option_of(model, name)} {NONE}."
    )


_COMPLETIONS: Mapping[str, Callable[[str], list[str]]] = {
    "space": complete_space,
    "objectives": complete_objectives,
    "limits": complete_limit,
    "data": complete_data,
    "pick": complete_pick,
    "keep": complete_keep,
    "settings": complete_setting,
}
SEARCH_REQUEST = request_options(SearchRequest)
