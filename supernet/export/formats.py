"""What a format of exports has to do, the formats by name, and a folder in one of them.

An export is a folder. Whatever the format, it holds ``architecture.json`` (the `Blueprint`),
``reading.json`` with the tokenizer files or label names (`Preprocessing`), real inputs with what
the run's model made of them (`ReferenceOutputs`), a model card and checksums. A format adds its own
files, and tells how far what they compute is from the reference. Adding one is a line in `FORMATS`
or an entry point; nothing heavy is imported before its use.
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from search_spaces.errors import DataError, UnknownNameError, UsageError
from search_spaces.files import write_json
from supernet.blueprint import ARCHITECTURE_FILE, TASK_FORMS, Blueprint

if TYPE_CHECKING:
    from supernet.export.contents import Preprocessing, ReferenceOutputs
    from supernet.extraction import StandAlone
    from supernet.pretrained.checkpoint import Checkpoint

FORMATS: dict[str, str] = {
    "safetensors": "supernet.export.standalone:SafetensorsExport",
    "torch": "supernet.export.standalone:TorchExport",
    "huggingface": "supernet.export.huggingface:HuggingFaceExport",
    "onnx": "supernet.export.onnx:OnnxExport",
    **{point.name: point.value for point in entry_points(group="nas.export_formats")},
}


@dataclass(frozen=True, eq=False, slots=True)
class ExportSource:
    """A network that is to be exported.

    Attributes:
        blueprint: what it is, apart from its weights.
        network: on its own, on the CPU, in fp32 and in evaluation mode.
        reference: of the run's model, for the check.
        preprocessing: its tokenizer or labels.
        origin: the checkpoint that the search began with, for formats that look at it
            (`ExportFormat.uses_checkpoint`); None where it began with none.
    """

    blueprint: Blueprint
    network: StandAlone
    reference: ReferenceOutputs
    preprocessing: Preprocessing
    origin: Checkpoint | None = None


class ExportFormat(ABC):
    """One form of export; listed by name in `FORMATS`.

    Attributes:
        name: as on the command line.
        tolerance: largest difference of a logit from the run's model.
        reference_file: where the reference is kept; its ending says how.
        uses_checkpoint: whether it looks at the checkpoint that a search began with.
    """

    name: ClassVar[str]
    tolerance: ClassVar[float] = 1e-4
    reference_file: ClassVar[str] = "check.safetensors"
    uses_checkpoint: ClassVar[bool] = False

    def problem(self, blueprint: Blueprint) -> str | None:
        """Why the format cannot hold such a network, and what can; None when it can."""
        if blueprint.task in TASK_FORMS:
            return None
        known = ", ".join(TASK_FORMS)
        return f"networks of the task {blueprint.task} cannot be exported; those of {known} can"

    @abstractmethod
    def write(self, source: ExportSource, folder: Path) -> list[str]:
        """Write the format's own files into a folder that holds the common ones already.

        Args:
            source: what to export.
            folder: exists; has ``architecture.json``, ``reading.json``, tokenizers, the reference.

        Returns:
            Names of the files written, relative to the folder.
        """

    @abstractmethod
    def parity(self, folder: Path, blueprint: Blueprint, reference: ReferenceOutputs) -> float:
        """What the files compute for the reference's inputs, held against its outputs.

        It reads nothing but the folder, runs no code that lies in it, and is what both the end of
        an export and ``nas verify`` ask.

        Args:
            folder: of an export of this format.
            blueprint: read from it.
            reference: read from it.

        Returns:
            The largest absolute difference, see `ReferenceOutputs.difference`.

        Raises:
            DataError: when a file is missing, damaged, a pickle, or of another network.
        """

    @abstractmethod
    def usage(self, source: ExportSource) -> str:
        """How to use the folder, in Markdown, for the model card: commands and what they need."""

    def facts(self, source: ExportSource) -> dict[str, Any]:
        """What ``export.json`` says of the folder beside what it says of every export."""
        return {}


def open_format(name: str) -> ExportFormat:
    """The format of that name.

    Raises:
        UnknownNameError: when there is none.
        UsageError: when a package that it needs is not installed.
    """
    if name not in FORMATS:
        raise UnknownNameError(f"there is no format {name!r}; there are {', '.join(FORMATS)}")
    module, _, attribute = FORMATS[name].partition(":")
    try:
        found: ExportFormat = getattr(importlib.import_module(module), attribute)()
    except ModuleNotFoundError as error:
        raise package_missing(name, error) from error
    return found


def package_missing(name: str, error: ModuleNotFoundError) -> UsageError:
    """What to say where a package that a format needs is not installed."""
    return UsageError(
        f"the format {name} needs the package {error.name}: pip install 'nas-service[export]'"
    )


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
    from supernet.export.contents import READING_FILE, write_reference

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
    from supernet.export.contents import fits_task, read_reference

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
