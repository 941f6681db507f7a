"""Operators: inside the space, canonical, repeatable, and doing what they are named after."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from search_spaces import load_space, variation
from search_spaces.architecture import EncoderLayer
from search_spaces.errors import UsageError
from search_spaces.space import Genotypes, SearchSpace, Slot
from search_spaces.variation import distinct, enumerate_all, neighbours, smallest
from tests.support.space_strategies import generator, settings_for, spaces

RATES = st.sampled_from([0.0, 0.1, 0.5, 1.0])


def assert_inside(space: SearchSpace, rows: Genotypes) -> None:
    assert rows.dtype == np.int16 and rows.shape[1:] == (len(space.slots),)
    assert (rows >= 0).all() and (rows < space.num_choices).all()
    assert np.array_equal(space.canonical(rows), rows)


@given(spaces(max_layers=3, most=3), RATES, st.integers(0, 99))
def test_everything_stays_inside(space: SearchSpace, rate: float, seed: int) -> None:
    rng = generator(seed)
    parents = variation.sample(space, rng, 30)
    mutants = variation.mutate(space, parents, rate, rng)
    children = variation.crossover(space, parents, mutants, rng)
    for rows in (parents, mutants, children, variation.neighbours(space, parents[0])):
        assert_inside(space, rows)
    for rows in (variation.smallest(space), variation.largest(space)):
        assert_inside(space, rows)
        assert len(rows) == 1


@given(spaces(max_layers=3, most=3), st.integers(0, 99))
def test_every_second_row_has_layers_alike(space: SearchSpace, seed: int) -> None:
    rows = variation.sample(space, generator(seed), 9)
    found = variation.half_alike(space, rows)
    assert_inside(space, found)
    assert np.array_equal(found[::2], rows[::2])
    active = space.active(found)
    for row, here in zip(found[1::2], active[1::2], strict=True):
        first: dict[str, object] = {}
        for slot, place, there in zip(space.slots, row, here, strict=True):
            like = first.setdefault(slot.gene_name, slot.choices[place])
            assert not there or slot.choices[place] == like or like not in slot.choices


def test_sums_over_layers_alike_are_spread_further() -> None:
    space, rng = load_space("digits"), generator(3)
    rows = variation.sample(space, rng, 4_000)
    columns = [n for n, slot in enumerate(space.slots) if slot.gene == "ffn_dim"]
    sums = variation.half_alike(space, rows)[:, columns].sum(axis=1)
    assert sums[1::2].std() > 1.2 * sums[::2].std()


@pytest.mark.parametrize("name", ["digits", "wmt14-hat", "wikitext103-xl"])
def test_ten_thousand_children_lie_in_the_space_and_have_canonical_ids(name: str) -> None:
    space, rng = load_space(name), generator(5)
    a, b = (variation.sample(space, rng, 5_000) for _ in range(2))
    mutants = variation.mutate(space, a[:2_500], 0.1, rng), variation.mutate(space, b, 1.0, rng)
    crossed = variation.crossover(space, a[:2_500], b[:2_500], rng)
    rows = np.concatenate([*mutants, variation.mutate(space, crossed, 0.3, rng)])
    assert len(rows) == 10_000
    assert_inside(space, rows)
    networks = space.decode(rows)
    assert np.array_equal(space.encode(networks), rows)
    # Equal rows are equal networks and the other way round: one id for each.
    assert len({network.id for network in networks}) == len(variation.distinct(rows))


@pytest.mark.parametrize("name", ["digits", "wmt14-hat", "wikitext103-xl"])
def test_children_in_a_cut_space_never_have_what_was_cut(name: str) -> None:
    space = load_space(name)
    names = [slot.name for slot in space.slots if len(slot.choices) > 1]
    smaller = space.restrict({slot: space.slot(slot).choices[1:] for slot in names})
    rng = generator(6)
    parents = variation.sample(smaller, rng, 10_000)
    children = variation.mutate(smaller, parents, 0.5, rng)
    gone = np.array([len(slot.choices) > 1 for slot in space.slots])
    for rows in (children, variation.crossover(smaller, parents, children, rng)):
        assert_inside(smaller, rows)
        root = smaller.translate(rows, space)
        assert (root[:, gone] > 0)[space.active(root)[:, gone]].all()


def test_the_same_seed_gives_the_same_rows() -> None:
    space = load_space("wmt14")
    first, again, other = (variation.sample(space, generator(s), 50) for s in (1, 1, 2))
    assert np.array_equal(first, again) and not np.array_equal(first, other)


def test_depths_and_choices_are_drawn_equally_often() -> None:
    space = load_space("digits")
    rows = variation.sample(space, generator(), 12_000)
    depth_counts = np.bincount(space.depths(rows, "encoder"))[1:]
    kinds = np.bincount(rows[:, space.slot_index["encoder.0.attention"]])
    assert np.allclose(depth_counts, 3000, atol=250) and np.allclose(kinds, 4000, atol=250)


def test_rate_zero_changes_nothing_and_rate_one_every_gene_with_a_choice() -> None:
    space = load_space("wmt14-hat")
    parents = variation.sample(space, generator(), 200)
    assert np.array_equal(variation.mutate(space, parents, 0.0, generator()), parents)
    mutants = variation.mutate(space, parents, 1.0, generator())
    both = space.active(parents) & space.active(mutants) & (space.num_choices > 1)
    assert (parents != mutants)[both].all()


def test_the_mutation_rate_is_the_share_of_changed_genes() -> None:
    space = load_space("digits")
    parents = np.repeat(variation.largest(space), 4000, axis=0)
    mutants = variation.mutate(space, parents, 0.3, generator())
    changed = (parents != mutants)[:, space.slot_index["encoder.0.ffn_dim"]]
    assert abs(changed.mean() - 0.3) < 0.03


def test_layers_that_appear_get_random_genes() -> None:
    space = load_space("digits")
    parents = np.repeat(variation.smallest(space), 4000, axis=0)
    mutants = variation.mutate(space, parents, 1.0, generator())
    deep = mutants[space.depths(mutants, "encoder") == 4]
    assert len(np.unique(deep[:, space.slot_index["encoder.3.ffn_dim"]])) == 5


@pytest.mark.parametrize("rate", [-0.1, 1.1, float("nan")])
def test_a_rate_that_is_no_probability_is_refused(rate: float) -> None:
    space = load_space("digits")
    with pytest.raises(UsageError, match="between 0 and 1"):
        variation.mutate(space, variation.smallest(space), rate, generator())


@given(spaces(max_layers=3, most=3), st.integers(0, 99))
def test_a_child_takes_every_gene_from_a_parent_that_has_it(space: SearchSpace, seed: int) -> None:
    a, b = (variation.sample(space, generator(seed + s), 20) for s in (0, 1))
    child = variation.crossover(space, a, b, generator(seed))
    from_a = (child == a) & space.active(a)
    from_b = (child == b) & space.active(b)
    assert (from_a | from_b)[space.active(child)].all()


def test_children_of_twins_are_twins_and_of_strangers_differ() -> None:
    space = load_space("digits")
    a, b = (variation.sample(space, generator(s), 100) for s in (1, 2))
    assert np.array_equal(variation.crossover(space, a, a, generator()), a)
    child = variation.crossover(space, a, b, generator())
    assert (child != a).any(axis=1).mean() > 0.9 and (child != b).any(axis=1).mean() > 0.9
    with pytest.raises(UsageError, match="in pairs"):
        variation.crossover(space, a, b[:5], generator())


def test_neighbours_are_all_networks_one_gene_away() -> None:
    space = load_space("digits")
    row = variation.largest(space)
    rows = variation.neighbours(space, row)
    kept = rows[space.depths(rows, "encoder") == 4]
    assert ((kept != row).sum(axis=1) == 1).all()
    others = {slot.name: len(slot.choices) - 1 for slot in space.slots}
    assert len(rows) == len(variation.distinct(rows)) == sum(others.values())


def test_a_neighbour_with_more_layers_repeats_the_last_one() -> None:
    space = load_space("digits").restrict({"encoder.3.ffn_dim": [8]})
    row = variation.sample(space, generator(3), 100)
    row = row[space.depths(row, "encoder") == 2][:1]
    deeper = space.decode(variation.neighbours(space, row))
    layers = next(a.encoder for a in deeper if a.encoder and len(a.encoder.layers) == 4).layers
    assert layers[2] == layers[1] and layers[3].attention == layers[1].attention
    assert layers[3].ffn_dim == 8


def test_a_memory_is_a_gene_like_any_other() -> None:
    space = load_space("wikitext103-xl")
    column = space.slot_index["decoder.memory_length"]
    ends = space.decode(np.concatenate([variation.smallest(space), variation.largest(space)]))
    assert [end.decoder.memory_length for end in ends if end.decoder] == [0, 256]
    rows = variation.sample(space, generator(), 300)
    mutants = variation.mutate(space, rows, 1.0, generator())
    assert (rows[:, column] != mutants[:, column]).all() and set(rows[:, column]) == {0, 1, 2}
    children = variation.crossover(space, rows, mutants, generator())[:, column]
    assert (children == rows[:, column]).any() and (children == mutants[:, column]).any()
    beside = variation.neighbours(space, rows[0])[:, column]
    assert sum(beside != rows[0, column]) == 2
    only = variation.neighbours(space, rows[0], "memory_length")
    assert len(only) == 2 and ((only != rows[0]).sum(axis=1) == 1).all()


def test_smallest_and_largest_bound_every_size() -> None:
    space = load_space("wmt14")
    small, large = (space.decode(f(space))[0] for f in (variation.smallest, variation.largest))
    assert small.encoder and small.decoder and large.decoder
    assert (small.encoder.embed_dim, len(small.decoder.layers)) == (768, 1)
    assert small.decoder.layers[0].cross_attention == "linear"
    last = large.decoder.layers[-1]
    assert (len(large.decoder.layers), last.ffn_dim, last.ende_connect) == (6, 5120, 3)
    assert last.self_attention == "softmax"


@given(spaces(max_layers=2, most=2).filter(lambda space: space.size <= 3000))
def test_enumeration_lists_every_network_once(space: SearchSpace) -> None:
    rows = variation.enumerate_all(space)
    assert_inside(space, rows)
    assert len(rows) == space.size == len({row.tobytes() for row in rows})


def test_a_space_too_large_to_list_is_refused() -> None:
    with pytest.raises(UsageError, match="more than the 1000 that may be listed"):
        variation.enumerate_all(load_space("digits"), 1000)


@given(spaces(max_layers=2, most=2), st.integers(0, 300))
def test_distinct_samples_are_distinct_and_as_many_as_there_are(space: SearchSpace, n: int) -> None:
    rows = variation.sample_distinct(space, generator(), n)
    assert_inside(space, rows)
    assert len(rows) == min(n, space.size) == len({row.tobytes() for row in rows})


def test_distinct_sampling_ends_when_a_space_keeps_repeating(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(variation, "MAX_ROUNDS", 2)
    space = load_space("digits")
    monkeypatch.setattr(variation, "sample", lambda *_: variation.smallest(space))
    with pytest.raises(UsageError, match="ask for at most 1"):
        variation.sample_distinct(space, generator(), 50)


def test_distinct_keeps_the_first_of_equal_rows_in_order() -> None:
    rows = np.array([[2, 1], [0, 3], [2, 1], [1, 1]], dtype=np.int16)
    assert variation.distinct(rows).tolist() == [[2, 1], [0, 3], [1, 1]]


def test_heads_of_layers_without_attention_are_not_there() -> None:
    slots = (
        Slot("encoder", "embed_dim", None, (8,)),
        Slot("encoder", "num_layers", None, (1, 2)),
        *(
            Slot("encoder", gene, layer, choices)
            for layer in range(2)
            for gene, choices in (
                ("attention", ("softmax", "linear", "skip")),
                ("num_heads", (1, 2, 4)),
                ("ffn_dim", (8, 16)),
            )
        ),
    )
    space = SearchSpace("small", "classification", settings_for("classification"), slots)
    layer = 2 * 3 * 2 + 2  # two kinds with heads, one without
    rows = enumerate_all(space)
    assert space.size == len(rows) == len(distinct(rows)) == layer + layer**2
    assert len({network.id for network in space.decode(rows)}) == len(rows)
    assert np.array_equal(space.encode(space.decode(rows)), rows)
    (lone,) = space.decode(smallest(space))
    assert lone.encoder is not None and lone.encoder.layers == (EncoderLayer("skip", 1, 8),)
    others = space.decode(neighbours(space, smallest(space), "attention"))
    found = [one.encoder.layers for one in others if one.encoder is not None]
    assert found == [(EncoderLayer(kind, 4, 8),) for kind in ("softmax", "linear")]


def test_layers_that_a_cut_space_has_no_longer_decide_nothing() -> None:
    """There are 3^24 ways to fill them, and a network has none of them."""
    genes = {"attention": ("softmax", "linear", "skip"), "num_heads": (1, 2), "ffn_dim": (8, 16)}
    slots = (
        Slot("encoder", "embed_dim", None, (8,)),
        Slot("encoder", "num_layers", None, (1, 2, 24)),
        *(Slot("encoder", gene, layer, genes[gene]) for layer in range(24) for gene in genes),
    )
    deep = SearchSpace("deep", "classification", settings_for("classification"), slots)
    assert len(deep.deciding_columns) == 1 + 24
    for depth in (1, 2):
        space = deep.restrict({"encoder.num_layers": [depth]})
        assert len(space.deciding_columns) == 1 + depth
        rows = enumerate_all(space)
        assert len(rows) == len(distinct(rows)) == space.size == (2 * 2 * 2 + 2) ** depth
