"""The tensors of a folder: safetensors, in one file or in shards with an index; never a pickle.

Names, shapes and types are read from the files' heads, before any number is. A file that is cut
off, or is not what its name says, is refused in one sentence.
"""

from __future__ import annotations

import math
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from search_spaces.errors import DataError
from supernet.pretrained.folder_files import INDEX_FILE, WEIGHTS_FILE
from supernet.pretrained.json_files import read_object

PICKLES = ("pytorch_model*.bin", "*.bin", "*.pt", "*.pth", "*.pkl", "*.ckpt", "*.h5", "*.msgpack")
PICKLE_PROTOCOLS = (b"\x02", b"\x03", b"\x04", b"\x05")
PART = 2**20  # numbers that are looked at at once
PLAIN_TYPES = frozenset(("F32", "F16", "BF16", "F64"))


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """Where a tensor is, and what its file's head says of it.

    Attributes:
        file: the safetensors file.
        name: in that file.
        shape: of the tensor.
        dtype: as safetensors calls it, for example ``BF16``.
    """

    file: Path
    name: str
    shape: tuple[int, ...]
    dtype: str


def stored_tensors(folder: Path) -> dict[str, StoredTensor]:
    """Every tensor of a folder, by name.

    Raises:
        DataError: when there are none, a shard or a tensor of it is missing, a file is damaged or
            a pickle.
        UsageError: when safetensors is not installed.
    """
    if (folder / WEIGHTS_FILE).is_file():
        return _heads(folder / WEIGHTS_FILE)
    if (folder / INDEX_FILE).is_file():
        return _sharded(folder)
    pickle = next((file.name for pattern in PICKLES for file in folder.glob(pattern)), None)
    if pickle is not None:
        raise DataError(
            f"{folder} has its weights in {pickle}, which was not opened, for a pickle can run "
            f"code: load it where you trust it, and write {WEIGHTS_FILE} with save_pretrained"
        )
    raise DataError(
        f"{folder} holds no weights: neither {WEIGHTS_FILE} nor {INDEX_FILE} with its shards"
    )


def _sharded(folder: Path) -> dict[str, StoredTensor]:
    places = read_object(folder / INDEX_FILE).get("weight_map")
    if not isinstance(places, Mapping) or not places:
        raise DataError(f"{folder / INDEX_FILE} has no weight_map: fetch the checkpoint anew")
    found: dict[str, StoredTensor] = {}
    for name in sorted({str(place) for place in places.values()}):
        if Path(name).name != name or not name.endswith(".safetensors"):
            raise DataError(
                f"{folder / INDEX_FILE} names {name!r}; shards are safetensors files beside it"
            )
        if not (folder / name).is_file():
            raise DataError(f"{folder / name} is missing: the index names it; fetch it anew")
        heads = _heads(folder / name)
        found |= {key: head for key, head in heads.items() if places.get(key) == name}
    if (lost := min(places.keys() - found.keys(), default=None)) is not None:
        raise DataError(f"{folder / str(places[lost])} has no tensor {lost}: fetch it anew")
    return found


def _heads(file: Path) -> dict[str, StoredTensor]:
    with opened(file) as tensors:
        slices = {name: tensors.get_slice(name) for name in tensors.keys()}  # noqa: SIM118
        return {
            name: StoredTensor(file, name, tuple(part.get_shape()), part.get_dtype())
            for name, part in slices.items()
        }


def opened(file: Path) -> Any:
    """A safetensors file, open to be read; to be used with ``with``.

    Raises:
        DataError: when it is cut off, damaged, or of another kind.
    """
    from safetensors import SafetensorError, safe_open

    try:
        if (kind := foreign_kind(file)) is not None:
            raise DataError(
                f"{file} is {kind}, not a safetensors file; it was not opened, for a pickle can "
                "run code"
            )
        return safe_open(file, framework="pt")
    except PermissionError as error:
        raise DataError(f"{file} may not be read: {error.strerror}") from error
    except (SafetensorError, OSError, ValueError) as error:
        raise DataError(
            f"{file} is no whole safetensors file ({first_line(error)}): fetch it anew"
        ) from error


def foreign_kind(file: Path) -> str | None:
    """What a file really is, when it is one of those that are often renamed."""
    if zipfile.is_zipfile(file):
        return "a zip archive, as torch.save writes it"
    with file.open("rb") as stream:
        start = stream.read(9)
    if start[8:] == b"{":  # the length of a head may have any bytes, and the head begins with it
        return None
    return "a pickle" if start[:1] == b"\x80" and start[1:2] in PICKLE_PROTOCOLS else None


def check_types(tensors: Iterable[StoredTensor]) -> None:
    """Refuse weights that are no plain floating-point numbers.

    Raises:
        DataError: for the first of them.
    """
    for tensor in tensors:
        if tensor.dtype not in PLAIN_TYPES:
            raise DataError(
                f"{tensor.file}: {tensor.name} is of type {tensor.dtype}; known here are "
                f"{', '.join(sorted(PLAIN_TYPES))}: give the checkpoint as it was before it was "
                "quantised"
            )


def read_tensors(tensors: Mapping[str, StoredTensor]) -> Iterator[tuple[str, Tensor]]:
    """Each tensor under its key, on the CPU and in fp32, file by file.

    Raises:
        DataError: when a file is damaged, or a number is not finite.
    """
    for key, value in _mapped(tensors):
        yield key, _finite(value.to(torch.float32, copy=True), tensors[key])


def check_numbers(tensors: Mapping[str, StoredTensor]) -> None:
    """See that all numbers are finite in fp32; each is read once and none is kept.

    Raises:
        DataError: as `read_tensors`.
    """
    for key, value in _mapped(tensors):
        for part in value.flatten().split(PART):
            _finite(part.to(torch.float32), tensors[key])


def equal_numbers(one: StoredTensor, other: StoredTensor) -> bool:
    """Whether two tensors are equal in fp32; each is read once and none is kept.

    Raises:
        DataError: when a file is damaged.
    """
    if one.shape != other.shape:
        return False
    found = dict(_mapped({"one": one, "other": other}))
    parts = (found[name].flatten().split(PART) for name in ("one", "other"))
    return all(
        torch.equal(mine.to(torch.float32), its.to(torch.float32))
        for mine, its in zip(*parts, strict=True)
    )


def _mapped(tensors: Mapping[str, StoredTensor]) -> Iterator[tuple[str, Tensor]]:
    """Each tensor as it is stored, file by file; its numbers are read when they are looked at."""
    from safetensors import SafetensorError

    files = dict.fromkeys(tensor.file for tensor in tensors.values())
    for file in files:
        with opened(file) as source:
            for key, tensor in tensors.items():
                if tensor.file != file:
                    continue
                try:
                    value: Tensor = source.get_tensor(tensor.name)
                except (SafetensorError, ValueError) as error:
                    raise DataError(
                        f"{file}: {tensor.name} cannot be read ({first_line(error)})"
                    ) from error
                yield key, value


def _finite(value: Tensor, tensor: StoredTensor) -> Tensor:
    # A sum is finite where its parts are, unless it overflows: then they are looked at one by one.
    if not math.isfinite(float(value.sum())) and not bool(torch.isfinite(value).all()):
        raise DataError(
            f"{tensor.file}: {tensor.name} holds NaN or infinity, with which a network computes "
            "nothing: fetch or train the checkpoint anew"
        )
    return value


def first_line(error: Exception) -> str:
    """The first line of what an error says."""
    return next(iter(str(error).splitlines()), type(error).__name__)
