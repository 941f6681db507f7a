"""``modeling.py``: a network in plain PyTorch, put together from the parts in `template`."""

from __future__ import annotations

import ast
import sys
import types
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

from search_spaces.tasks import TASKS, TaskName
from supernet.export.blueprint import Blueprint
from supernet.export.template.attention import kernel_name

TEMPLATE = Path(__file__).parent / "template"
KERNEL_PARTS = {
    "linear_attention": {"performer", "cosformer", "norm"},
    "state_attention": {"linformer", "bigbird"},
}
TASK_PARTS: dict[TaskName, tuple[str, ...]] = {
    "classification": ("layers", "encoder", "classifier"),
    "translation": ("layers", "encoder", "decoder", "translator"),
    "language_modelling": ("layers", "decoder", "language_model"),
}
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
USES: dict[TaskName, str] = {
    "classification": "logits = network(inputs)",
    "translation": "tokens = translate(network, [5, 6, 7])",
    "language_modelling": "tokens = continue_text(network, [1], count=20)",
}


def modeling_source(blueprint: Blueprint) -> str:
    """The text of ``modeling.py``: the network, and how its weights are loaded and checked."""
    header = _header(blueprint) + USAGE.format(use=USES[blueprint.task])
    return joined_parts(header, [*network_parts(blueprint), "loading"])


def network_source(blueprint: Blueprint) -> str:
    """The text of a module with the network alone."""
    return joined_parts(_header(blueprint), network_parts(blueprint))


def network_parts(blueprint: Blueprint) -> list[str]:
    """The parts that a network needs, each after those it builds on."""
    kernels = kernels_of(blueprint)
    special = [part for part, known in KERNEL_PARTS.items() if kernels & known]
    return ["attention", *special, *TASK_PARTS[blueprint.task]]


def kernels_of(blueprint: Blueprint) -> set[str]:
    """The names of the kernels of a network's layers."""
    description = blueprint.to_json()
    return {
        kernel_name(description["model"], kind, cross=gene == "cross_attention")
        for stack in description["architecture"].values()
        for layer in stack["layers"]
        for gene, kind in layer.items()
        if gene.endswith("attention")
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
