"""Files of tensors, read without running anything that is in them: safetensors, and torch's own.

A file that is cut off, changed, a pickle or of another kind is refused in one sentence.
"""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from search_spaces.errors import DamagedRunError, DataError
from search_spaces.files import replacing
from supernet.training.checkpoint import load, save

SAFETENSORS, TORCH = ".safetensors", ".pt"


def write_tensors(file: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write tensors; the ending of the file says how, ``.safetensors`` or ``.pt``."""
    plain = {name: tensor.detach().contiguous().clone() for name, tensor in tensors.items()}
    if file.suffix == TORCH:
        save(file, plain)
        return
    from safetensors.torch import save as packed

    with replacing(file) as temporary:
        temporary.write_bytes(packed(plain, metadata={"format": "pt"}))


def read_tensors(file: Path) -> dict[str, Tensor]:
    """Read a file of tensors to the CPU.

    Raises:
        DataError: when it is missing, cut off, changed, a pickle, or holds anything but tensors.
    """
    if not file.is_file():
        raise DataError(f"{file} is missing; export the network anew")
    found = _read_torch(file) if file.suffix == TORCH else _read_safetensors(file)
    for name, value in found.items():
        if not isinstance(value, Tensor):
            raise DataError(f"{file} holds {name}, which is no tensor; export the network anew")
    return found


def _read_torch(file: Path) -> dict[str, Tensor]:
    try:
        return load(file)
    except DamagedRunError as error:
        raise DataError(f"{_first_line(error)}; export the network anew") from error


def _read_safetensors(file: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load as unpacked

    kind = _foreign_kind(file)
    if kind is not None:
        raise DataError(
            f"{file} is {kind}, not a safetensors file; it was not opened, for a pickle can run "
            "code: export the network anew"
        )
    try:
        return unpacked(file.read_bytes())
    except (SafetensorError, ValueError, KeyError) as error:
        raise DataError(
            f"{file} is no whole safetensors file ({_first_line(error)}); export the network anew"
        ) from error


def _foreign_kind(file: Path) -> str | None:
    """What a file really is, when it is one of those that are often renamed."""
    if zipfile.is_zipfile(file):
        return "a zip archive, as torch.save writes it"
    with file.open("rb") as stream:
        start = stream.read(2)
    return "a pickle" if len(start) == 2 and start[0] == 0x80 and start[1] in range(2, 6) else None


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)
