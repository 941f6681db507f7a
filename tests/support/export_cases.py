"""Runs to export from, and a format that is as plain as can be."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from nas.results.export import Exported, ExportRequest, export_network, write_checksums
from nas.results.networks import OpenedData, TrainedNetwork, open_data, open_network
from nas.run.folder import RunFolder
from supernet.blueprint import Blueprint
from supernet.building import build_supernet
from supernet.export import formats
from supernet.export.contents import ReferenceOutputs
from supernet.export.formats import ExportFormat, ExportSource
from supernet.export.standalone import as_module
from supernet.export.weights import network_of, plain_weights, read_tensors, write_tensors
from supernet.training.checkpoint import save
from tests.support.trained_cases import SPACES, networks, trained


class PlainExport(ExportFormat):
    """Weights and nothing else."""

    name = "plain"
    off_by = 0.0

    def write(self, source: ExportSource, folder: Path) -> list[str]:
        weights = plain_weights(source.network)
        shifted = {name: tensor + self.off_by for name, tensor in weights.items()}
        write_tensors(folder / "plain.safetensors", shifted)
        return ["plain.safetensors"]

    @torch.inference_mode()
    def parity(self, folder: Path, blueprint: Blueprint, reference: ReferenceOutputs) -> float:
        file = folder / "plain.safetensors"
        network = network_of(blueprint, read_tensors(file), str(file))
        return reference.difference({"logits": network(*reference.arguments)})

    def usage(self, source: ExportSource) -> str:
        return "Load `plain.safetensors`."


class WrongExport(PlainExport):
    """Writes other weights than it was given."""

    name = "wrong"
    off_by = 0.5


def know_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """List the two formats above."""
    known = {"plain": "PlainExport", "wrong": "WrongExport"}
    for name, cls in known.items():
        monkeypatch.setitem(formats.FORMATS, name, f"{__name__}:{cls}")


def run_of(path: Path, task: str = "translation") -> RunFolder:
    """A run with a front, one network trained from scratch, and a supernet."""
    folder = trained(path, SPACES[task])
    space = folder.spec.space
    torch.manual_seed(0)
    save(path / "supernet" / "last.pt", {"weights": build_supernet(space).state_dict()})
    folder.finish("supernet", "digest", ["supernet/last.pt"], 1.0)
    return folder


def arch_of(folder: RunFolder) -> str:
    """The id of the trained network."""
    return networks(folder.spec.space, 1)[0].id


def export_to(folder: RunFolder, form: str, out: Path | None = None, **more: object) -> Exported:
    """Export the trained network."""
    return export_network(folder, ExportRequest(form, out=out, **more))  # type: ignore[arg-type]


def opened(folder: RunFolder) -> tuple[TrainedNetwork, OpenedData]:
    """The trained network of a run, and its data."""
    return open_network(folder, arch_of(folder), "cpu"), open_data(folder, None)


def module_of(folder: Path) -> Any:
    """The folder's `modeling.py`, which these tests have written themselves."""
    file = folder / "modeling.py"
    return as_module(file.read_text(encoding="utf-8"), file)


def seal(folder: Path) -> None:
    """Checksums that fit a changed folder, as someone who means harm would write them."""
    write_checksums(folder)


def hub_without_net(factory: pytest.TempPathFactory) -> Iterator[Any]:
    """transformers without a net, and with a place of its own for code; for a fixture."""
    patch = pytest.MonkeyPatch()
    patch.setenv("HF_HUB_OFFLINE", "1")
    transformers = pytest.importorskip("transformers")
    place = str(factory.mktemp("modules"))
    patch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", place)
    patch.syspath_prepend(place)
    transformers.utils.logging.disable_progress_bar()
    logging.getLogger("transformers").setLevel(logging.ERROR)
    yield transformers
    for name in [name for name in sys.modules if name.startswith("transformers_modules")]:
        del sys.modules[name]  # they are packages of a place that nobody looks in any more
    patch.undo()
