"""Spaces of anybody's genes: names, choices, and which of them are there.

A space whose networks are not this project's names its own genes, as TOML::

    [space]
    name = "gpt"

    [genes.embed_dim]
    integer = [192, 384, 768]

    [genes.num_layers]
    integer = { from = 10, to = 12 }

    [genes.mlp_ratio]
    integer = [2, 3, 4]
    per_layer = "num_layers"

    [genes.dropout]
    real = { from = 0.0, to = 0.3, step = 0.1 }

    [genes.norm]
    category = ["layer", "rms"]

    [genes.eps]
    real = [1e-6, 1e-5]
    when = { norm = ["rms"] }

A gene has integers or reals, which have an order, or categories, which have none. One with
`per_layer` stands in every layer; the gene it names is their number. One with `when` is there only
where each gene that is named has one of the values given; these stand before it in the file.

A network is a mapping from the name of each gene that is there to its value, of a gene in every
layer to the list of its values. As a value it is a `GeneNetwork`, which has an id as well.

Shapes: N networks, S positions.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from search_spaces.architecture import ID_LENGTH
from search_spaces.errors import ArchitectureError, SpaceFileError, UsageError
from search_spaces.genotypes import MAX_CHOICES, Genotypes, GenotypeSpace
from search_spaces.toml.source import TomlSource, read_text, shown, unknown_name

Value = int | float | str
Network = Mapping[str, Any]

KINDS = ("integer", "real", "category")
MAX_SLOTS = 5000
MAX_DECIDING = 100_000
MOST_NETWORKS = 10**4000  # Python writes whole numbers of up to 4,300 digits
# A step of 0.1 is not a binary number; grids are rounded to so many decimals, or to half as many
# behind the first digit of a small step.
GRID_DIGITS = 12


@dataclass(frozen=True)
class Gene:
    """A gene.

    Attributes:
        name: of it.
        choices: its values; ascending where they are `ordered`, different in any case.
        ordered: False for categories.
        per_layer: name of the gene that is the number of layers, where it stands in every layer.
        when: gene → values; it is there only where all of them have one of these.
    """

    name: str
    choices: tuple[Value, ...]
    ordered: bool = True
    per_layer: str | None = None
    when: Mapping[str, tuple[Value, ...]] = field(default_factory=dict, hash=False)


class GeneNetwork(Mapping[str, Any]):
    """A network: gene → value. Equal to any mapping of the same genes to the same values."""

    def __init__(self, genes: Network) -> None:
        self._genes = dict(genes)

    def __getitem__(self, name: str) -> Any:
        return self._genes[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._genes)

    def __len__(self) -> int:
        return len(self._genes)

    def __hash__(self) -> int:
        return hash(self.id)

    @cached_property
    def id(self) -> str:
        """The first 12 letters of the sha256 of its JSON, genes in alphabetical order."""
        text = json.dumps(self.to_json(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:ID_LENGTH]

    @property
    def line(self) -> str:
        """The network in a line: ``embed_dim 192, ratio 2 4 4, norm rms``."""
        return ", ".join(f"{name} {_words(value)}" for name, value in self.items())

    def __repr__(self) -> str:
        return f"GeneNetwork({self.line})"

    def to_json(self) -> dict[str, Any]:
        """A plain copy, which can be changed and written as JSON."""
        return {
            name: list(value) if isinstance(value, list | tuple) else value
            for name, value in self.items()
        }

    @classmethod
    def from_json(cls, data: Any) -> GeneNetwork:
        """Read what `to_json` wrote.

        Raises:
            ArchitectureError: for anything but an object of numbers, texts and lists of these.
        """
        if not isinstance(data, Mapping) or not data:
            raise ArchitectureError(f"a network is an object of genes; found {shown(data)}")
        for name, value in data.items():
            parts = value if isinstance(value, list) else [value]
            if not all(part is None or _is_value(part) for part in parts):
                raise ArchitectureError(f"the gene {name} of a network is {shown(value)}")
        return cls(data)


def _words(value: Any) -> str:
    parts = value if isinstance(value, list | tuple) else [value]
    return " ".join("–" if part is None else str(part) for part in parts) or "–"


@dataclass(frozen=True)
class GeneSlot:
    """One place of a genotype: a gene, or a gene in one layer."""

    gene: Gene
    layer: int | None

    @property
    def name(self) -> str:
        """``mlp_ratio.2``, or ``embed_dim`` for a gene of the whole network."""
        return self.gene.name if self.layer is None else f"{self.gene.name}.{self.layer}"

    @property
    def gene_name(self) -> str:
        """The gene's."""
        return self.gene.name

    @property
    def choices(self) -> tuple[Value, ...]:
        """The gene's."""
        return self.gene.choices

    @property
    def ordered(self) -> bool:
        """The gene's."""
        return self.gene.ordered


@dataclass(frozen=True)
class GeneSpace(GenotypeSpace):
    """All networks of some genes.

    Attributes:
        name: for messages.
        genes: in order; what a gene depends on stands before it.
        description: one sentence.
        parent_digest: see `GenotypeSpace`.

    Raises:
        UsageError: for genes of one name, without a choice, or that depend on what is not there,
            and for too many of them or of their networks.
    """

    name: str
    genes: tuple[Gene, ...]
    description: str = ""
    parent_digest: str | None = field(default=None, compare=False)
    whole_genes = True

    def __post_init__(self) -> None:
        known: dict[str, Gene] = {}
        for gene in self.genes:
            problem = _problem(gene, known)
            if problem:
                raise UsageError(f"the gene {gene.name} of the space {self.name} {problem}")
            known[gene.name] = gene
        if not self.genes:
            raise UsageError(f"the space {self.name} has no gene: name at least one")
        if _product(gene for gene in self.genes if gene.name in self._deciding) > MAX_DECIDING:
            raise UsageError(
                f"in the space {self.name} more than {MAX_DECIDING} combinations of choices decide "
                "which other genes are there: let fewer decide"
            )
        if sum(map(self._count, self.genes)) > MAX_SLOTS:
            raise UsageError(
                f"the space {self.name} has more than {MAX_SLOTS} genes, those of layers counted "
                "in each: search fewer"
            )
        if self.size > MOST_NETWORKS:
            raise UsageError(
                f"the space {self.name} holds more than 10^{len(str(MOST_NETWORKS)) - 1} networks, "
                "more than can be written down: leave out genes, choices or layers"
            )

    def _count(self, gene: Gene) -> int:
        """How many positions a gene has."""
        if gene.per_layer is None:
            return 1
        return max(int(choice) for choice in self.gene(gene.per_layer).choices)

    def _layers_of(self, gene: Gene) -> Sequence[int | None]:
        return [None] if gene.per_layer is None else range(self._count(gene))

    @cached_property
    def digest(self) -> str:
        """See `GenotypeSpace.digest`."""
        return hashlib.sha256(dump_genes(self).encode()).hexdigest()

    def restrict(self, choices: Mapping[str, Sequence[Value]]) -> GeneSpace:
        """See `GenotypeSpace.restrict`; a gene keeps the same choices in all layers.

        Raises:
            UsageError: where it would not, or for a gene that decides which others are there.
        """
        genes = []
        for gene in self.genes:
            names = [self.slots[column].name for column in self.columns[gene.name]]
            offered = {tuple(choices.get(name, gene.choices)) for name in names}
            left = tuple(c for c in gene.choices if all(c in kept for kept in offered))
            if len(offered) > 1 or not left:
                raise UsageError(
                    f"the gene {gene.name} of the space {self.name} keeps the same choices in all "
                    "layers, at least one"
                )
            if gene.name in self._deciding and left != gene.choices:
                raise UsageError(
                    f"the gene {gene.name} of the space {self.name} decides which others are "
                    "there: it keeps all choices"
                )
            genes.append(replace(gene, choices=left))
        return replace(self, genes=tuple(genes), parent_digest=self.digest)

    def network(self, data: Any) -> GeneNetwork:
        """See `GenotypeSpace.network`."""
        return GeneNetwork.from_json(data)

    def gene(self, name: str) -> Gene:
        """The gene of that name."""
        return next(gene for gene in self.genes if gene.name == name)

    @cached_property
    def slots(self) -> tuple[GeneSlot, ...]:  # type: ignore[override]
        """The positions: genes in their order, those of layers one layer after the other."""
        return tuple(
            GeneSlot(gene, layer) for gene in self.genes for layer in self._layers_of(gene)
        )

    @cached_property
    def columns(self) -> dict[str, list[int]]:
        """Gene → its columns, one for each layer."""
        found: dict[str, list[int]] = {gene.name: [] for gene in self.genes}
        for column, slot in enumerate(self.slots):
            found[slot.gene.name].append(column)
        return found

    @cached_property
    def deciding_columns(self) -> Sequence[int]:
        """See `GenotypeSpace.deciding_columns`: numbers of layers, and what stands in a `when`."""
        return [
            column
            for gene in self.genes
            if gene.name in self._deciding
            for column in self.columns[gene.name]
        ]

    @cached_property
    def _deciding(self) -> set[str]:
        counts = {gene.per_layer for gene in self.genes if gene.per_layer}
        return counts | {name for gene in self.genes for name in gene.when}

    @cached_property
    def size(self) -> int:
        """See `GenotypeSpace.size`."""
        return sum(
            _product(gene for gene in whole if gene.name not in self._deciding)
            * self._layers(values)
            for values, whole in self._settled(
                [gene for gene in self.genes if gene.per_layer is None], {}
            )
        )

    def _layers(self, values: Mapping[str, Value]) -> int:
        """Number of ways to fill all layers of networks with these values of deciding genes."""
        total = 1
        for count in dict.fromkeys(gene.per_layer for gene in self.genes if gene.per_layer):
            genes = [gene for gene in self.genes if gene.per_layer == count]
            ways = sum(
                _product(gene for gene in there if gene.name not in self._deciding)
                for _, there in self._settled(genes, values)
            )
            total *= ways ** int(values.get(count, 0))
        return total

    def _settled(
        self, genes: Sequence[Gene], values: Mapping[str, Value]
    ) -> Iterator[tuple[dict[str, Value], list[Gene]]]:
        """Every combination of the deciding ones of some genes, and which genes are there."""
        deciding = [gene for gene in genes if gene.name in self._deciding]
        seen = set()
        for choice in itertools.product(*(gene.choices for gene in deciding)):
            drawn = dict(zip([gene.name for gene in deciding], choice, strict=True))
            now, there = dict(values), []
            for gene in genes:
                if all(now.get(name) in wanted for name, wanted in gene.when.items()):
                    there.append(gene)
                    if gene.name in drawn:
                        now[gene.name] = drawn[gene.name]
            key = tuple(sorted((name, now[name]) for name in drawn if name in now))
            if key not in seen:
                seen.add(key)
                yield now, there

    # -- genotypes ----------------------------------------------------------------------------

    def active(self, genotypes: Genotypes) -> NDArray[np.bool_]:
        """See `GenotypeSpace.active`."""
        mask = np.ones(genotypes.shape, dtype=np.bool_)
        for gene in self.genes:
            columns = list(self.columns[gene.name])  # one for each layer, or for the network
            if gene.per_layer is not None:
                (count,) = self.columns[gene.per_layer]
                depths = np.array(self.gene(gene.per_layer).choices, dtype=np.int64)
                deep = depths[genotypes[:, count], None] > np.arange(len(columns))
                mask[:, columns] &= deep & mask[:, count, None]
            for name, wanted in gene.when.items():
                decider = self.gene(name)
                decides = list(self.columns[name])  # of the same layers, or of the network
                good = np.isin(decider.choices, wanted)
                mask[:, columns] &= good[genotypes[:, decides]] & mask[:, decides]
        return mask

    def completed(self, genotype: Genotypes) -> Genotypes:
        """The row with the last layer's genes in every layer behind it; other genes their first."""
        out, there = genotype.copy(), self.active(genotype)[0]
        for gene in self.genes:
            for before, column in itertools.pairwise(self.columns[gene.name]):
                if not there[column]:
                    out[0, column] = out[0, before]
        return out

    def decode(self, genotypes: Genotypes) -> list[GeneNetwork]:
        """See `GenotypeSpace.decode`."""
        pairs = zip(genotypes.tolist(), self.active(genotypes), strict=True)
        return [GeneNetwork(self._network(*pair)) for pair in pairs]

    def _network(self, row: Sequence[int], there: NDArray[np.bool_]) -> dict[str, Any]:
        network: dict[str, Any] = {}
        for gene in self.genes:
            columns = self.columns[gene.name]
            values = [gene.choices[row[column]] if there[column] else None for column in columns]
            if gene.per_layer is not None:
                (count,) = self.columns[gene.per_layer]
                depth = int(self.slots[count].choices[row[count]]) if there[count] else 0
                network[gene.name] = values[:depth]
            elif values[0] is not None:
                network[gene.name] = values[0]
        return network

    def encode(self, architectures: Iterable[Network]) -> Genotypes:
        """See `GenotypeSpace.encode`."""
        rows = [self._row(network) for network in architectures]
        return np.array(rows, dtype=np.int16).reshape(len(rows), len(self.slots))

    def _row(self, network: Network) -> list[int]:
        for name in network:
            if name not in self.columns:
                raise ArchitectureError(f"{self.name}: {unknown_name(str(name), self.columns)}")
        row = np.zeros((1, len(self.slots)), dtype=np.int16)
        for gene in self.genes:
            given = network.get(gene.name)
            values = [given] if gene.per_layer is None else given
            if not isinstance(values, list | tuple):
                values = []
            for column, value in zip(self.columns[gene.name], values, strict=False):
                if value is not None:
                    row[0, column] = self._index(self.slots[column], value)
        found = self._network(row[0].tolist(), self.active(row)[0])
        for name in (*found, *network):
            said = network.get(name)
            said = list(said) if isinstance(said, list | tuple) else said
            if found.get(name) != said:
                raise ArchitectureError(
                    f"{name} is {shown(said)}; in the space {self.name} a network with these other "
                    f"genes has {'no such gene' if name not in found else f'{shown(found[name])}'}"
                    ", or as many values as layers"
                )
        return [int(index) for index in row[0]]

    def _index(self, slot: GeneSlot, value: object) -> int:
        if value not in slot.choices:
            raise ArchitectureError(
                f"{slot.name} is {shown(value)}; the space {self.name} allows {list(slot.choices)}"
            )
        return slot.choices.index(value)


def _product(genes: Iterable[Gene]) -> int:
    return math.prod(len(gene.choices) for gene in genes)


def _problem(gene: Gene, known: Mapping[str, Gene]) -> str | None:
    """What is wrong with a gene behind those that are known, or None."""
    if not gene.name or "." in gene.name:
        return "needs a name without dots"
    if gene.name in known:
        return "stands there twice"
    if not gene.choices or len(set(gene.choices)) < len(gene.choices):
        return f"needs different choices, at least one; given {list(gene.choices)}"
    if gene.ordered and list(gene.choices) != sorted(gene.choices):
        return f"needs its choices ascending; given {list(gene.choices)}"
    count = None if gene.per_layer is None else known.get(gene.per_layer)
    if gene.per_layer is not None and (
        count is None or count.per_layer or not all(_is_count(value) for value in count.choices)
    ):
        return (
            f"stands in layers that {gene.per_layer!r} should count: give the name of an earlier "
            "gene of integers of at least 0 that is not itself one of layers"
        )
    for name, values in gene.when.items():
        other = known.get(name)
        if other is None or not values or not set(values) <= set(other.choices):
            return (
                f"is there when {name!r} is one of {list(values)}: name an earlier gene and some "
                "of its choices"
            )
        if other.per_layer and other.per_layer != gene.per_layer:
            return f"depends on {name!r}, which stands in layers that it has not itself"
    return None


def _is_count(value: Value) -> bool:
    return isinstance(value, int) and value >= 0


# -- TOML -----------------------------------------------------------------------------------------


def load_genes(path: str | Path) -> GeneSpace:
    """Read a space of genes that is going to be searched from a TOML file.

    Raises:
        SpaceFileError: naming file, line and key, what was found and what is allowed.
    """
    return given_genes(read_text(Path(path)), str(path))


def given_genes(text: str, source: str) -> GeneSpace:
    """Read a space of genes that is going to be searched, whose name folders can begin with.

    Arguments as for `parse_genes`.

    Raises:
        SpaceFileError: as `load_genes`.
    """
    return genes_from_source(_source(text, source))


def genes_from_source(toml: TomlSource) -> GeneSpace:
    """The same of a document that is parsed already.

    Raises:
        SpaceFileError: as `load_genes`.
    """
    space = _space(toml)
    if "name" in toml.table(("space",), default={}):
        toml.check_name(space.name)
    return space


def parse_genes(text: str, source: str) -> GeneSpace:
    """Read a space of genes, whatever its name; see the module for its form.

    Args:
        text: the TOML document.
        source: what messages call it, usually its path.

    Raises:
        SpaceFileError: as `load_genes`.
    """
    return _space(_source(text, source))


def _source(text: str, source: str) -> TomlSource:
    return TomlSource.parse(text, source, "a table such as [genes.width] with integer = [16, 32]")


def _space(toml: TomlSource) -> GeneSpace:
    toml.check_keys((), ("space", "genes"), ("genes",))
    header = toml.table(("space",), default={})
    if header:
        toml.check_keys(("space",), ("name", "description"), ())
    for key in header:
        if not isinstance(header[key], str):
            raise toml.error(("space", key), f"found {shown(header[key])}, allowed is a text")
    genes: list[Gene] = []
    known: dict[str, Gene] = {}
    for name in toml.table(("genes",)):
        gene = _gene(toml, name)
        problem = _problem(gene, known)
        if problem:
            raise toml.error(("genes", name), f"this gene {problem}")
        genes.append(gene)
        known[name] = gene
    try:
        return GeneSpace(
            header.get("name", Path(toml.name).stem), tuple(genes), header.get("description", "")
        )
    except UsageError as error:
        raise SpaceFileError(f"{toml.name}: {error}") from None


def dump_genes(space: GeneSpace) -> str:
    """The space as TOML; `parse_genes` makes an equal one of it.

    Raises:
        UsageError: for a gene without an order whose choices are not texts, which TOML cannot tell.
    """
    lines = ["[space]", f"name = {_toml(space.name)}"]
    if space.description:
        lines.append(f"description = {_toml(space.description)}")
    for gene in space.genes:
        lines += ["", f"[genes.{_key(gene.name)}]", f"{_kind(gene)} = {_list(gene.choices)}"]
        if gene.per_layer is not None:
            lines.append(f"per_layer = {_toml(gene.per_layer)}")
        if gene.when:
            parts = [f"{_key(name)} = {_list(gene.when[name])}" for name in gene.when]
            lines.append(f"when = {{ {', '.join(parts)} }}")
    return "\n".join(lines) + "\n"


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _toml(name)


def _list(values: Sequence[Value]) -> str:
    return _toml(list(values))


def _toml(value: str | list[Value]) -> str:
    """A text or list as JSON that TOML reads: it knows no halves of characters, and no DEL."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _kind(gene: Gene) -> str:
    if not gene.ordered and all(isinstance(choice, str) for choice in gene.choices):
        return "category"
    if gene.ordered and all(isinstance(choice, int) for choice in gene.choices):
        return "integer"
    if gene.ordered and all(isinstance(choice, float) for choice in gene.choices):
        return "real"
    raise UsageError(
        f"the gene {gene.name} has the choices {list(gene.choices)}: give integers or floats with "
        "an order, or texts without"
    )


def _gene(toml: TomlSource, name: str) -> Gene:
    path = ("genes", name)
    toml.check_keys(path, (*KINDS, "per_layer", "when"), ())
    table = toml.table(path)
    kinds = [kind for kind in KINDS if kind in table]
    if len(kinds) != 1:
        raise toml.error(path, f"a gene has its choices under one of {', '.join(KINDS)}")
    (kind,) = kinds
    choices = _choices(toml, (*path, kind), table[kind], kind)
    per_layer = table.get("per_layer")
    if per_layer is not None and not isinstance(per_layer, str):
        raise toml.error(
            (*path, "per_layer"), f"found {shown(per_layer)}, allowed is a gene's name"
        )
    conditions = toml.table((*path, "when"), default={})
    when = {}
    for other, values in conditions.items():
        if not isinstance(values, list) or not all(_is_value(value) for value in values):
            raise toml.error((*path, "when", other), "allowed is a list of the gene's choices")
        when[other] = tuple(values)
    return Gene(name, choices, kind != "category", per_layer, when)


def _choices(
    toml: TomlSource, path: tuple[str, ...], given: object, kind: str
) -> tuple[Value, ...]:
    values = _grid(toml, path, given, kind) if isinstance(given, Mapping) else given
    right = {"integer": (int,), "real": (int, float), "category": (str,)}[kind]
    if (
        not isinstance(values, list)
        or not 1 <= len(values) <= MAX_CHOICES
        or not all(isinstance(v, right) and _is_value(v) for v in values)
    ):
        grid = "" if kind == "category" else ", or a table with from, to and step"
        what = {"integer": "integers", "real": "finite numbers", "category": "texts"}[kind]
        raise toml.error(
            path, f"found {shown(given)}, allowed is a list of 1 to {MAX_CHOICES} {what}{grid}"
        )
    return tuple(float(value) for value in values) if kind == "real" else tuple(values)


def _grid(
    toml: TomlSource, path: tuple[str, ...], given: Mapping[str, Any], kind: str
) -> list[int | float] | None:
    """The numbers of ``{ from = …, to = …, step = … }``, the end included."""
    if kind == "category":
        return None
    toml.check_keys(path, ("from", "to", "step"), ("from", "to"))
    low, high, step = given["from"], given["to"], given.get("step", 1)
    right = int if kind == "integer" else (int, float)
    for key, value in (("from", low), ("to", high), ("step", step)):
        if not isinstance(value, right) or not _is_value(value):
            raise toml.error((*path, key), f"found {shown(value)}, allowed is a number")
    if not (low <= high and step > 0 and (high - low) / step < MAX_CHOICES):
        raise toml.error(
            path,
            f"found the grid from {low} to {high} by {step}, allowed is one that rises by a "
            f"positive step through at most {MAX_CHOICES} values",
        )
    count = math.floor((high - low) / step + 10.0**-9) + 1
    if kind == "integer":
        return [low + step * number for number in range(count)]
    decimals = max(GRID_DIGITS, GRID_DIGITS // 2 - math.floor(math.log10(step)))
    return [round(low + step * number, decimals) for number in range(count)]


def _is_value(value: object) -> bool:
    if isinstance(value, bool):
        return False
    return isinstance(value, str | int) or (isinstance(value, float) and math.isfinite(value))
