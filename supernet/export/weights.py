"""The weights of a network under the names that exported files use, and files of them.

Files are safetensors or torch's own, read without running anything that is in them: one that is cut
off, changed, a pickle or of another kind is refused in one sentence.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
from torch import Tensor

from search_spaces.errors import DamagedRunError, DataError
from search_spaces.files import replacing
from supernet.blueprint import Blueprint
from supernet.building import build_network
from supernet.exported_names import plain_names
from supernet.extraction import StandAlone
from supernet.pretrained.tensors import first_line, foreign_kind
from supernet.training.checkpoint import load, save


def plain_weights(network: StandAlone) -> dict[str, Tensor]:
    """The weights under exported names, copies on the CPU in fp32."""
    state = network.network.state_dict()
    names = plain_names(network)
    return {plain: state[name].detach().float().cpu() for name, plain in names.items()}


def network_of(blueprint: Blueprint, weights: Mapping[str, Tensor], name: str) -> StandAlone:
    """The network on its own with these weights, in evaluation mode.

    Args:
        blueprint: what it is.
        weights: by exported name.
        name: what to call the weights in messages.

    Raises:
        DataError: when a tensor is missing, too much, of another shape or no fp32.
    """
    network = bare_network(blueprint)
    state, names = network.network.state_dict(), plain_names(network)
    check_weights({plain: state[own] for own, plain in names.items()}, weights, name)
    network.network.load_state_dict({own: weights[plain] for own, plain in names.items()})
    return network.eval()


def bare_network(blueprint: Blueprint) -> StandAlone:
    """The network on its own with weights that mean nothing."""
    with torch.random.fork_rng(devices=[]):
        return build_network(blueprint.settings, blueprint.task, blueprint.architecture)


def check_weights(expected: Mapping[str, Tensor], found: Mapping[str, Tensor], name: str) -> None:
    """See that tensors have the names, shapes and types of a network's.

    Raises:
        DataError: for the first that has not.
    """
    missing, extra = _first(expected.keys() - found.keys()), _first(found.keys() - expected.keys())
    if missing is not None:
        raise DataError(f"{name} has no tensor {missing}: it holds the weights of another network")
    if extra is not None:
        raise DataError(f"{name} has a tensor too much, {extra}: it belongs to another network")
    for key, tensor in expected.items():
        if found[key].shape != tensor.shape or found[key].dtype != tensor.dtype:
            raise DataError(
                f"{name}: {key} is {_kind(found[key])}, but the network's is {_kind(tensor)}; "
                "it holds the weights of another network"
            )


def _kind(tensor: Tensor) -> str:
    return f"{tuple(tensor.shape)} of {str(tensor.dtype).removeprefix('torch.')}"


def _first(names: Iterable[str]) -> str | None:
    return min(names, default=None)


# -- files ----------------------------------------------------------------------------------------


def write_tensors(file: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write tensors; the ending of the file says how, ``.safetensors`` or ``.pt``."""
    plain = {name: tensor.detach().contiguous().clone() for name, tensor in tensors.items()}
    if file.suffix == ".pt":
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
    found = _read_torch(file) if file.suffix == ".pt" else _read_safetensors(file)
    for name, value in found.items():
        if not isinstance(value, Tensor):
            raise DataError(f"{file} holds {name}, which is no tensor; export the network anew")
    return found


def _read_torch(file: Path) -> dict[str, Tensor]:
    try:
        return load(file)
    except DamagedRunError as error:
        raise DataError(f"{first_line(error)}; export the network anew") from error


def _read_safetensors(file: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load as unpacked

    kind = foreign_kind(file)
    if kind is not None:
        raise DataError(
            f"{file} is {kind}, not a safetensors file; it was not opened, for a pickle can run "
            "code: export the network anew"
        )
    try:
        return unpacked(file.read_bytes())
    except (SafetensorError, ValueError, KeyError) as error:
        raise DataError(
            f"{file} is no whole safetensors file ({first_line(error)}); export the network anew"
        ) from error
