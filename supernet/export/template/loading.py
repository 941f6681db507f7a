"""Loading weights, and the check of an exported file."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from supernet.export.template.classifier import Network, outputs

FOLDER = Path(__file__).resolve().parent


def load_object(name: str) -> dict[str, Any]:
    """The content of a JSON file beside this one."""
    return json.loads((FOLDER / name).read_text(encoding="utf-8"))


def load_tensors(*names: str) -> dict[str, Tensor]:
    """The tensors of the file beside this one that has one of these names; it is not executed."""
    files = [FOLDER / name for name in names]
    file = next(filter(Path.is_file, files), files[0])
    if file.suffix == ".pt":
        return torch.load(file, map_location="cpu", weights_only=True)
    from safetensors.torch import load_file

    return load_file(file)


def load_network() -> Network:
    """The network with its weights, for inference."""
    reading = load_object("reading.json")
    description = load_object("architecture.json")  # and of its tokens which may be written:
    description |= {name: reading[name] for name in ("num_words", "padding") if name in reading}
    network = Network(description)
    network.load_state_dict(load_tensors("model.safetensors", "weights.pt"))
    return network.eval()


@torch.inference_mode()
def check() -> None:
    """Reproduce the recorded outputs."""
    network, record = load_network(), load_tensors("check.safetensors", "check.pt")
    count = sum(parameter.numel() for parameter in network.parameters())
    right = load_object("architecture.json")["params"]
    inputs = {name[6:]: part for name, part in record.items() if name.startswith("input.")}
    found = [pair for made in outputs(network, inputs) for pair in made.items()]
    differences = [(part - record[f"output.{name}"]).abs().max() for name, part in found]
    apart = torch.stack(differences).max()  # not a number where one of them is none
    print(f"{count} parameters, outputs within {apart:.2g} of the recorded ones")
    if count != right or not apart <= 1e-4:
        raise SystemExit(f"failed: {right} parameters and at most 1e-4 are right")


def main() -> None:
    """Read the command line."""
    if sys.argv[1:] != ["--check"]:
        raise SystemExit("usage: python modeling.py --check")
    check()


if __name__ == "__main__":
    main()
