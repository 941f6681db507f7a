"""Exports a network of a run as a folder that works without the run, and checks such folders.

The folder is built under a hidden name and takes its own only after its outputs were compared with
the run's model. What needs torch is imported inside the functions, so that a wrong request is told
at once.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nas.results.model_card import gather_facts, model_card
from nas.results.networks import (
    choose_inherited,
    choose_trained,
    open_data,
    open_inherited,
    open_network,
)
from nas.run.folder import RunFolder, checksum
from nas.run.layout import export_folder
from search_spaces.errors import DataError, UsageError
from search_spaces.files import building_folder, write_atomically, write_json
from search_spaces.wording import OWN_DATA, mark

if TYPE_CHECKING:
    from nas.results.networks import OpenedData, TrainedNetwork
    from supernet.export.formats import ExportFormat, ExportSource

FACTS_FILE = "export.json"
CARD_FILE = "README.md"
CHECKSUMS_FILE = "checksums.json"
# Of texts that are read at once, and cut where the network's positions or its data's texts end.
CUT_KINDS = ("tokenizer_json", "bytes")


@dataclass(frozen=True, slots=True)
class ExportRequest:
    """What to export, and where to.

    Attributes:
        form: name of the format.
        arch: an id or how one begins; None where there is only one network.
        inherited: take the supernet's weights in place of retrained ones.
        out: the folder to make; None for ``export/ID/FORMAT`` in the run.
        data: where the run's data are; None for where they were.
        force: replace an export that is there already.
    """

    form: str
    arch: str | None = None
    inherited: bool = False
    out: Path | None = None
    data: str | None = None
    force: bool = False


@dataclass(frozen=True, slots=True)
class Exported:
    """A finished export: its folder, and the content of its ``export.json``."""

    path: Path
    facts: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Verified:
    """A folder whose files, shapes and outputs are as they were written.

    Attributes:
        facts: the content of its ``export.json``.
        num_files: files whose checksums were compared.
        difference: largest difference of an output from the recorded one, on this machine.
    """

    facts: Mapping[str, Any]
    num_files: int
    difference: float


def export_network(folder: RunFolder, request: ExportRequest) -> Exported:
    """Write an export of one network.

    Args:
        folder: the run; nothing in it is changed but its ``export`` folder.
        request: what to export.

    Raises:
        UsageError: for an unknown network or format, one that the format cannot hold, or a target
            folder that is taken.
        DamagedRunError: when the weights are missing, were changed, or are of another network.
        DataError: when the data are not those of the run, or the export's outputs differ from those
            of the run's model. Nothing is left behind then.
    """
    from supernet.export.formats import open_format, write_package

    form = open_format(request.form)
    chosen = (choose_inherited if request.inherited else choose_trained)(folder, request.arch)
    path = request.out or folder.path / export_folder(chosen, form.name)
    check_target(path, request.force)
    network = _open_network(folder, chosen, request.inherited)
    data = open_data(folder, request.data)
    source = _source(folder, form, network, data)
    with building_folder(path) as building:
        written = write_package(source, form, building)
        facts = gather_facts(folder, network.architecture, request.inherited) | {
            "format": form.name,
            "reading": _named_reading(source),
            "files": list(written.files),
            "difference": written.difference,
            "tolerance": form.tolerance,
            **form.facts(source),
        }
        write_json(building / FACTS_FILE, facts)
        card = model_card(facts, form.usage(source))
        write_atomically(building / CARD_FILE, card)
        write_checksums(building)
    return Exported(path, facts)


def check_target(path: Path, force: bool) -> None:
    """See that a folder may be made, or replaced.

    Raises:
        UsageError: when something else is there, an own file in an export among it; nothing of it
            is touched.
    """
    if not path.exists() or (path.is_dir() and not any(path.iterdir())):
        return
    try:
        sums = _checksums(path)
    except (DataError, UsageError):
        sums = {}
    if FACTS_FILE not in sums:
        raise UsageError(
            f"--out {path} exists and is no export; name a folder that is not there yet"
        )
    if not force:
        raise UsageError(f"{path} holds an export already; --force replaces it, or choose --out")
    own = next((file for file in _files(path) if file not in sums), None)
    if own is not None:
        raise UsageError(
            f"{path / own} is no file of the export in {path}, all of which --force replaces: move "
            "it elsewhere, or choose --out"
        )


def _open_network(folder: RunFolder, chosen: str, inherited: bool) -> TrainedNetwork:
    return (open_inherited if inherited else open_network)(folder, chosen, "cpu")


def _source(
    folder: RunFolder, form: ExportFormat, network: TrainedNetwork, data: OpenedData
) -> ExportSource:
    """The network on its own, with what the run's model says about real inputs.

    Raises:
        UsageError: when the format cannot hold it.
        DataError: when the data, or a checkpoint that the format needs, are not those of the run.
    """
    from nas.run.checkpoint import open_checkpoint
    from supernet.blueprint import Blueprint
    from supernet.export.contents import preprocessing_of, reference_outputs
    from supernet.export.formats import ExportSource
    from supernet.extraction import extract

    space = folder.spec.space
    blueprint = Blueprint(space.task, space.model, network.architecture)
    problem = form.problem(blueprint)
    if problem is not None:
        raise UsageError(problem)
    if not data.same:
        raise DataError(
            f"{data.name} does not hold the data that this run was made with, which the export's "
            "tokenizer and its check need; "
            f"{mark(OWN_DATA, 'name with --data DIR the folder it was made with')}"
        )
    start = folder.spec.start if form.uses_checkpoint else None
    return ExportSource(
        blueprint,
        extract(network.model, network.architecture),
        reference_outputs(data.task, network.model, blueprint),
        preprocessing_of(data.task, space.model),
        None if start is None else open_checkpoint(start),
    )


def _named_reading(source: ExportSource) -> dict[str, Any]:
    """Kind of the inputs, names of the tokenizer files, and where texts are cut.

    The rest stands in ``reading.json``.
    """
    facts, blueprint = source.preprocessing.facts, source.blueprint
    named = {name: facts[name] for name in ("kind", "source", "target") if name in facts}
    if facts["kind"] not in CUT_KINDS or blueprint.task == "language_modelling":
        return named
    return {**named, "max_tokens": source.preprocessing.most_tokens(blueprint)}


def write_checksums(folder: Path) -> None:
    """Write ``checksums.json``, sha256 of every other file of a folder."""
    sums = {name: checksum(folder / name) for name in _files(folder)}
    write_atomically(folder / CHECKSUMS_FILE, json.dumps({"sha256": sums}, indent=2) + "\n")


def _files(folder: Path) -> list[str]:
    """Names of the files of a folder, but for ``checksums.json`` and what Python itself keeps."""
    names = (
        file.relative_to(folder).as_posix()
        for file in folder.rglob("*")
        if file.is_file() and file.parent.name != "__pycache__"
    )
    return sorted(name for name in names if name != CHECKSUMS_FILE)


def verify_export(path: Path) -> Verified:
    """Compare an exported folder with what was written: checksums, shapes, outputs.

    Nothing in the folder is executed; for that there is its own ``modeling.py --check``.

    Raises:
        DataError: naming the first file that is missing or was changed, a tensor that does not
            belong there, or how far the outputs are from the recorded ones.
        UsageError: when the folder is none that was exported, or a package is missing.
    """
    from supernet.export.formats import check_parity, open_format

    if not path.is_dir():
        raise UsageError(f"there is no folder {path}; give one made by nas export")
    sums = _checksums(path)
    for name, expected in sums.items():
        _check_file(path, name, expected)
    facts = _read_object(path, FACTS_FILE)
    form = open_format(str(facts.get("format")))
    try:
        difference = check_parity(form, path)
    except (IndexError, RuntimeError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise DataError(f"{path}: the recorded inputs cannot be computed ({reason})") from error
    return Verified(facts, len(sums), difference)


def _checksums(folder: Path) -> dict[str, Any]:
    """File → sha256, as ``checksums.json`` has them.

    Raises:
        DataError: when it is damaged.
        UsageError: when there is none.
    """
    sums = _read_object(folder, CHECKSUMS_FILE).get("sha256")
    if not isinstance(sums, dict) or not sums:
        raise DataError(f"{folder / CHECKSUMS_FILE} holds no checksums; export the network anew")
    return sums


def _check_file(folder: Path, name: str, expected: object) -> None:
    file = folder / name
    if not file.resolve().is_relative_to(folder.resolve()):
        raise DataError(f"{folder / CHECKSUMS_FILE} names {name}, which lies outside of the folder")
    if not file.is_file():
        raise DataError(f"{file} is missing; export the network anew")
    if checksum(file) != expected:
        raise DataError(f"{file} was changed: its checksum differs; export the network anew")


def _read_object(folder: Path, name: str) -> dict[str, Any]:
    file = folder / name
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UsageError(f"{folder} is no export made by nas export: it has no {name}") from None
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{file} cannot be read ({error}); export the network anew") from error
    if not isinstance(found, dict):
        raise DataError(f"{file} is damaged: it holds no object; export the network anew")
    return found
