"""What a format of exports has to do, and the formats by name.

An export is a folder. Whatever the format, it holds ``architecture.json`` (the `Blueprint`),
``reading.json`` with the tokenizer files or label names (`Preprocessing`), real inputs with what
the run's model made of them (`ReferenceOutputs`), a model card and checksums. A format adds its own
files, and tells how far what they compute is from the reference. Adding one is a line in `FORMATS`
or an entry point; nothing heavy is imported before its use.
"""

from __future__ import annotations

import importlib
import importlib.util
from abc import ABC, abstractmethod
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from search_spaces.errors import UnknownNameError, UsageError

if TYPE_CHECKING:
    from supernet.export.blueprint import Blueprint
    from supernet.export.contents import Preprocessing, ReferenceOutputs
    from supernet.extraction import StandAlone

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
    """

    blueprint: Blueprint
    network: StandAlone
    reference: ReferenceOutputs
    preprocessing: Preprocessing


class ExportFormat(ABC):
    """One form of export; listed by name in `FORMATS`.

    Attributes:
        name: as on the command line.
        tolerance: largest difference of a logit from the run's model.
        reference_file: where the reference is kept; its ending says how.
        requires: packages, besides torch, without which it can neither be written nor verified.
    """

    name: ClassVar[str]
    tolerance: ClassVar[float] = 1e-4
    reference_file: ClassVar[str] = "check.safetensors"
    requires: ClassVar[tuple[str, ...]] = ("safetensors",)

    def problem(self, blueprint: Blueprint) -> str | None:
        """Why the format cannot hold such a network, and what can; None when it can."""
        return None

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
    def usage(self, blueprint: Blueprint) -> str:
        """How to use the folder, in Markdown, for the model card: commands and what they need."""


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
        raise _missing(name, str(error.name)) from error
    for package in found.requires:
        if importlib.util.find_spec(package) is None:
            raise _missing(name, package)
    return found


def _missing(name: str, package: str) -> UsageError:
    return UsageError(
        f"the format {name} needs the package {package}: pip install 'nas-service[export]'"
    )
