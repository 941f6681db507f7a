"""Weights and one readable file: ``modeling.py`` of plain PyTorch, without this package.

Two formats share it: weights as safetensors, or as one file of torch's own that is loaded with
``weights_only=True``.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from search_spaces.files import write_atomically
from supernet.export.blueprint import Blueprint
from supernet.export.contents import ReferenceOutputs
from supernet.export.formats import ExportFormat, ExportSource
from supernet.export.modeling import as_module, modeling_source
from supernet.export.weights import network_of, plain_weights, read_tensors, write_tensors

MODELING_FILE = "modeling.py"
CALLS = {
    "classification": "logits = network(inputs)  # see reading.json for what inputs are",
    "translation": "tokens = translate(network, [5, 6, 7])  # token numbers of one sentence",
    "language_modelling": "tokens = continue_text(network, [1], count=20)  # 1 is the begin mark",
}
NAMES = {
    "classification": "load_network",
    "translation": "load_network, translate",
    "language_modelling": "continue_text, load_network",
}


class SafetensorsExport(ExportFormat):
    """``model.safetensors`` and ``modeling.py``, which needs torch and safetensors."""

    name = "safetensors"
    weights_file = "model.safetensors"
    packages = "torch and safetensors"

    def write(self, source: ExportSource, folder: Path) -> list[str]:
        """See `ExportFormat.write`."""
        write_tensors(folder / self.weights_file, plain_weights(source.network))
        write_atomically(folder / MODELING_FILE, modeling_source(source.blueprint))
        return [self.weights_file, MODELING_FILE]

    def parity(self, folder: Path, blueprint: Blueprint, reference: ReferenceOutputs) -> float:
        """See `ExportFormat.parity`.

        Our own network is run with the weights of the folder, and ``modeling.py`` as it is put
        together now, if the folder's file is just that. One that was written by another version,
        or changed by its owner, is not run.
        """
        weights = read_tensors(folder / self.weights_file)
        difference = weights_difference(
            blueprint, weights, reference, str(folder / self.weights_file)
        )
        text = modeling_source(blueprint)
        if (folder / MODELING_FILE).read_text(encoding="utf-8") != text:
            return difference
        return max(difference, generated_difference(text, blueprint, weights, reference))

    def usage(self, blueprint: Blueprint) -> str:
        """See `ExportFormat.usage`."""
        return (
            f"`modeling.py` needs {self.packages}, and nothing else. `python modeling.py --check` "
            "reproduces the recorded outputs.\n\n"
            "```python\n"
            f"from modeling import {NAMES[blueprint.task]}\n\n"
            "network = load_network()\n"
            f"{CALLS[blueprint.task]}\n"
            "```"
        )


class TorchExport(SafetensorsExport):
    """``weights.pt`` and ``modeling.py``, which needs torch."""

    name = "torch"
    weights_file = "weights.pt"
    reference_file = "check.pt"
    packages = "torch"
    requires = ()


@torch.inference_mode()
def weights_difference(
    blueprint: Blueprint, weights: dict[str, Tensor], reference: ReferenceOutputs, name: str
) -> float:
    """How far our own network with exported weights is from the reference.

    Raises:
        DataError: when they are weights of another network.
    """
    network = network_of(blueprint, weights, name)
    return reference.difference({"logits": network(*reference.arguments)})


@torch.inference_mode()
def generated_difference(
    text: str, blueprint: Blueprint, weights: dict[str, Tensor], reference: ReferenceOutputs
) -> float:
    """How far a network's source with exported weights is from the reference.

    Args:
        text: put together here, never read from a folder.
        blueprint: what it builds.
        weights: by exported name.
        reference: for the check.
    """
    module = as_module(text, Path(MODELING_FILE))
    network = module.Network(blueprint.to_json())
    network.load_state_dict(weights)
    found = module.outputs(network.eval(), dict(reference.inputs))
    return max(reference.difference({"logits": logits}) for logits in found)
