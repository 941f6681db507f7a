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
from supernet.export.imports import Statement, import_block
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
LAYERS = ("attention", "linear_attention", "state_attention", "stacks")
PARTS = {
    "classification": (*LAYERS, "classifier", "loading"),
    "translation": (*LAYERS, "decoding", "translator", "loading"),
    "language_modelling": (*LAYERS, "decoding", "language_model", "loading"),
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
NETWORK_ROOTS = ("Network", "State", "PAD", "BOS", "EOS", "outputs")
MAIN = 'if __name__ == "__main__":\n    main()\n'


def modeling_source(
    blueprint: Blueprint,
    num_words: int | None = None,
    weights_file: str = "model.safetensors",
    check_file: str = "check.safetensors",
    roots: Sequence[str] | None = None,
) -> str:
    """The text of ``modeling.py``.

    Args:
        blueprint: the network.
        num_words: tokens that the (target) tokenizer knows, where there is one.
        weights_file: what the weights are loaded from; its ending says how.
        check_file: where the recorded inputs and outputs are.
        roots: what the file is to define; None for everything, and a command line.
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
    used = reachable(
        [_with_layers(part, blueprint) for part in parts], roots or ROOTS[blueprint.task]
    )
    names = {name for part in used for name in used_names(part.text)}
    constants = [f"{key} = {literal(value)}" for key, value in values.items() if key in names]
    blocks = [
        _header(blueprint, alone=roots is None),
        import_block(_import_statements(blueprint), names),
        "\n".join(constants),
        *(part.text for part in used),
        *([MAIN] if roots is None else []),
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
def template(name: str) -> str:
    """The text of a part."""
    return (TEMPLATE / f"{name}.py").read_text(encoding="utf-8")


def _import_statements(blueprint: Blueprint) -> list[Statement]:
    """Those of all parts of a task that are of other packages."""
    found = [node for name in PARTS[blueprint.task] for node in _statements_of(name)]
    return [node for node in found if "supernet" not in ast.unparse(node)]


@cache
def _statements_of(name: str) -> tuple[Statement, ...]:
    body = ast.parse(template(name)).body
    return tuple(node for node in body if isinstance(node, Statement))


@cache
def _raw_parts(name: str) -> tuple[Part, ...]:
    return tuple(definitions(template(name)))


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


def literal(value: int | str) -> str:
    """A constant as source."""
    return f'"{value}"' if isinstance(value, str) else str(value)


def _header(blueprint: Blueprint, alone: bool) -> str:
    image = isinstance(blueprint.settings.input, ImageInput)
    letters = "B batch, N positions, D width, H heads, W width of one head"
    if blueprint.task == "translation":
        letters += ",\nM source positions, V vocabulary"
    elif blueprint.task == "language_modelling":
        letters += ",\nV vocabulary"
    what = TITLES[blueprint.task] + (" of images" if image else "")
    use = (
        f"    network = load_network()\n{USES[blueprint.task]}\n\n"
        "`python modeling.py --check` reproduces the recorded outputs.\n\n"
    )
    return (
        f'"""{what}, {blueprint.params:,} parameters, as plain PyTorch.\n\n'
        f"Network {blueprint.architecture.id}, generated from its description "
        f"(`architecture.json`).\n\n{use if alone else ''}Shapes: {letters}.\n"
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
