"""Networks as rows of numbers, for rankers and latency predictors.

Every layer keeps its own columns (which layer is linear matters), sizes stay in physical units,
and sums over layers and products with the width are added because cost grows with them.

Genes of one's own (`search_spaces.genes`) have sums, counts and products of the same kinds.

Encode in the coordinates of the root space: translate the rows of a pruned space first
(`SearchSpace.translate`), so that one ranker understands both.

N: networks; F: features; L: layers the stack can have.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from search_spaces.architecture import SKIP
from search_spaces.genes import Gene, GeneSpace
from search_spaces.genotypes import Genotypes, GenotypeSpace
from search_spaces.space import KV_GENES, LAYER_GENES, MEMORY_GENE, SearchSpace, Slot

MOST_MULTIPLIED = 64  # columns of genes of one's own that are multiplied with each other
ItemT = TypeVar("ItemT")
Vector = NDArray[np.float64]
Column = tuple[str, Vector]


@lru_cache(maxsize=64)
def _names(space: GenotypeSpace) -> tuple[str, ...]:
    return tuple(name for name, _ in _columns(space, _no_rows(space)))


def _no_rows(space: GenotypeSpace) -> Genotypes:
    return np.zeros((0, len(space.slots)), dtype=np.int16)


def feature_names(space: GenotypeSpace) -> list[str]:
    """Names of the columns of `encode_features`, layers counted from 0.

    ============================================  ==============================================
    ``encoder.embed_dim``, ``encoder.num_layers``  the stack's own genes
    ``encoder.2.attention=linear``                 1 where layer 2 is there and linear, else 0
    ``encoder.2.ffn_dim``                          0 where layer 2 is not there
    ``encoder.2.num_heads``                        0 where it has no attention besides
    ``encoder.sum.ffn_dim``, ``encoder.mean.…``    over the layers that are there
    ``encoder.count.attention=linear``             number of such layers
    ``encoder.place.attention=linear``             mean place of such layers, last layer 1, none 0
    ``encoder.sum.num_heads.attention=linear``     heads in such layers
    ``encoder.embed_dim*sum.ffn_dim`` …            products that cost is made of
    ``encoder.embed_dim*decoder.num_layers``       cross-attention's keys and values
    ``decoder.memory_length`` …                    alone, times the layers and times all heads
    ``dropout``, ``norm=rms``                      a gene of one's own; 0 where it is not there
    ``ratio.2``, ``norm.2=rms``                    in layer 2
    ``sum.ratio``, ``count.norm=rms``              over the layers that are there
    ``embed_dim*sum.ratio`` …                      products of two sizes, counts and sums, where
                                                   these are at most `MOST_MULTIPLIED`
    ============================================  ==============================================
    """
    return list(_names(space))


def encode_features(space: GenotypeSpace, genotypes: Genotypes) -> NDArray[np.float64]:
    """Encode canonical genotype rows.

    A gene with a single choice gets no column of its own in that layer (whether the layer is
    there shows in ``num_layers``), but takes part in the sums.

    Args:
        space: the space whose columns the rows have; the root space for pruned ones.
        genotypes: ``(N, S)`` canonical rows.

    Returns:
        ``(N, F)`` float64 in column-major order, columns as in `feature_names`; F is 0 for a space
        of genes that holds one network.
    """
    columns = [values for _, values in _columns(space, genotypes)]
    return np.array(columns, dtype=np.float64).reshape(len(columns), len(genotypes)).T


def cost_terms(space: GenotypeSpace) -> tuple[tuple[int, ...], ...]:
    """What a network's time is a sum of: products of columns of `encode_features`.

    Sizes of the whole network, their squares and products of two; the layers, and sums and counts
    over them, alone and times each of these. From few timings these tell more than columns of
    single layers do (experiments/LOG.md, 2026-11-24).

    Returns:
        For each term the columns to be multiplied, a square's column twice.
    """
    names = feature_names(space)
    if isinstance(space, GeneSpace):
        depths = {gene.per_layer for gene in space.genes}
        whole = {gene.name for gene in space.genes if gene.per_layer is None} - depths
        flags = {gene.name for gene in space.genes if not gene.ordered or gene.choices == (0, 1)}
        columns = [name for name, _ in _gene_columns(space, _no_rows(space))[0]]
        sizes = [name for name in columns if name.partition("=")[0] in whole]
        sums = [name for name in columns if name not in sizes]
        squares = [name for name in sizes if name.partition("=")[0] not in flags]
        return tuple(_terms(names, sizes, sums, squares))
    assert isinstance(space, SearchSpace)
    found: list[tuple[int, ...]] = []
    for stack in space.stacks:
        starts = (f"{stack}.num_layers", f"{stack}.sum.", f"{stack}.count.")
        sums = [name for name in names if name.startswith(starts)]
        width = [f"{stack}.embed_dim"]
        found += _terms(names, width, sums, width)
    others = (f"decoder.{MEMORY_GENE}", "encoder.embed_dim*decoder.")
    return (*found, *((i,) for i, name in enumerate(names) if name.startswith(others)))


def _terms(
    names: Sequence[str], sizes: Sequence[str], sums: Sequence[str], squares: Sequence[str]
) -> Iterator[tuple[int, ...]]:
    place = {name: number for number, name in enumerate(names)}
    pairs = [*combinations(_few(sizes), 2), *((name, name) for name in _few(squares))]
    factors = [(), *((name,) for name in _few(sizes)), *pairs]
    alone = [(name,) for name in sizes] + pairs
    for factor in [*alone, *((name, *factor) for name in sums for factor in factors)]:
        yield tuple(place[name] for name in factor)


@dataclass(frozen=True)
class _Stack:
    """One stack of the rows being encoded."""

    name: str
    embed: Vector
    depth: NDArray[np.int64]


def _columns(space: GenotypeSpace, genotypes: Genotypes) -> Iterator[Column]:
    if isinstance(space, GeneSpace):
        for columns in _gene_columns(space, genotypes):
            yield from columns
        return
    assert isinstance(space, SearchSpace)
    columns_SN = np.ascontiguousarray(genotypes.T)
    stacks = [_stack(space, name, genotypes) for name in space.stacks]
    for stack in stacks:
        yield from _stack_columns(space, stack, columns_SN)
        yield from _memory_columns(space, stack, columns_SN)
    if len(stacks) == 2:
        encoder, decoder = stacks
        yield "encoder.embed_dim*decoder.num_layers", encoder.embed * decoder.depth


def _memory_columns(
    space: SearchSpace, stack: _Stack, columns_SN: NDArray[np.int16]
) -> Iterator[Column]:
    """A memory adds keys to every layer: its cost grows with the width of all their heads."""
    column = space.slot_index.get(f"{stack.name}.{MEMORY_GENE}")
    if column is None:
        return
    lengths = np.array(space.slots[column].choices, dtype=np.float64)[columns_SN[column]]
    slots = [slot for slot in space.slots if slot.gene == "self_num_heads"]
    indices_LN = columns_SN[[space.slot_index[slot.name] for slot in slots]]
    yield f"{stack.name}.{MEMORY_GENE}", lengths
    yield f"{stack.name}.{MEMORY_GENE}*num_layers", lengths * stack.depth
    heads = _sum(_sizes(slots, indices_LN, stack))
    yield f"{stack.name}.{MEMORY_GENE}*sum.self_num_heads", lengths * heads


def _stack(space: SearchSpace, name: str, genotypes: Genotypes) -> _Stack:
    column = space.slot_index[f"{name}.embed_dim"]
    sizes = np.array(space.slots[column].choices, dtype=np.float64)
    return _Stack(name, sizes[genotypes[:, column]], space.depths(genotypes, name))


def _stack_columns(
    space: SearchSpace, stack: _Stack, columns_SN: NDArray[np.int16]
) -> Iterator[Column]:
    yield f"{stack.name}.embed_dim", stack.embed
    yield f"{stack.name}.num_layers", stack.depth.astype(np.float64)
    yield f"{stack.name}.embed_dim*num_layers", stack.embed * stack.depth
    kinds: dict[str, dict[str, list[Vector]]] = {}
    for gene in LAYER_GENES[stack.name]:
        slots = [slot for slot in space.slots if slot.gene_name == f"{stack.name}.{gene}"]
        if not slots:
            continue  # a decoder-only space has no cross-attention genes
        indices_LN = columns_SN[[space.slot_index[slot.name] for slot in slots]]
        if gene.endswith("attention"):
            kinds[gene] = _one_hot(slots, indices_LN, stack)
            yield from _kind_columns(gene, slots, kinds[gene], stack)
        else:
            sizes = _sizes(slots, indices_LN, stack)
            if gene.endswith("_heads"):
                attention = KV_GENES.get(gene, gene).replace("num_heads", "attention")
                sizes = _with_attention(sizes, kinds[attention])
            yield from _size_columns(gene, slots, sizes, stack)
            if gene.endswith("num_heads"):
                attention = gene.replace("num_heads", "attention")
                yield from _heads_by_kind(gene, attention, sizes, kinds[attention], stack)


def _one_hot(
    slots: list[Slot], indices_LN: NDArray[np.int16], stack: _Stack
) -> dict[str, list[Vector]]:
    """Kind → for each layer 1.0 where that layer is there and of that kind."""
    result: dict[str, list[Vector]] = {}
    for kind in dict.fromkeys(str(choice) for slot in slots for choice in slot.choices):
        result[kind] = []
        for layer, slot in enumerate(slots):
            number = slot.choices.index(kind) if kind in slot.choices else -1
            is_kind = (indices_LN[layer] == number) & (stack.depth > layer)
            result[kind].append(is_kind.astype(np.float64))
    return result


def _sizes(slots: list[Slot], indices_LN: NDArray[np.int16], stack: _Stack) -> list[Vector]:
    """For each layer the size, 0 where the layer is not there."""
    values = [
        np.array(slot.choices, dtype=np.float64)[indices]
        for slot, indices in zip(slots, indices_LN, strict=True)
    ]
    return [value * (stack.depth > layer) for layer, value in enumerate(values)]


def _with_attention(sizes: list[Vector], kinds: dict[str, list[Vector]]) -> list[Vector]:
    """Heads of each layer, 0 where it has no attention."""
    if SKIP not in kinds:
        return sizes
    return [size * (1 - skips) for size, skips in zip(sizes, kinds[SKIP], strict=True)]


def _kind_columns(
    gene: str, slots: list[Slot], kinds: dict[str, list[Vector]], stack: _Stack
) -> Iterator[Column]:
    for layer, slot in enumerate(slots):
        if len(slot.choices) > 1:
            for kind in slot.choices:
                yield f"{slot.name}={kind}", kinds[str(kind)][layer]
    if len(kinds) < 2:
        return
    for kind, layers in kinds.items():
        count = _sum(layers)
        places = _sum([is_kind * (layer + 1) for layer, is_kind in enumerate(layers)])
        yield f"{stack.name}.count.{gene}={kind}", count
        yield (
            f"{stack.name}.place.{gene}={kind}",
            places / (np.maximum(count, 1) * stack.depth),
        )


def _size_columns(
    gene: str, slots: list[Slot], sizes: list[Vector], stack: _Stack
) -> Iterator[Column]:
    for slot, values in zip(slots, sizes, strict=True):
        if len(slot.choices) > 1:
            yield slot.name, values
    total = _sum(sizes)
    yield f"{stack.name}.sum.{gene}", total
    yield f"{stack.name}.mean.{gene}", total / stack.depth
    yield f"{stack.name}.embed_dim*sum.{gene}", stack.embed * total


def _heads_by_kind(
    gene: str,
    attention: str,
    sizes: list[Vector],
    kinds: dict[str, list[Vector]],
    stack: _Stack,
) -> Iterator[Column]:
    if len(kinds) < 2:
        return
    for kind, layers in kinds.items():
        if kind == SKIP:
            continue
        heads = _sum([size * is_kind for size, is_kind in zip(sizes, layers, strict=True)])
        yield f"{stack.name}.sum.{gene}.{attention}={kind}", heads


def _sum(layers: list[Vector]) -> Vector:
    total = layers[0].copy()
    for values in layers[1:]:
        total += values
    return total


def _gene_columns(
    space: GeneSpace, genotypes: Genotypes
) -> tuple[list[Column], list[Column], list[Column]]:
    """Sizes of the whole network, sums and counts over layers; each times each; single layers."""
    there_NS = space.active(genotypes)
    whole: list[Column] = []
    layers: list[Column] = []
    for gene in space.genes:
        columns = space.columns[gene.name]
        for name, values_NL in _gene_values(gene, genotypes[:, columns], there_NS[:, columns]):
            if gene.per_layer is None:
                whole.append((name, values_NL[:, 0]))
                continue
            stem, _, choice = name.partition("=")
            for layer, values in enumerate(values_NL.T):
                layers.append((f"{stem}.{layer}" + (f"={choice}" if choice else ""), values))
            whole.append((f"{'count' if choice else 'sum'}.{name}", values_NL.sum(axis=1)))
    products = [
        (f"{one}*{other}", values * others)
        for (one, values), (other, others) in combinations(_few(whole), 2)
        if one.partition("=")[0] != other.partition("=")[0]
    ]
    return whole, products, layers


def _few(columns: Sequence[ItemT]) -> Sequence[ItemT]:
    """The columns whose products are columns too: of very many there would be too many."""
    return columns if len(columns) <= MOST_MULTIPLIED else []


def _gene_values(
    gene: Gene, indices_NL: NDArray[np.int16], there_NL: NDArray[np.bool_]
) -> Iterator[tuple[str, Vector]]:
    """A gene's sizes, or for each of its categories where it stands, ``(N, L)``; else 0."""
    if len(gene.choices) == 1 and gene.per_layer is None and not gene.when:
        return  # says the same of all networks
    if gene.ordered:
        yield gene.name, np.array(gene.choices, dtype=np.float64)[indices_NL] * there_NL
        return
    # Of two categories that are always there, one says all.
    choices = gene.choices[1:] if not gene.when and gene.per_layer is None else gene.choices
    for choice in choices:
        is_it = (indices_NL == gene.choices.index(choice)) & there_NL
        yield f"{gene.name}={choice}", is_it.astype(np.float64)
