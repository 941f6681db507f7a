"""Search spaces as TOML: shipped ones by name, a user's own by path, pruned ones in run folders."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from search_spaces.architecture import kind_order
from search_spaces.errors import UnknownNameError
from search_spaces.genes import GeneSpace, dump_genes
from search_spaces.genotypes import GenotypeSpace
from search_spaces.settings import ImageInput, ModelSettings
from search_spaces.space import Choice, SearchSpace, Slot
from search_spaces.space_form import space_from_source
from search_spaces.toml.source import TomlSource, read_text

LIBRARY = Path(__file__).parent / "library"


def dumped(space: GenotypeSpace) -> str:
    """A space of either kind as TOML.

    Raises:
        UsageError: see `search_spaces.genes.dump_genes`.
    """
    if isinstance(space, SearchSpace):
        return dump_space(space)
    assert isinstance(space, GeneSpace)
    return dump_genes(space)


def space_names() -> list[str]:
    """Names of the shipped spaces, sorted."""
    return sorted(path.stem for path in LIBRARY.glob("*.toml"))


def load_space(name_or_path: str) -> SearchSpace:
    """Load a space.

    Args:
        name_or_path: a shipped name (`space_names`), or a path: anything that ends in ``.toml``
            or contains a slash.

    Raises:
        UnknownNameError: for a name that is not shipped, with the nearest ones.
        SpaceFileError: for a file that is missing, unreadable or wrong.
    """
    return space_from_source(space_source(name_or_path))


def space_source(name_or_path: str) -> TomlSource:
    """The text of a space, as `load_space` finds it.

    Raises:
        UnknownNameError: for a name that is not shipped, with the nearest ones.
        SpaceFileError: for a file that is missing, unreadable or no TOML.
    """
    if name_or_path.endswith(".toml") or "/" in name_or_path or "\\" in name_or_path:
        return TomlSource.parse(read_text(Path(name_or_path)), name_or_path)
    if name_or_path not in space_names():
        raise UnknownNameError(_no_space(name_or_path))
    return TomlSource.parse(read_text(LIBRARY / f"{name_or_path}.toml"), name_or_path)


def _no_space(given: str) -> str:
    names = space_names()
    if given and Path(given).is_file():
        return (
            f"there is no space named {given!r}, but a file: its name has to end in .toml, or to "
            f"be given as a path, for example ./{given}"
        )
    near = difflib.get_close_matches(given.lower(), names, n=2, cutoff=0.4)
    hint = f" (did you mean {' or '.join(near)}?)" if near else ""
    return (
        f"there is no space named {given!r}{hint}; shipped are {', '.join(names)}; a file of your "
        "own is given as a path, for example ./mine.toml"
    )


def parse_space(text: str, source: str, *, kept: bool = False) -> SearchSpace:
    """Read a space from TOML text.

    Args:
        text: the TOML document; its form stands in `search_spaces.space_form`.
        source: what error messages call the text, usually its path.
        kept: whether a run kept it, see `search_spaces.space_form.space_from_source`.

    Raises:
        SpaceFileError: naming source, line and key, what was found and what is allowed.
    """
    return space_from_source(TomlSource.parse(text, source), kept=kept)


def dump_space(space: SearchSpace) -> str:
    """The space as TOML; `parse_space` of it gives an equal space with the same digest."""
    header = {
        "name": space.name,
        "task": space.task,
        "description": space.description,
        "parent_digest": space.parent_digest,
    }
    document: dict[str, Any] = {
        "space": {key: value for key, value in header.items() if value},
        "model": model_table(space.model),
    }
    for stack in space.stacks:
        document[stack] = _stack_table(space, stack)
    free = {"data": space.data, "workload": space.workload, "presets": space.presets}
    document |= {key: _plain(table) for key, table in free.items() if table}
    import tomli_w  # only writing needs it

    return tomli_w.dumps(document)


def model_table(model: ModelSettings, every: bool = False) -> dict[str, Any]:
    """The ``[model]`` table of a space file, as `space_form.model_from_source` reads it.

    Args:
        model: the settings.
        every: name every setting, as programs that know no defaults need them.
    """
    stated = asdict(model) if every else model.stated()
    values = {key: value for key, value in stated.items() if value is not None}
    kind = "image" if isinstance(model.input, ImageInput) else "tokens"
    inputs = {key: value for key, value in values.pop("input").items() if value is not None}
    return {**values, "input": {"kind": kind, **inputs}}


def _stack_table(space: SearchSpace, stack: str) -> dict[str, Any]:
    """Each gene with all choices of any layer; below it the layers that offer fewer."""
    layers = space.layer_columns[stack]
    whole = [space.slots[column] for column in space.stack_columns[stack]]
    table: dict[str, Any] = {slot.gene: list(slot.choices) for slot in whole}
    if len(layers) != space.max_layers(stack):
        table["max_layers"] = len(layers)
    slots = [space.slots[column] for columns in layers for column in columns]
    for gene in dict.fromkeys(slot.gene for slot in slots):
        table[gene] = _union([slot for slot in slots if slot.gene == gene])
    narrower: dict[str, dict[str, list[Choice]]] = {}
    for slot in slots:
        if list(slot.choices) != table[slot.gene]:
            narrower.setdefault(str(slot.layer), {})[slot.gene] = list(slot.choices)
    return {**table, "layer": narrower} if narrower else table


def _union(slots: list[Slot]) -> list[Choice]:
    choices = {choice for slot in slots for choice in slot.choices}
    if slots[0].gene.endswith("attention"):
        return sorted(choices, key=lambda kind: kind_order(str(kind)))
    return sorted(choices, key=int)


def _plain(table: Mapping[str, Any]) -> dict[str, Any]:
    """Mappings of any kind as dicts, which is what the TOML writer takes."""
    return {k: _plain(v) if isinstance(v, Mapping) else v for k, v in table.items()}
