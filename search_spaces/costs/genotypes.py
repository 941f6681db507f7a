"""Parameters and floating-point operations of whole genotype matrices.

Evolution prices thousands of networks at once. A network's cost is a sum over its layers, and a
population has few distinct layers, so each distinct layer is priced once and looked up for the
rest. The prices are those of `search_spaces.costs`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from search_spaces.architecture import DecoderLayer, EncoderLayer
from search_spaces.costs.model import CostModel, Totals, cost_model
from search_spaces.costs.states import Allocator, layer_state_bytes
from search_spaces.space import MEMORY_GENE, Genotypes, SearchSpace

Integers = NDArray[np.int64]


def genotype_totals(
    space: SearchSpace,
    genotypes: Genotypes,
    convention: str = "true",
    source_length: int | None = None,
    target_length: int | None = None,
) -> tuple[Integers, Integers]:
    """Parameters ``(N,)`` and operations ``(N,)`` of genotype rows ``(N, S)``.

    Each distinct layer is priced once, whatever the number of rows. Arguments and errors as for
    `search_spaces.costs.cost`; row by row the numbers are those of `search_spaces.costs.totals`.
    """
    model = cost_model(space.model, space.task, convention, source_length, target_length)
    dims = np.zeros((len(genotypes), 2), dtype=np.int64)
    for stack in space.stacks:
        column = space.slot_index[f"{stack}.embed_dim"]
        choices = np.array(space.slots[column].choices, dtype=np.int64)
        dims[:, ("encoder", "decoder").index(stack)] = choices[genotypes[:, column]]
    sums = _priced(dims, lambda row: model.ends(*row))
    memory = _memory_lengths(space, genotypes)
    for stack in space.stacks:
        depths = space.depths(genotypes, stack)
        spans = _spans(space, genotypes, stack)
        for number, columns in enumerate(space.layer_columns[stack]):
            whole = np.column_stack((dims, spans[:, number], memory))
            rows = np.column_stack((whole, genotypes[:, columns])).astype(np.int64)
            there = depths > number
            sums[there] += _priced(rows[there], _layer_price(space, model, stack, columns))
    return sums[:, 0], sums[:, 1]


def genotype_state_bytes(
    space: SearchSpace,
    genotypes: Genotypes,
    context: int,
    dtype_bytes: int = 4,
    allocator: Allocator = "live",
    source_length: int | None = None,
) -> Integers:
    """Bytes of the state of one sequence of genotype rows ``(N, S)``: ``(N,)``.

    A network with a memory of earlier segments keeps its positions besides the `context`.
    Arguments and errors are those of `search_spaces.costs.states.layer_state_bytes`. Each distinct
    layer is priced once, whatever the number of rows.
    """
    total = np.zeros(len(genotypes), dtype=np.int64)
    depths, spans = space.depths(genotypes, "decoder"), _spans(space, genotypes, "decoder")
    memory = _memory_lengths(space, genotypes)
    given = dtype_bytes, allocator, source_length
    for number, columns in enumerate(space.layer_columns["decoder"]):
        names = tuple(space.slots[column].gene for column in columns)
        choices = [space.slots[column].choices for column in columns]

        def price(
            row: list[int],
            names: tuple[str, ...] = names,
            choices: list[tuple[Any, ...]] = choices,
        ) -> tuple[int]:
            span, remembered, *indices = row
            genes = tuple(offered[index] for offered, index in zip(choices, indices, strict=True))
            layer = _decoder_layer(names, genes)
            return (layer_state_bytes(space.model, layer, span, context + remembered, *given),)

        rows = np.column_stack((spans[:, number], memory, genotypes[:, columns])).astype(np.int64)
        there = depths > number
        total[there] += _priced(rows[there], price, 1)[:, 0]
    return total


def _memory_lengths(space: SearchSpace, genotypes: Genotypes) -> Integers:
    """Remembered positions of every row ``(N,)``; 0 in spaces without a memory."""
    column = space.slot_index.get(f"decoder.{MEMORY_GENE}")
    if column is None:
        return np.zeros(len(genotypes), dtype=np.int64)
    return np.array(space.slots[column].choices, dtype=np.int64)[genotypes[:, column]]


def _spans(space: SearchSpace, genotypes: Genotypes, stack: str) -> Integers:
    """`omni_spans` of every row at once, ``(N, layers)``."""
    kinds = space.kind_columns[stack]
    spans = np.ones((len(genotypes), len(kinds)), dtype=np.int64)
    previous = np.zeros(len(genotypes), dtype=np.int64)
    for number, column in enumerate(kinds, start=1):
        choices = np.array([choice == "omni" for choice in space.slots[column].choices])
        omni = choices[genotypes[:, column]]
        spans[omni, number - 1] = np.minimum(space.model.omni_span, number - previous[omni])
        previous[omni] = number
    return spans


def _layer_price(
    space: SearchSpace, model: CostModel, stack: str, columns: list[int]
) -> Callable[[list[int]], Totals]:
    names = tuple(space.slots[column].gene for column in columns)
    choices = [space.slots[column].choices for column in columns]

    def price(row: list[int]) -> Totals:
        encoder_dim, decoder_dim, span, memory, *indices = row
        genes = tuple(offered[index] for offered, index in zip(choices, indices, strict=True))
        if stack == "encoder":
            return model.encoder_layer(encoder_dim, _encoder_layer(names, genes), span)
        layer = _decoder_layer(names, genes)
        return model.decoder_layer(decoder_dim, encoder_dim, layer, span, memory)

    return price


# Building a layer checks it, which takes longer than looking up its price.
@lru_cache(maxsize=65_536)
def _encoder_layer(names: tuple[str, ...], genes: tuple[Any, ...]) -> EncoderLayer:
    return EncoderLayer(**dict(zip(names, genes, strict=True)))


@lru_cache(maxsize=65_536)
def _decoder_layer(names: tuple[str, ...], genes: tuple[Any, ...]) -> DecoderLayer:
    return DecoderLayer(**dict(zip(names, genes, strict=True)))


def _priced(
    rows: Integers, price: Callable[[list[int]], Sequence[int]], numbers: int = 2
) -> Integers:
    """``price`` of every row ``(N, K)``, asked once for each distinct row; ``(N, numbers)``."""
    if not len(rows):
        return np.zeros((0, numbers), dtype=np.int64)
    code = np.ravel_multi_index(tuple(rows.T), tuple(rows.max(axis=0) + 1))
    _, first, inverse = np.unique(code, return_index=True, return_inverse=True)
    prices = [price(row) for row in rows[first].tolist()]
    return np.array(prices, dtype=np.int64)[inverse]
