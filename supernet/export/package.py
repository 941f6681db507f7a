"""An export's folder: what all formats have in common, written, and held against its reference."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from search_spaces.errors import DataError
from search_spaces.files import write_atomically
from supernet.export.blueprint import ARCHITECTURE_FILE, Blueprint
from supernet.export.contents import READING_FILE, fits_task, read_reference, write_reference
from supernet.export.formats import ExportFormat, ExportSource


@dataclass(frozen=True, slots=True)
class Written:
    """An export that was written and found equal to the run's model.

    Attributes:
        files: names of the format's own files.
        difference: the largest of any output from the run's model.
    """

    files: tuple[str, ...]
    difference: float


def write_package(source: ExportSource, form: ExportFormat, folder: Path) -> Written:
    """Write everything but card and checksums, and compare what was written with the run's model.

    Args:
        source: what to export.
        form: how.
        folder: empty.

    Raises:
        DataError: when an output differs from the run's model by more than the format's tolerance.
    """
    write_json(folder / ARCHITECTURE_FILE, source.blueprint.to_json())
    labels = {"labels": list(source.preprocessing.labels)} if source.preprocessing.labels else {}
    write_json(folder / READING_FILE, {**source.preprocessing.facts, **labels})
    for name, content in source.preprocessing.files.items():
        (folder / name).write_bytes(content)
    write_reference(folder / form.reference_file, source.reference)
    files = form.write(source, folder)
    return Written(tuple(files), check_parity(form, folder))


def check_parity(form: ExportFormat, folder: Path) -> float:
    """The largest difference of an output of a folder from its reference.

    Raises:
        DataError: when it is above the format's tolerance, or a file is missing or damaged.
    """
    blueprint, reference = Blueprint.read(folder), read_reference(folder / form.reference_file)
    if not fits_task(reference, blueprint.task):
        raise DataError(f"{folder / form.reference_file} is of another task than the network")
    difference = form.parity(folder, blueprint, reference)
    if not difference <= form.tolerance:
        raise DataError(
            f"the outputs of the {form.name} export differ by {difference:.2g} from those of the "
            f"run's model, more than {form.tolerance:g}: it is not the same network"
        )
    return difference


def write_json(file: Path, value: Mapping[str, Any]) -> None:
    """Write a JSON object for people and programs."""
    text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)
    write_atomically(file, text + "\n")
