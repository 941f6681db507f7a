"""Weights and one readable file: ``modeling.py`` of plain PyTorch, without this package.

The file is put together from the parts in `template`. Two formats share it: weights as safetensors,
or as one file of torch's own that is loaded with ``weights_only=True``.
"""

from __future__ import annotations

import ast
import sys
import types
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from search_spaces.architecture import SKIP
from search_spaces.errors import DataError
from search_spaces.files import write_atomically
from search_spaces.tasks import TASKS
from supernet.blueprint import Blueprint
from supernet.export.contents import ReferenceOutputs
from supernet.export.formats import ExportFormat, ExportSource
from supernet.export.template import (
    attention,
    gated_attention,
    linear_attention,
    state_attention,
    window_attention,
)
from supernet.export.usage import answer_lines
from supernet.export.weights import network_of, plain_weights, read_tensors, write_tensors

TEMPLATE = Path(__file__).parent / "template"
ATTENTION_PARTS = (
    attention,
    window_attention,
    linear_attention,
    gated_attention,
    state_attention,
)
HEADER = """{title}, {params:,} parameters, as plain PyTorch.

Network {id}; its sizes are read from its description (`architecture.json`).

Shapes: B batch, N positions, D width, H heads, W width of one head, M source positions,
V vocabulary.
"""
USAGE = """
    network = load_network()
    {use}

`python modeling.py --check` reproduces the recorded outputs.
"""
MODELING_FILE = "modeling.py"


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

        Raises:
            DataError: also when ``modeling.py`` is missing.
        """
        weights = read_tensors(folder / self.weights_file)
        difference = weights_difference(
            blueprint, weights, reference, str(folder / self.weights_file)
        )
        text = modeling_source(blueprint)
        if not is_as_written(folder / MODELING_FILE, text):
            return difference
        return max(difference, generated_difference(text, blueprint, weights, reference))

    def usage(self, source: ExportSource) -> str:
        """See `ExportFormat.usage`."""
        return (
            f"`modeling.py` needs {self.packages}, and nothing else; `python modeling.py --check` "
            "reproduces the recorded outputs. From raw input to the answer, in this folder (the "
            "lines need what they import, too):\n\n"
            f"{answer_lines(source, 'torch')}"
        )


class TorchExport(SafetensorsExport):
    """``weights.pt`` and ``modeling.py``, which needs torch."""

    name = "torch"
    weights_file = "weights.pt"
    reference_file = "check.pt"
    packages = "torch"


def is_as_written(file: Path, text: str) -> bool:
    """Whether a file of an export is just the text that is put together now.

    Raises:
        DataError: when it is missing.
    """
    if not file.is_file():
        raise DataError(f"{file} is missing; export the network anew")
    return file.read_bytes() == text.encode()


@torch.inference_mode()
def weights_difference(
    blueprint: Blueprint, weights: dict[str, Tensor], reference: ReferenceOutputs, name: str
) -> float:
    """How far our own network with exported weights is from the reference.

    Raises:
        DataError: when they are weights of another network.
    """
    network = network_of(blueprint, weights, name)
    return reference.difference(reference.named(network(*reference.arguments)))


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
    return max(reference.difference(outputs) for outputs in found)


# -- modeling.py ----------------------------------------------------------------------------------


def modeling_source(blueprint: Blueprint) -> str:
    """The text of ``modeling.py``: the network, and how its weights are loaded and checked."""
    header = _header(blueprint) + USAGE.format(use=blueprint.form.call)
    return joined_parts(header, [*network_parts(blueprint), "loading"])


def network_source(blueprint: Blueprint) -> str:
    """The text of a module with the network alone."""
    return joined_parts(_header(blueprint), network_parts(blueprint))


def network_parts(blueprint: Blueprint) -> list[str]:
    """The parts that a network needs, each after those it builds on."""
    used = {attention.KERNELS[name].__module__ for name in kernels_of(blueprint)}
    special = [part.__name__ for part in ATTENTION_PARTS if part.__name__ in used]
    names = dict.fromkeys([attention.__name__, *special])
    return [*(name.rpartition(".")[2] for name in names), *blueprint.form.parts]


def kernels_of(blueprint: Blueprint) -> set[str]:
    """The names of the kernels of a network's layers."""
    description = blueprint.to_json()
    return {
        attention.kernel_name(description["model"], kind, cross=gene == "cross_attention")
        for stack in description["architecture"].values()
        for layer in stack["layers"]
        for gene, kind in layer.items()
        if gene.endswith("attention") and kind != SKIP
    }


def joined_parts(docstring: str, names: Iterable[str]) -> str:
    """Parts of `template` as one file: their imports, and their text in the given order.

    Args:
        docstring: of the file.
        names: of the parts, without those that are elsewhere.
    """
    modules: set[str] = set()
    chosen: dict[str, set[str]] = {}
    bodies = []
    for name in names:
        text = (TEMPLATE / f"{name}.py").read_text(encoding="utf-8")
        body = ast.parse(text).body
        imports = [node for node in body if isinstance(node, ast.Import | ast.ImportFrom)]
        for node in imports:
            if isinstance(node, ast.Import):
                modules.add(ast.unparse(node))
            elif not str(node.module).startswith(("__future__", "supernet.")):
                chosen.setdefault(str(node.module), set()).update(one.name for one in node.names)
        bodies.append("\n".join(text.splitlines()[imports[-1].end_lineno :]).rstrip())
    lines = sorted(modules) + [
        f"from {module} import {_listed(chosen[module])}" for module in sorted(chosen)
    ]
    known = sys.stdlib_module_names
    groups = [
        "\n".join(line for line in lines if (line.split()[1].split(".")[0] in known) == ours)
        for ours in (True, False)
    ]
    head = [f'"""{docstring}"""', "from __future__ import annotations", *filter(None, groups)]
    first, *rest = bodies
    return "\n\n\n".join(["\n\n".join(head) + "\n" + first, *map(str.lstrip, rest)]) + "\n"


def as_module(text: str, file: Path) -> Any:
    """A module made of text that was generated here; never of text that was read.

    Args:
        text: from `modeling_source`.
        file: what the module takes for its own file, beside which it looks for weights.
    """
    module = types.ModuleType("exported_modeling")
    module.__file__ = str(file)
    before = sys.modules.get(module.__name__)
    sys.modules[module.__name__] = module  # where dataclasses look for the names of their fields
    try:
        exec(compile(text, str(file), "exec"), module.__dict__)
    finally:
        sys.modules.pop(module.__name__)
        if before is not None:
            sys.modules[module.__name__] = before
    return module


def _listed(names: Collection[str]) -> str:
    """Constants, then classes, then functions, each by name, as import sorters have it."""
    return ", ".join(sorted(names, key=lambda n: (not n.isupper(), not n[0].isupper(), n)))


def _header(blueprint: Blueprint) -> str:
    return HEADER.format(
        title=TASKS[blueprint.task].network.capitalize(),
        params=blueprint.params,
        id=blueprint.architecture.id,
    )
