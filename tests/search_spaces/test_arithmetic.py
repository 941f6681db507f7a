"""SearchSpace: counting, genotypes, cutting, against enumeration by brute force."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given

from search_spaces import load_space
from search_spaces.architecture import Architecture
from search_spaces.errors import ArchitectureError, SpaceFileError
from search_spaces.space import SearchSpace
from search_spaces.variation import sample
from tests.support.space_strategies import generator, spaces


def _all_rows(space: SearchSpace) -> np.ndarray:
    ranges = [range(len(slot.choices)) for slot in space.slots]
    return np.array(list(itertools.product(*ranges)), dtype=np.int16)


@given(spaces(max_layers=2, most=2).filter(lambda space: np.prod(space.num_choices) <= 4096))
def test_size_counts_distinct_architectures(space: SearchSpace) -> None:
    assert space.size == len(set(space.decode(_all_rows(space))))


def test_size_is_exact_beyond_64_bits() -> None:
    layer, decoder_layer = 3 * 3 * 4, 3 * 3 * 4 * 3 * 3 * 3
    expected = 2 * layer**6 * 2 * sum(decoder_layer**depth for depth in range(1, 7))
    assert load_space("wmt14").size == expected


@given(spaces(max_layers=3, most=3))
def test_genotypes_and_architectures_are_the_same_thing(space: SearchSpace) -> None:
    genotypes = sample(space, generator(), 20)
    architectures = space.decode(genotypes)
    assert np.array_equal(space.encode(architectures), genotypes)
    assert all(space.contains(architecture) for architecture in architectures)
    assert np.array_equal(space.canonical(genotypes), genotypes)


def test_genes_of_missing_layers_do_not_matter() -> None:
    space = load_space("digits")
    row = sample(space, generator(), 1)
    row[0, space.slot_index["encoder.num_layers"]] = 0
    other = row.copy()
    other[0, space.slot_index["encoder.3.ffn_dim"]] = 1
    assert space.decode(row) == space.decode(other)
    assert np.array_equal(space.canonical(row), space.canonical(other))


@given(spaces())
def test_restricting_keeps_the_columns_and_names_the_parent(space: SearchSpace) -> None:
    slot = space.slots[-1]
    cut = space.restrict({slot.name: slot.choices[:1]})
    assert [s.name for s in cut.slots] == [s.name for s in space.slots]
    assert cut.parent_digest == space.digest and cut.digest != space.digest
    assert cut.size <= space.size
    assert all(space.contains(a) for a in cut.decode(sample(cut, generator(), 10)))


def test_restricting_a_gene_cuts_every_layer_and_a_slot_only_one() -> None:
    space = load_space("digits")
    cut = space.restrict({"encoder.attention": ["omni"], "encoder.1.ffn_dim": [8, 64]})
    assert all(cut.slot(f"encoder.{layer}.attention").choices == ("omni",) for layer in range(4))
    assert cut.slot("encoder.1.ffn_dim").choices == (8, 64)
    assert cut.slot("encoder.0.ffn_dim").choices == space.slot("encoder.0.ffn_dim").choices


def test_translating_keeps_the_architectures() -> None:
    root = load_space("digits")
    cut = root.restrict({"encoder.ffn_dim": [16, 64], "encoder.num_layers": [2, 3]})
    rows = sample(cut, generator(), 50)
    assert root.decode(cut.translate(rows, root)) == cut.decode(rows)
    assert not np.array_equal(cut.translate(rows, root), rows)


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"encoder.colour": [1]}, "no gene 'encoder.colour'"),
        ({"encoder.9.ffn_dim": [8]}, "no gene"),
        ({"encoder.ffn_dim": [9]}, "only be restricted to some of"),
        ({"encoder.ffn_dim": []}, "only be restricted to some of"),
    ],
)
def test_restricting_to_nonsense_is_refused(choices: dict[str, list[int]], message: str) -> None:
    with pytest.raises(SpaceFileError, match=message):
        load_space("digits").restrict(choices)


def test_architectures_outside_are_refused_by_gene() -> None:
    space = load_space("digits")
    inside = space.decode(sample(space, generator(), 1))[0]
    data = inside.to_json()
    data["encoder"]["layers"][0]["ffn_dim"] = 9
    outside = Architecture.from_json(data)
    assert space.contains(inside) and not space.contains(outside)
    with pytest.raises(ArchitectureError, match=r"encoder\.0\.ffn_dim is 9; the space digits"):
        space.encode([outside])
    with pytest.raises(ArchitectureError, match="the space wmt14 has encoder and decoder"):
        load_space("wmt14").encode([inside])


def test_networks_with_a_memory_belong_to_spaces_with_one() -> None:
    space, plain = load_space("wikitext103-xl"), load_space("wikitext103")
    rows = sample(space, generator(), 30)
    for architecture in space.decode(rows):
        assert architecture.decoder is not None
        memory = architecture.decoder.memory_length
        assert space.contains(architecture) and plain.contains(architecture) is (memory == 0)
    with pytest.raises(ArchitectureError, match=r"memory_length is \d+; .*103 has no memory"):
        plain.encode(space.decode(rows))
    cut = space.restrict({"decoder.memory_length": [128]})
    with pytest.raises(ArchitectureError, match=r"memory_length is 0; .* allows \[128\]"):
        cut.encode(plain.decode(sample(plain, generator(), 1)))


def test_no_rows_are_fine() -> None:
    space = load_space("digits")
    assert space.encode([]).shape == (0, len(space.slots))
    assert space.decode(space.encode([])) == []
