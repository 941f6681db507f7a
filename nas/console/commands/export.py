"""`nas export` and `nas verify`: a network as a folder that works without the run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from nas.console import options
from nas.console.commands.translate import DATA
from nas.console.output import print_json, say
from nas.results.export import ExportRequest, export_network, verify_export
from nas.results.state import open_run
from nas.run.threads import use_threads
from search_spaces.errors import DataError, NasError
from supernet.export.formats import FORMATS

ARCH: Any = typer.Option(
    None,
    "--arch",
    metavar="ID",
    help="The network; the first letters of its id are enough.",
    show_default="the winner, or the only one that is trained",
)
FORM: Any = typer.Option(
    ...,
    "--format",
    metavar="FORMAT",
    help=f"One of {', '.join(FORMATS)}.",
    autocompletion=options.complete_format,
)
OUT: Any = typer.Option(
    None, metavar="DIR", help="The folder to make.", show_default="RUN/export/ID/FORMAT"
)


def export(
    run: str = options.RUN,
    arch: str = ARCH,
    form: str = FORM,
    out: Path = OUT,
    inherited: bool = typer.Option(
        False, "--inherited", help="Take the supernet's weights, and mark them so."
    ),
    data: str = DATA,
    force: bool = typer.Option(False, "--force", help="Replace an export that is there already."),
    as_json: bool = options.JSON,
) -> None:
    """Write a network as a small folder that runs without this package.

    Weights are those of a network trained from scratch, or the supernet's with --inherited. The
    folder's outputs for validation examples are compared with the run's model before it is there.
    After a search --from a checkpoint, --format huggingface writes what the checkpoint's family has
    itself as the checkpoint was written: transformers loads it without any code of the folder.
    """
    folder = open_run(run)
    use_threads(folder.spec.budget.threads)
    request = ExportRequest(form, arch, inherited, out, data, force)
    exported = export_network(folder, request)
    facts = {"path": str(exported.path), **exported.facts}
    if as_json:
        print_json(facts)
        return
    _say_facts(facts, "path", "id", "format", "weights", "params", "difference", "family")


def verify(
    directory: Path = typer.Argument(..., metavar="DIR", help="A folder made by nas export."),
    as_json: bool = options.JSON,
) -> None:
    """Compare an exported folder with what was written: checksums, shapes and outputs.

    Nothing that lies in the folder is executed.
    """
    try:
        found = verify_export(directory)
    except DataError as error:
        raise NasError(str(error)) from error  # it was verified, and is not what was written
    facts = {
        **found.facts,
        "path": str(directory),
        "files": found.num_files,
        "difference": found.difference,
    }
    if as_json:
        print_json(facts)
        return
    names = ("path", "id", "format", "weights", "params", "files", "difference", "family")
    _say_facts(facts, *names)


def _say_facts(facts: dict[str, Any], *names: str) -> None:
    for name in (name for name in names if name in facts):
        value = facts[name]
        say(f"{name:<11} {value:.2g}" if name == "difference" else f"{name:<11} {value}")
