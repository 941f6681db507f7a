"""Weights of translation networks as checkpoints that fairseq loads, and back.

In fairseq the network is a model of the plug-in `nas_fairseq`, which holds it under ``network``
as it is here; only the rows of padding and begin mark are where this package has them, and the
plug-in swaps the tokens instead. So no number changes on the way.

Nothing here imports fairseq. A checkpoint is read with an allow-list: tensors, plain values, and
the few harmless classes that fairseq itself stores.
"""

from __future__ import annotations

import argparse
import json
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from search_spaces.architecture import Architecture
from search_spaces.errors import DataError, NasError, UsageError
from search_spaces.interchange import parse_architecture
from search_spaces.loading import load_space
from search_spaces.notation import looks_like_text
from supernet.blueprint import Blueprint
from supernet.building import build_network
from supernet.export.weights import check_weights
from supernet.extraction import StandAlone
from supernet.pretrained.tensors import first_line
from supernet.training.checkpoint import save

ARCH = "nas_transformer"
PREFIX = "network."

# What fairseq's checkpoints hold beside tensors and plain values: the arguments, and arrays of
# numbers where BLEU was counted while training. None of them does anything when it is built.
_ARRAY, _SCALAR = (value.__reduce__()[0] for value in (np.zeros(1), np.float64(0)))
SAFE_GLOBALS: tuple[Any, ...] = (
    argparse.Namespace,
    np.ndarray,
    np.dtype,
    *(type(np.dtype(name)) for name in ("float32", "float64", "int32", "int64")),
    _ARRAY,
    _SCALAR,
    (_ARRAY, "numpy.core.multiarray._reconstruct"),  # as numpy below 2 calls them
    (_SCALAR, "numpy.core.multiarray.scalar"),
)


def read_blueprint(architecture: str, space: str | None) -> Blueprint:
    """What ``--nas-architecture`` and ``--nas-space`` say.

    Args:
        architecture: ``architecture.json`` of an export, which says everything; or a network in
            any form: a file, its content, or its line of text.
        space: name or file of the network's space; not needed for an export's file.

    Raises:
        UsageError: when a file is missing, or the space is needed and not given.
        DataError: when an export's file is damaged, or the network does not translate.
        ArchitectureError: when the network is malformed or lies outside of the space.
    """
    text = _content(architecture)
    data = _json_object(text)
    if data is not None and "model" in data:
        blueprint = Blueprint.from_json(data, "the description of the network")
    elif space is None:
        raise UsageError(
            "--nas-architecture names a network without the settings of its space: give the space "
            "with --nas-space, or the architecture.json of an export"
        )
    else:
        found = load_space(space)
        network = parse_architecture(text)
        found.encode([network])  # refuses a network of another space, naming the gene
        blueprint = Blueprint(found.task, found.model, network)
    if blueprint.task != "translation":
        raise DataError(f"the plug-in is for translation; this network is for {blueprint.task}")
    return blueprint


def packed_blueprint(blueprint: Blueprint) -> str:
    """A blueprint as one line that `read_blueprint` takes: checkpoints keep it."""
    return json.dumps(blueprint.to_json(), sort_keys=True, separators=(",", ":"))


def write_checkpoint(
    file: Path, blueprint: Blueprint, weights: Mapping[str, Tensor], languages: Sequence[str]
) -> None:
    """Write a checkpoint for fairseq, made of tensors and plain values alone.

    Args:
        file: usually ``checkpoint.pt``.
        blueprint: the network.
        weights: its state, as `StandAlone.network` has it.
        languages: source and target, as the dictionaries are called.
    """
    model = {f"{PREFIX}{name}": tensor.detach().cpu() for name, tensor in weights.items()}
    save(file, {**_around_the_model(blueprint, languages), "model": model})


def _around_the_model(blueprint: Blueprint, languages: Sequence[str]) -> dict[str, Any]:
    """What fairseq looks for beside the weights: the arguments, and that no update was made."""
    source, target = languages
    model = {
        "_name": ARCH,
        "arch": ARCH,
        "nas_architecture": packed_blueprint(blueprint),
        "nas_space": None,
        "dropout": 0.0,
    }
    task = {"_name": "translation", "data": ".", "source_lang": source, "target_lang": target}
    history = {
        "criterion_name": "LabelSmoothedCrossEntropyCriterion",
        "optimizer_name": "FairseqAdam",
        "lr_scheduler_state": {"best": None},
        "num_updates": 0,
    }
    return {
        "args": None,
        "cfg": {"common": {"_name": None}, "model": model, "task": task},
        "criterion": None,
        "optimizer_history": [history],
        "task_state": {},
        "extra_state": {"train_iterator": {"epoch": 1, "iterations_in_epoch": 0}},
        "last_optimizer_state": None,
    }


def read_checkpoint(file: Path) -> dict[str, Any]:
    """Read a checkpoint of fairseq's to the CPU; nothing in it is executed.

    Raises:
        DataError: when it is missing, cut off, or holds what no such checkpoint needs.
    """
    if not file.is_file():
        raise DataError(f"there is no checkpoint {file}")
    try:
        with zipfile.ZipFile(file) as archive:
            changed = archive.testzip()
        if changed:
            raise DataError(f"the checkpoint {file} is damaged: {changed} has changed")
        with torch.serialization.safe_globals(list(SAFE_GLOBALS)):
            state = torch.load(file, map_location="cpu", weights_only=True)
    except NasError:
        raise
    except Exception as error:  # damage comes out as almost any of zipfile's and torch's errors
        raise DataError(
            f"{file} cannot be read as a checkpoint of fairseq's: {first_line(error)}"
        ) from error
    if not isinstance(state, dict) or not isinstance(state.get("model"), dict):
        raise DataError(f"{file} is no checkpoint of fairseq's: it holds no model")
    return state


def blueprint_of(state: Mapping[str, Any], name: str) -> Blueprint:
    """The network that a checkpoint of the plug-in was trained as.

    Args:
        state: of `read_checkpoint`.
        name: of the checkpoint, for messages.

    Raises:
        DataError: when the checkpoint is of another model of fairseq's, or says no network.
    """
    config = state.get("cfg")
    model = config.get("model") if isinstance(config, Mapping) else None
    values = vars(model) if isinstance(model, argparse.Namespace) else model
    if not isinstance(values, Mapping):
        values = {}
    text, arch = values.get("nas_architecture"), values.get("arch", values.get("_name"))
    if not isinstance(text, str):
        raise DataError(
            f"{name} is of fairseq's model {arch!r}, not of {ARCH}: only networks that were "
            "trained with the plug-in have a place here"
        )
    data = _json_object(text)
    return Blueprint.from_json(data, f"the network in {name}")


@dataclass(frozen=True, eq=False, slots=True)
class TrainedByFairseq:
    """What a checkpoint holds.

    Attributes:
        blueprint: the network.
        network: with its weights, on the CPU, in fp32 and evaluation mode.
        epochs: passes over the data, at least 1; the last may have been cut short.
        updates: of the weights.
    """

    blueprint: Blueprint
    network: StandAlone
    epochs: int
    updates: int


def read_trained(file: Path) -> TrainedByFairseq:
    """Read a checkpoint of the plug-in.

    Raises:
        DataError: when it cannot be read, is of another model, or lacks tensors, has some too many
            or of other shapes.
    """
    state = read_checkpoint(file)
    blueprint = blueprint_of(state, str(file))
    with torch.random.fork_rng(devices=[]):
        network = build_network(blueprint.settings, blueprint.task, blueprint.architecture)
    assert blueprint.task == "translation"
    network.network.load_state_dict(_weights(state, network.network.state_dict(), str(file)))
    epochs = _number(state, "extra_state", "train_iterator", "epoch")
    updates = _number({"last": (state.get("optimizer_history") or [{}])[-1]}, "last", "num_updates")
    return TrainedByFairseq(blueprint, network.eval(), max(1, epochs), updates)


def network_of_checkpoint(file: Path, expected: Architecture) -> StandAlone:
    """The network of a checkpoint, which has to be of an architecture.

    Raises:
        DataError: as `read_trained` does, and for another architecture.
    """
    found = read_trained(file)
    if found.blueprint.architecture != expected:
        raise DataError(
            f"{file} is of the network {found.blueprint.architecture.id}, not of {expected.id}"
        )
    return found.network


def average_weights(networks: Sequence[StandAlone]) -> dict[str, Tensor]:
    """The mean of the weights of several networks of one architecture, in double precision."""
    states = [network.network.state_dict() for network in networks]
    return {
        name: torch.stack([state[name].double() for state in states]).mean(0).to(tensor.dtype)
        for name, tensor in states[0].items()
    }


def _weights(state: Mapping[str, Any], own: Mapping[str, Tensor], name: str) -> dict[str, Tensor]:
    """The tensors of a checkpoint under our names, in fp32."""
    found: dict[str, Tensor] = {}
    for key, value in state["model"].items():
        if not isinstance(value, Tensor):
            raise DataError(f"{name} holds {key}, which is no tensor")
        found[str(key).removeprefix(PREFIX)] = value.float()
    check_weights(own, found, name)
    return found


def _number(state: Any, *keys: str) -> int:
    """A number in nested tables; 0 where it is not."""
    for key in keys:
        state = state.get(key) if isinstance(state, Mapping) else None
    return state if isinstance(state, int) else 0


def _content(given: str) -> str:
    """A file's content; what is no file but a JSON object or a line of text, as it is."""
    if given.lstrip().startswith("{") or looks_like_text(given):
        return given
    try:
        return Path(given).read_text(encoding="utf-8-sig")
    except OSError as error:
        raise UsageError(f"--nas-architecture {given}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise DataError(f"--nas-architecture {given} is not UTF-8: {error}") from error


def _json_object(text: str) -> dict[str, Any] | None:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None
