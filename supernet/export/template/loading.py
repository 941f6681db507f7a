"""Loading weights, and the check of a generated file."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import Tensor

from supernet.export.template.classifier import Network, outputs
from supernet.export.template.sizes import CHECK_FILE, PARAMETERS, SAFETENSORS, WEIGHTS_FILE

FOLDER = Path(__file__).resolve().parent


def load_tensors(name: str) -> dict[str, Tensor]:
    """The tensors of a file beside this one; nothing in it is executed."""
    if SAFETENSORS:
        from safetensors.torch import load_file

        return load_file(FOLDER / name)
    else:
        return torch.load(FOLDER / name, map_location="cpu", weights_only=True)


def load_network() -> Network:
    """The network with its weights, for inference."""
    network = Network()
    network.load_state_dict(load_tensors(WEIGHTS_FILE))
    return network.eval()


@torch.inference_mode()
def check() -> None:
    """Reproduce the recorded outputs."""
    network, record = load_network(), load_tensors(CHECK_FILE)
    count = sum(parameter.numel() for parameter in network.parameters())
    inputs = {name[6:]: part for name, part in record.items() if name.startswith("input.")}
    expected = record["output.logits"]
    differences = [(found - expected).abs().max() for found in outputs(network, inputs)]
    apart = torch.stack(differences).max()
    print(f"{count} parameters, outputs within {apart:.2g} of the recorded ones")
    if count != PARAMETERS or not apart <= 1e-4:
        raise SystemExit(f"failed: {PARAMETERS} parameters and at most 1e-4 are right")


def main() -> None:
    """Read the command line."""
    if sys.argv[1:] != ["--check"]:
        raise SystemExit("usage: python modeling.py --check")
    check()
