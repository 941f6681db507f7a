"""The choices for each gene, and arithmetic on them.

A space is a list of *slots*: ``encoder.embed_dim``, ``encoder.num_layers``, and for every layer
``encoder.0.attention``, ``encoder.0.num_heads`` … Each slot has a tuple of choices. A *genotype*
is one row of choice indices, one per slot, with 0 in the slots of layers that are not there, so
that equal networks are equal rows. Search code works on genotype matrices ``(N, S)``; everything
else works on `Architecture`.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from search_spaces.architecture import (
    SKIP,
    Architecture,
    DecoderLayer,
    DecoderStack,
    EncoderLayer,
    EncoderStack,
)
from search_spaces.errors import ArchitectureError, SpaceFileError
from search_spaces.genotypes import Genotypes as Genotypes
from search_spaces.genotypes import GenotypeSpace
from search_spaces.settings import ModelSettings
from search_spaces.tasks import TaskName
from search_spaces.toml.source import shown

Choice = int | str

STACK_GENES = ("embed_dim", "num_layers")
MEMORY_GENE = "memory_length"  # a gene of the whole decoder, which a language space may leave out
ENCODER_LAYER_GENES = ("attention", "num_heads", "ffn_dim")
DECODER_LAYER_GENES = ("self_attention", "self_num_heads", "ffn_dim")
CROSS_GENES = ("cross_attention", "cross_num_heads", "ende_connect")
# Which a space may leave out; None is as many as heads.
KV_GENES = {"num_kv_heads": "num_heads", "self_num_kv_heads": "self_num_heads"}
LAYER_GENES = {
    "encoder": (*ENCODER_LAYER_GENES, "num_kv_heads"),
    "decoder": (*DECODER_LAYER_GENES, *CROSS_GENES, "self_num_kv_heads"),
}


@dataclass(frozen=True, slots=True)
class Slot:
    """One place of a genotype.

    Attributes:
        stack: ``encoder`` or ``decoder``.
        gene: name of the gene, for example ``ffn_dim``.
        layer: layer number from 0, or None for a gene of the whole stack.
        choices: allowed values; sizes ascending, so that index 0 is the smallest.
    """

    stack: str
    gene: str
    layer: int | None
    choices: tuple[Choice, ...]

    @property
    def name(self) -> str:
        """``encoder.2.ffn_dim``, or ``encoder.embed_dim`` for a stack gene."""
        parts = (
            [self.stack, self.gene]
            if self.layer is None
            else [self.stack, str(self.layer), self.gene]
        )
        return ".".join(parts)

    @property
    def gene_name(self) -> str:
        """``encoder.ffn_dim``: the name shared by the slots of all layers."""
        return f"{self.stack}.{self.gene}"

    @property
    def ordered(self) -> bool:
        """Whether the choices are sizes, not kinds of attention."""
        return not self.gene.endswith("attention")


class Headless(NamedTuple):
    """A layer that may have no attention, and then has no heads.

    Attributes:
        kind: column of its kind of attention.
        skip: number of the choice that is none.
        heads: columns of the genes that are then not there.
    """

    kind: int
    skip: int
    heads: tuple[int, ...]

    def skips(self, genotypes: Genotypes) -> NDArray[np.bool_]:
        """True where a row's layer has no attention, ``(N,)``."""
        found: NDArray[np.bool_] = genotypes[:, self.kind] == self.skip
        return found


@dataclass(frozen=True)
class SearchSpace(GenotypeSpace):
    """A set of architectures: the choices for each slot plus the settings all of them share.

    Attributes:
        name: short name, for messages and files.
        task: what its networks do.
        model: the settings that are not searched.
        slots: in canonical order: encoder before decoder, stack genes before layers.
        description: one sentence.
        data: default data set and what it needs, see `search_spaces.data_keys`; read by the task.
        workload: default timing workload (free keys, read by `latency`).
        presets: per preset, numbers that override the defaults of `nas.request.spec`.
        parent_digest: digest of the space this one was cut from, or None.
    """

    name: str
    task: TaskName
    model: ModelSettings
    slots: tuple[Slot, ...]
    description: str = ""
    data: Mapping[str, Any] = field(default_factory=dict, compare=False)
    workload: Mapping[str, Any] = field(default_factory=dict, compare=False)
    presets: Mapping[str, Mapping[str, Any]] = field(default_factory=dict, compare=False)
    parent_digest: str | None = None

    def network(self, data: Any) -> Architecture:
        """See `GenotypeSpace.network`."""
        return Architecture.from_json(data)

    @cached_property
    def digest(self) -> str:
        """sha256 over everything that decides which networks the space holds."""
        content = {
            "name": self.name,
            "task": self.task,
            "model": self.model.stated(),
            "slots": [[slot.name, list(slot.choices)] for slot in self.slots],
            "parent": self.parent_digest,
        }
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

    @property
    def stacks(self) -> tuple[str, ...]:
        """``("encoder",)``, ``("decoder",)`` or both, in that order."""
        return tuple(dict.fromkeys(slot.stack for slot in self.slots))

    def slot(self, name: str) -> Slot:
        """The slot of that name."""
        return self.slots[self.slot_index[name]]

    def max_layers(self, stack: str) -> int:
        """The largest number of layers the space allows in that stack."""
        return max(int(choice) for choice in self.slot(f"{stack}.num_layers").choices)

    @cached_property
    def stack_columns(self) -> dict[str, list[int]]:
        """For each stack the genotype columns of `STACK_GENES` and, if it is there, the memory."""
        columns: dict[str, list[int]] = {stack: [] for stack in self.stacks}
        for column, slot in enumerate(self.slots):
            if slot.layer is None:
                columns[slot.stack].append(column)
        return columns

    @cached_property
    def layer_columns(self) -> dict[str, list[list[int]]]:
        """For each stack, for each layer from 0, the genotype columns of its genes."""
        columns: dict[str, list[list[int]]] = {stack: [] for stack in self.stacks}
        for column, slot in enumerate(self.slots):
            if slot.layer is not None:
                layers = columns[slot.stack]
                if slot.layer == len(layers):
                    layers.append([])
                layers[slot.layer].append(column)
        return columns

    @cached_property
    def kind_columns(self) -> dict[str, list[int]]:
        """For each stack, for each layer from 0, the column of the kind of its self-attention."""
        kinds = ENCODER_LAYER_GENES[0], DECODER_LAYER_GENES[0]
        return {
            stack: [next(c for c in columns if self.slots[c].gene in kinds) for columns in layers]
            for stack, layers in self.layer_columns.items()
        }

    @cached_property
    def headless(self) -> tuple[Headless, ...]:
        """The layers that may have no attention."""
        found = []
        for column, slot in enumerate(self.slots):
            if slot.gene.endswith("attention") and SKIP in slot.choices:
                own = slot.name.removesuffix("attention")
                names = (f"{own}num_heads", f"{own}num_kv_heads")
                heads = tuple(self.slot_index[name] for name in names if name in self.slot_index)
                found.append(Headless(column, slot.choices.index(SKIP), heads))
        return tuple(found)

    # -- size ---------------------------------------------------------------------------------

    @cached_property
    def size(self) -> int:
        """Exact number of distinct architectures."""
        return math.prod(self._stack_size(stack) for stack in self.stacks)

    def _stack_size(self, stack: str) -> int:
        depths = {int(depth) for depth in self.slot(f"{stack}.num_layers").choices}
        total, deep = 0, 1
        for depth, columns in enumerate(self.layer_columns[stack][: max(depths)], start=1):
            deep *= self._layer_size(columns)
            total += deep if depth in depths else 0
        whole = [self.slots[column] for column in self.stack_columns[stack]]
        return total * math.prod(len(slot.choices) for slot in whole if slot.gene != "num_layers")

    def _layer_size(self, columns: Sequence[int]) -> int:
        sizes = {column: len(self.slots[column].choices) for column in columns}
        with_heads, without = math.prod(sizes.values()), 0
        for layer in self.headless:
            if layer.kind in sizes:
                rest = math.prod(n for column, n in sizes.items() if column not in layer.heads)
                without = rest // sizes[layer.kind]
                with_heads -= with_heads // sizes[layer.kind]
        return with_heads + without

    # -- genotypes ----------------------------------------------------------------------------

    def depths(self, genotypes: Genotypes, stack: str) -> NDArray[np.int64]:
        """Number of layers of each row, ``(N,)``."""
        column = self.slot_index[f"{stack}.num_layers"]
        values = np.array(self.slots[column].choices, dtype=np.int64)
        return values[genotypes[:, column]]

    def active(self, genotypes: Genotypes) -> NDArray[np.bool_]:
        """True where a slot belongs to a layer that is there and to what it has, ``(N, S)``."""
        mask = np.ones(genotypes.shape, dtype=np.bool_)
        for stack in self.stacks:
            depths = self.depths(genotypes, stack)
            for layer, columns in enumerate(self.layer_columns[stack]):
                mask[:, columns] = (depths > layer)[:, None]
        for without in self.headless:
            mask[:, without.heads] &= ~without.skips(genotypes)[:, None]
        return mask

    @property
    def deciding_columns(self) -> Sequence[int]:
        """See `GenotypeSpace.deciding_columns`: depths, and kinds of attention that may be none.

        Layers that a cut space has no longer decide nothing.
        """
        depths = [self.slot_index[f"{stack}.num_layers"] for stack in self.stacks]
        kinds = [self.slots[layer.kind] for layer in self.headless]
        there = [slot for slot in kinds if (slot.layer or 0) < self.max_layers(slot.stack)]
        return [*depths, *(self.slot_index[slot.name] for slot in there)]

    def completed(self, genotype: Genotypes) -> Genotypes:
        """The row with the last layer's genes in every layer behind it.

        Where such a layer does not offer a gene's value, its first choice stands there. A layer
        without attention gets the most heads.
        """
        out = genotype.copy()
        for without in self.headless:
            for column in without.heads if without.skips(out)[0] else ():
                out[0, column] = len(self.slots[column].choices) - 1
        for stack in self.stacks:
            depth = int(self.depths(genotype, stack)[0])
            layers = self.layer_columns[stack]
            for columns in layers[depth:]:
                for source, column in zip(layers[depth - 1], columns, strict=True):
                    value = self.slots[source].choices[out[0, source]]
                    offered = self.slots[column].choices
                    out[0, column] = offered.index(value) if value in offered else 0
        return out

    def decode(self, genotypes: Genotypes) -> list[Architecture]:
        """Genotype rows ``(N, S)`` → architectures."""
        return [self._decode_row(row) for row in genotypes.tolist()]

    def encode(self, architectures: Iterable[Architecture]) -> Genotypes:
        """Architectures → canonical genotype rows ``(N, S)``.

        Raises:
            ArchitectureError: for an architecture outside the space, naming the gene.
        """
        rows = [self._encode_one(architecture) for architecture in architectures]
        return np.array(rows, dtype=np.int16).reshape(len(rows), len(self.slots))

    # -- cutting ------------------------------------------------------------------------------

    def restrict(self, choices: Mapping[str, Sequence[Choice]]) -> Self:
        """A smaller space that keeps only the given choices of the named slots or genes.

        Args:
            choices: slot name (``encoder.2.ffn_dim``) or gene name (``encoder.ffn_dim``, all
                layers) → the choices to keep, each one of the present choices.

        Returns:
            A space with this one's digest as its parent. Its columns are this one's columns, also
        where a smaller `num_layers` leaves the deepest layers without use.

        Raises:
            SpaceFileError: for an unknown name, an unknown choice, or when nothing would be left.
        """
        known = set(self.slot_index) | {slot.gene_name for slot in self.slots}
        for name in choices:
            if name not in known:
                raise SpaceFileError(f"the space {self.name} has no gene {name!r}")
        slots = tuple(self._restricted(slot, choices) for slot in self.slots)
        return replace(self, slots=slots, parent_digest=self.digest)

    def _restricted(self, slot: Slot, choices: Mapping[str, Sequence[Choice]]) -> Slot:
        for name in (slot.gene_name, slot.name):
            if name in choices:
                wanted = set(choices[name])
                kept = tuple(choice for choice in slot.choices if choice in wanted)
                if not kept or not wanted <= set(slot.choices):
                    raise SpaceFileError(
                        f"{slot.name} can only be restricted to some of "
                        f"{list(slot.choices)}; given {shown(list(choices[name]))}"
                    )
                slot = replace(slot, choices=kept)
        return slot

    # -- one row ------------------------------------------------------------------------------

    def _decode_row(self, row: Sequence[int]) -> Architecture:
        stacks: dict[str, Any] = {}
        for stack in self.stacks:
            genes: dict[str, Any] = self._genes(row, self.stack_columns[stack])
            layers = self._layers(stack, row, genes.pop("num_layers"))
            kind = EncoderStack if stack == "encoder" else DecoderStack
            stacks[stack] = kind(layers=layers, **genes)
        return Architecture(**stacks)

    def _genes(self, row: Sequence[int], columns: Iterable[int]) -> dict[str, Choice]:
        return {self.slots[c].gene: self.slots[c].choices[row[c]] for c in columns}

    def _layers(self, stack: str, row: Sequence[int], depth: int) -> tuple[Any, ...]:
        layers = []
        for columns in self.layer_columns[stack][:depth]:
            key = (stack, columns[0], tuple(row[column] for column in columns))
            layer = self._layer_cache.get(key)
            if layer is None:
                genes = self._genes(row, columns)
                layer = EncoderLayer(**genes) if stack == "encoder" else DecoderLayer(**genes)  # type: ignore[arg-type]
                self._layer_cache[key] = layer
            layers.append(layer)
        return tuple(layers)

    @cached_property
    def _layer_cache(self) -> dict[Any, Any]:
        return {}

    def _encode_one(self, architecture: Architecture) -> list[int]:
        present = tuple(n for n in ("encoder", "decoder") if getattr(architecture, n) is not None)
        if present != self.stacks:
            raise ArchitectureError(
                f"the space {self.name} has {' and '.join(self.stacks)}; "
                f"the architecture has {' and '.join(present)}"
            )
        self._check_kv_heads(architecture)
        memory = architecture.decoder.memory_length if architecture.decoder else 0
        if memory and f"decoder.{MEMORY_GENE}" not in self.slot_index:
            raise ArchitectureError(
                f"decoder.{MEMORY_GENE} is {memory}; the space {self.name} has no memory"
            )
        return [self._index(slot, architecture) for slot in self.slots]

    def _check_kv_heads(self, architecture: Architecture) -> None:
        """Refuse heads of keys and values of their own where the space has no gene for them."""
        for stack in self.stacks:
            gene = "num_kv_heads" if stack == "encoder" else "self_num_kv_heads"
            if f"{stack}.0.{gene}" in self.slot_index:
                continue
            for number, layer in enumerate(getattr(architecture, stack).layers):
                if (value := getattr(layer, gene)) is not None:
                    raise ArchitectureError(
                        f"{stack}.{number}.{gene} is {value}; in the space {self.name} there are "
                        "as many heads of keys and values as heads"
                    )

    def _index(self, slot: Slot, architecture: Architecture) -> int:
        stack = getattr(architecture, slot.stack)
        if slot.layer is None:
            value = len(stack.layers) if slot.gene == "num_layers" else getattr(stack, slot.gene)
        elif slot.layer >= len(stack.layers):
            return 0
        else:
            layer = stack.layers[slot.layer]
            heads = KV_GENES.get(slot.gene, slot.gene)
            kind = heads.replace("num_heads", "attention")
            if kind != heads and getattr(layer, kind) == SKIP:
                return 0
            value = getattr(layer, slot.gene)
            if value is None and slot.gene in KV_GENES:
                value = getattr(layer, KV_GENES[slot.gene])
        if value not in slot.choices:
            raise ArchitectureError(
                f"{slot.name} is {value!r}; the space {self.name} allows {list(slot.choices)}"
            )
        return slot.choices.index(value)
