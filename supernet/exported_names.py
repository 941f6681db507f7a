"""The names of a network's weights in exported files.

They are those of the modules in ``modeling.py``: what exists only because a supernet has a choice
(shared projections, one kernel of several) leaves no trace in them.
"""

from __future__ import annotations

import re

from supernet.extraction import StandAlone

_RENAMED = (
    (re.compile(r"\.projections\.[^.]+\."), "."),
    # Kernels lose their name, so their gates have to say what they are.
    (re.compile(r"\.kernels\.[^.]+\.output_WE$"), ".output_gate"),
    (re.compile(r"\.kernels\.[^.]+\.gates_2HE$"), ".gate_weights"),
    (re.compile(r"\.kernels\.[^.]+\.weight_GE$"), ".gate_weight"),
    (re.compile(r"\.kernels\.[^.]+\.bias_G$"), ".gate_bias"),
    (re.compile(r"\.kernels\.[^.]+\."), "."),
    (re.compile(r"\.blocks\."), ".layers."),
    (re.compile(r"_(\d?[A-Z]+)$"), ""),  # shapes are suffixes of parameters
    (re.compile(r"^embedding\.(class_token|positions)$"), r"\1"),
    (re.compile(r"^embedding\.extras\.types$"), "types"),
    (re.compile(r"^embedding\.extras\.norm\."), "embedding_norm."),
    (re.compile(r"^embedding\.tokens\."), "embedding."),
    (re.compile(r"_positions\.learned$"), "_positions"),
    (re.compile(r"_positions\.extras\.types$"), "_types"),
    (re.compile(r"_positions\.extras\.norm\."), "_embedding_norm."),
)
_TABLES = {1: ("embedding",), 2: ("source_embedding", "target_embedding")}


def plain_names(network: StandAlone) -> dict[str, str]:
    """Name of each weight of a network → its name in exported files.

    For example ``encoder.blocks.0.attention.projections.shared.query.weight`` is
    ``encoder.layers.0.attention.query.weight`` there.
    """
    known = list(network.network.state_dict())
    tables = [name for name in known if name.startswith("tables.")]
    names = {name: _plain(name) for name in known}
    names |= {
        table: f"{name}.weight"
        for table, name in zip(tables, _TABLES.get(len(tables), ()), strict=True)
    }
    assert len(set(names.values())) == len(names), "two weights have one name"
    return names


def _plain(name: str) -> str:
    for pattern, replacement in _RENAMED:
        name = pattern.sub(replacement, name)
    return name
