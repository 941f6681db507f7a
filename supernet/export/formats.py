"""The formats of exports by name. Adding one is a line here; nothing is imported before its use."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from search_spaces.errors import UnknownNameError, UsageError

if TYPE_CHECKING:
    from supernet.export.base import ExportFormat

FORMATS: dict[str, str] = {
    "safetensors": "supernet.export.standalone:SafetensorsExport",
    "torch": "supernet.export.standalone:TorchExport",
    "huggingface": "supernet.export.huggingface:HuggingFaceExport",
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
        raise UsageError(
            f"--format {name} needs the package {error.name}: pip install 'nas-service[export]'"
        ) from error
    return found
