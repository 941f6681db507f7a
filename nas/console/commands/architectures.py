"""`nas architectures import | export`: networks as JSON, HAT's YAML or a line of text."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import Any

import typer

from nas.console import options
from nas.console.commands.checked_spaces import checked_space
from nas.console.output import tell
from nas.request.architectures import read_named
from nas.results.state import RUNS, open_run
from nas.run.layout import SPEC_FILE
from nas.search.front import read_front
from search_spaces.architecture import Architecture, find_id
from search_spaces.errors import UsageError
from search_spaces.files import write_atomically
from search_spaces.interchange import (
    ArchitectureForm,
    parse_architectures,
    write_architectures,
)
from search_spaces.settings import ModelSettings
from search_spaces.space import SearchSpace


class Form(StrEnum):
    """How an architecture is written."""

    json = "json"
    hat = "hat"
    text = "text"


SPACE: Any = typer.Option(
    None,
    "--space",
    metavar="NAME|FILE",
    help="Refuse a network that does not belong to this space.",
    autocompletion=options.complete_space,
)
OUT: Any = typer.Option(
    None, "--out", metavar="FILE", help="Write there instead of to standard output."
)


def import_architecture(
    source: str = typer.Argument(
        ..., metavar="FILE|TEXT", help="A file, - for standard input, or the line of text itself."
    ),
    form: Form | None = typer.Option(
        None, "--format", help="How it is written.", show_default="what it looks like"
    ),
    space: str | None = SPACE,
    out: Path | None = OUT,
) -> None:
    """Read a network in any form and write the JSON that the other commands take.

    A JSON list of several networks is read too, and stays one.
    """
    chosen = None if space is None else checked_space(space)
    found = read_named(source, None if form is None else form.value, parse_architectures)
    for architecture in found:
        _check(chosen, architecture)
    _write(write_architectures(found, "json"), out)


def export_architecture(
    source: str = typer.Argument(
        ...,
        metavar="RUN|FILE|TEXT",
        help="A run, or one network in any form: a file, - for standard input, a line of text.",
        autocompletion=options.complete_run,
    ),
    form: Form = typer.Option(..., "--format", help="How to write it."),
    arch: str | None = typer.Option(
        None,
        "--arch",
        metavar="ID",
        help="Of a run: a network of its front, by its id or how that begins.",
        show_default="all: lines of text, or a JSON list",
    ),
    space: str | None = SPACE,
    out: Path | None = OUT,
) -> None:
    """Write a network in a form: JSON, HAT's YAML, or one line to paste anywhere."""
    if is_run(source):
        _write(_exported_run(source, form.value, arch, space), out)
        return
    if arch is not None:
        raise UsageError(f"--arch chooses a network of a run, and {source} is no run folder")
    chosen = None if space is None else checked_space(space)
    found = read_named(source, None, parse_architectures)
    for architecture in found:
        _check(chosen, architecture)
    _write(write_architectures(found, form.value, _settings(chosen)), out)


def is_run(source: str) -> bool:
    """Whether it names a run folder, as `open_run` understands names."""
    return any((path / SPEC_FILE).is_file() for path in (Path(source), RUNS / source))


def _exported_run(source: str, form: ArchitectureForm, arch: str | None, space: str | None) -> str:
    folder = open_run(source)
    front = read_front(folder).entries
    if arch is not None:
        chosen_id = find_id(arch, (entry.id for entry in front), "network of the front")
        front = tuple(entry for entry in front if entry.id == chosen_id)
    entries = list(front)
    if len(entries) > 1 and form == "hat":
        ids = ", ".join(entry.id for entry in entries)
        raise UsageError(
            f"a file of HAT holds one network, and the front has {len(entries)}; give one with "
            f"--arch: {ids}"
        )
    chosen = folder.spec.space if space is None else checked_space(space)
    for entry in entries:
        _check(chosen, entry.architecture)
    return write_architectures([e.architecture for e in entries], form, _settings(chosen))


def _check(space: SearchSpace | None, architecture: Architecture) -> None:
    if space is not None:
        space.encode([architecture])  # refuses a network of another space, naming the gene


def _settings(space: SearchSpace | None) -> ModelSettings | None:
    return None if space is None else space.model


def _write(text: str, out: Path | None) -> None:
    if out is None:
        sys.stdout.write(text)
        sys.stdout.flush()
        return
    if out.is_dir() or not out.absolute().parent.is_dir():
        raise UsageError(f"--out {out}: name a file in a folder that is there")
    write_atomically(out, text)
    tell(f"written: {out}")
