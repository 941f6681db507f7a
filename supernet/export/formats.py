"""The formats of exports by name; nothing is imported before its use.

Adding one is a line here, or, for another package, an entry point of the group
``nas.export_formats`` that names a subclass of `ExportFormat`.
"""

from __future__ import annotations

import importlib
import importlib.util
from importlib.metadata import entry_points
from typing import TYPE_CHECKING

from search_spaces.errors import UnknownNameError, UsageError

if TYPE_CHECKING:
    from supernet.export.base import ExportFormat

FORMATS: dict[str, str] = {
    "safetensors": "supernet.export.standalone:SafetensorsExport",
    "torch": "supernet.export.standalone:TorchExport",
    "huggingface": "supernet.export.huggingface:HuggingFaceExport",
    "onnx": "supernet.export.onnx:OnnxExport",
    **{point.name: point.value for point in entry_points(group="nas.export_formats")},
}


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
