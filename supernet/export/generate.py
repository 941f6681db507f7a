"""``modeling.py``: plain PyTorch of exactly one network, generated from the parts in `template`."""

from __future__ import annotations

import ast
import sys
import types
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from search_spaces.settings import ImageInput
from supernet.export.blueprint import Blueprint
from supernet.export.layer_source import decoder_lines, encoder_lines
from supernet.export.properties import properties, sizes
from supernet.export.specialise import (
    Part,
    decided,
    definitions,
    reachable,
    tidied,
    used_names,
    without_names,
)

TEMPLATE = Path(__file__).parent / "template"
PARTS = {
    "classification": ("attention", "stacks", "classifier", "loading"),
    "translation": ("attention", "stacks", "decoding", "translator", "loading"),
    "language_modelling": ("attention", "stacks", "decoding", "language_model", "loading"),
}
TITLES = {
    "classification": "A classifier",
    "translation": "A translation network",
    "language_modelling": "A language model",
}
USES = {
    "classification": "    logits = network(inputs)",
    "translation": "    tokens = translate(network, [5, 6, 7])",
    "language_modelling": "    tokens = continue_text(network, [1], count=20)",
}
ROOTS = {
    "classification": ("Network", "load_network", "main"),
    "translation": ("Network", "load_network", "main", "translate"),
    "language_modelling": ("Network", "load_network", "main", "continue_text"),
}
MAIN = 'if __name__ == "__main__":\n    main()\n'


def modeling_source(
    blueprint: Blueprint,
    num_words: int | None = None,
    weights_file: str = "model.safetensors",
    check_file: str = "check.safetensors",
) -> str:
    """The text of ``modeling.py``.

    Args:
        blueprint: the network.
        num_words: tokens that the (target) tokenizer knows, where there is one.
        weights_file: what the weights are loaded from; its ending says how.
        check_file: where the recorded inputs and outputs are.
    """
    flags = properties(blueprint, num_words, weights_file)
    values = sizes(blueprint, num_words) | {
        "WEIGHTS_FILE": weights_file,
        "CHECK_FILE": check_file,
    }
    erased = _useless(flags)
    raw = [part for name in PARTS[blueprint.task] for part in _raw_parts(name)]
    parts = [
        Part(part.names, without_names(decided(part.text, flags), erased).rstrip()) for part in raw
    ]
    used = reachable([_with_layers(part, blueprint) for part in parts], ROOTS[blueprint.task])
    names = {name for part in used for name in used_names(part.text)}
    constants = [f"{key} = {_literal(value)}" for key, value in values.items() if key in names]
    blocks = [
        _header(blueprint),
        "\n".join(_imports(blueprint, names)),
        "\n".join(constants),
        *(part.text for part in used),
        MAIN,
    ]
    return tidied(_spaced(blocks))


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


@cache
def _template(name: str) -> str:
    return (TEMPLATE / f"{name}.py").read_text(encoding="utf-8")


@cache
def _import_statements(name: str) -> tuple[ast.Import | ast.ImportFrom, ...]:
    body = ast.parse(_template(name)).body
    return tuple(node for node in body if isinstance(node, ast.Import | ast.ImportFrom))


@cache
def _raw_parts(name: str) -> tuple[Part, ...]:
    return tuple(definitions(_template(name)))


def _useless(flags: Mapping[str, bool]) -> set[str]:
    """Parameters without a use in such a network."""
    needed = {
        "real": flags["PADDING"],
        "positions": flags["POSITIONS"],
        "places": flags["POSITIONS"],
        "span": flags["OMNI"],
        "together": flags["DECODER_SPANS"],
        "memory": flags["TRANSLATOR"],
        "memories": flags["TRANSLATOR"],
        "cross_attention": flags["TRANSLATOR"],
        "joined": flags["JOINED"],
    }
    return {name for name, used in needed.items() if not used}


def _with_layers(part: Part, blueprint: Blueprint) -> Part:
    """`encoder_layers` and `decoder_layers` with the network's own layers."""
    lines = {"encoder_layers": encoder_lines, "decoder_layers": decoder_lines}
    name = part.names[0]
    if name not in lines:
        return part
    head = part.text[: part.text.index("    return [")]
    body = "".join(f"        {line}\n" for line in lines[name](blueprint))
    return Part(part.names, f"{head}    return [\n{body}    ]")


def _imports(blueprint: Blueprint, names: set[str]) -> list[str]:
    """The import statements of the parts that bring along a name in use, each once."""
    plain, chosen = set[str](), dict[str, set[str]]()
    for part in PARTS[blueprint.task]:
        for node in _import_statements(part):
            if isinstance(node, ast.Import):
                plain |= {_import(one) for one in node.names if _bound(one) in names}
            elif isinstance(node, ast.ImportFrom) and not (node.module or "").startswith(
                "supernet"
            ):
                used = {one.name for one in node.names if one.name in names}
                if used and node.module != "__future__":
                    chosen.setdefault(str(node.module), set()).update(used)
    lines = sorted(plain) + [
        f"from {module} import {', '.join(sorted(used))}" for module, used in sorted(chosen.items())
    ]
    own = [line for line in lines if line.split()[1].split(".")[0] in sys.stdlib_module_names]
    torch_ones = [line for line in lines if line not in own]
    return ["from __future__ import annotations", "", *own, "", *torch_ones]


def _import(alias: ast.alias) -> str:
    return f"import {alias.name}" + (f" as {alias.asname}" if alias.asname else "")


def _bound(alias: ast.alias) -> str:
    return alias.asname or alias.name.split(".")[0]


def _literal(value: int | str) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value)


def _header(blueprint: Blueprint) -> str:
    image = isinstance(blueprint.settings.input, ImageInput)
    letters = "B batch, N positions, D width, H heads, W width of one head"
    if blueprint.task == "translation":
        letters += ",\nM source positions, V vocabulary"
    elif blueprint.task == "language_modelling":
        letters += ",\nV vocabulary"
    what = TITLES[blueprint.task] + (" of images" if image else "")
    return (
        f'"""{what}, {blueprint.params:,} parameters, as plain PyTorch.\n\n'
        f"Network {blueprint.architecture.id}, generated from its description "
        "(`architecture.json`).\n\n"
        "    network = load_network()\n"
        f"{USES[blueprint.task]}\n\n"
        "`python modeling.py --check` reproduces the recorded outputs.\n\n"
        f"Shapes: {letters}.\n"
        '"""'
    )


def _spaced(blocks: Sequence[str]) -> str:
    """Blocks with empty lines between: two around functions and classes, none between constants."""
    text = blocks[0]
    for before, block in pairwise(blocks):
        big = any(_is_big(one) for one in (before, block))
        text += ("\n\n\n" if big else "\n\n") + block
    return text.rstrip("\n") + "\n"


def _is_big(block: str) -> bool:
    return block.startswith(("def ", "class ", "@", "if "))
