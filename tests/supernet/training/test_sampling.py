"""Which networks train: fair decks, sandwich ends, determinism, going on from update n."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import get_args

import numpy as np
import pytest

from search_spaces.architecture import Architecture
from search_spaces.space import SearchSpace
from search_spaces.variation import largest, smallest
from supernet.plan import encoder_of
from supernet.training.sampling import (
    FairSampler,
    SandwichSampler,
    SingleNetwork,
    UniformSampler,
    build_sampler,
)
from supernet.training_settings import ENDS, Sampling, TrainingSettings
from tests.support.supernet_cases import IMAGES, KINDS, OFFERED, network, space_of

SPACE = space_of(IMAGES, KINDS)
STRATEGIES: tuple[Sampling, ...] = get_args(Sampling)
each_strategy = pytest.mark.parametrize("sampling", STRATEGIES)


def draws(sampling: Sampling, seed: int, updates: int, num_random: int = 2) -> list[Architecture]:
    settings = TrainingSettings(sampling=sampling, num_random=num_random)
    sampler = build_sampler(SPACE, settings, seed)
    return [network for _ in range(updates) for network in sampler.draw()]


def sizes(architecture: Architecture) -> list[tuple[int, ...]]:
    """All genes but the attention kinds."""
    encoder = encoder_of(architecture)
    layers = [(layer.num_heads, layer.ffn_dim) for layer in encoder.layers]
    return [(encoder.embed_dim, len(encoder.layers)), *layers]


def counts(space: SearchSpace, networks: list[Architecture]) -> dict[str, list[int]]:
    """How often each choice of each slot was drawn in a layer that is there."""
    rows = space.encode(networks)
    active = space.active(rows)
    return {
        slot.name: np.bincount(
            rows[active[:, column], column], minlength=len(slot.choices)
        ).tolist()
        for column, slot in enumerate(space.slots)
    }


@each_strategy
def test_all_draws_belong_to_the_space(sampling: Sampling) -> None:
    drawn = draws(sampling, 0, 20)
    assert all(SPACE.contains(one) for one in drawn)
    assert len(drawn) == 20 * (2 + ENDS[sampling])
    assert len({one.id for one in drawn}) > 20


@each_strategy
def test_the_seed_decides_everything(sampling: Sampling) -> None:
    assert draws(sampling, 3, 10) == draws(sampling, 3, 10)
    assert draws(sampling, 3, 10) != draws(sampling, 4, 10)


@each_strategy
def test_drawing_n_times_is_going_on_from_update_n(sampling: Sampling) -> None:
    settings = TrainingSettings(sampling=sampling)
    first, second = (build_sampler(SPACE, settings, seed=5) for _ in range(2))
    undisturbed = [first.draw() for _ in range(12)]
    for _ in range(7):
        second.draw()
    assert [second.draw() for _ in range(5)] == undisturbed[7:]
    assert second.draw() != undisturbed[11]


@pytest.mark.parametrize("updates", [1, 5, 37, 100])
def test_fair_choices_differ_by_one_at_most(updates: int) -> None:
    sampler = FairSampler(SPACE, num_random=1, seed=0)
    found = counts(SPACE, [sampler.draw()[0] for _ in range(updates)])
    assert all(max(row) - min(row) <= 1 for row in found.values())
    assert sum(found["encoder.embed_dim"]) == updates


def test_fair_decks_hold_in_a_cut_space() -> None:
    """There a layer may offer fewer choices than its neighbours, or be there only sometimes."""
    space = SPACE.restrict({"encoder.1.num_heads": [2], "encoder.3.attention": ["linear", "omni"]})
    sampler = FairSampler(space, num_random=3, seed=1)
    networks = [one for _ in range(30) for one in sampler.draw()]
    found = counts(space, networks)
    assert all(max(row) - min(row) <= 1 for row in found.values())
    assert sum(found["encoder.3.attention"]) == found["encoder.num_layers"][2] == 30


def test_fair_heads_are_dealt_where_there_is_attention() -> None:
    space = space_of(IMAGES, OFFERED)
    sampler = FairSampler(space, num_random=1, seed=2)
    rows = space.encode(sampler.draw()[0] for _ in range(97))
    active = space.active(rows)
    for column in range(len(space.slots)):
        counts = np.bincount(rows[active[:, column], column], minlength=space.num_choices[column])
        assert max(counts) - min(counts) <= 1
    heads = space.slot_index["encoder.0.num_heads"]
    assert 97 * 0.7 < active[:, heads].sum() < 97 * 0.8


def test_uniform_choices_are_not_strictly_fair() -> None:
    found = counts(SPACE, draws("uniform", 0, 100))
    assert any(max(row) - min(row) > 1 for row in found.values())
    assert all(min(row) > 0.5 * sum(row) / len(row) for row in found.values())


def test_fair_decks_are_shuffled() -> None:
    sampler = FairSampler(SPACE, num_random=1, seed=0)
    drawn = [encoder_of(sampler.draw()[0]).embed_dim for _ in range(60)]
    decks = {tuple(drawn[i : i + 3]) for i in range(0, 60, 3)}
    assert len(decks) > 3 and all(sorted(deck) == [8, 12, 16] for deck in decks)


def test_sandwich_ends_are_the_extreme_sizes_with_any_kinds() -> None:
    largest_sizes, smallest_sizes = (
        sizes(SPACE.decode(end)[0]) for end in (largest(SPACE), smallest(SPACE))
    )
    sampler = SandwichSampler(SPACE, num_random=2, seed=0)
    updates = [sampler.draw() for _ in range(60)]
    assert all(sizes(update[0]) == largest_sizes for update in updates)
    assert all(sizes(update[-1]) == smallest_sizes for update in updates)
    assert any(sizes(update[1]) not in (largest_sizes, smallest_sizes) for update in updates)
    for end in (0, -1):
        kinds = Counter(encoder_of(update[end]).layers[0].attention for update in updates)
        assert set(kinds) == set(KINDS) and min(kinds.values()) >= 10


@pytest.mark.parametrize("num_random", [1, 3])
def test_as_many_random_networks_as_asked_for(num_random: int) -> None:
    assert len(draws("uniform", 0, 1, num_random)) == num_random
    assert len(draws("fair", 0, 1, num_random)) == num_random
    assert len(draws("sandwich", 0, 1, num_random)) == num_random + 2
    assert len(draws("largest", 0, 1, num_random)) == num_random + 1


def test_without_the_smallest_the_rest_is_the_sandwich() -> None:
    assert draws("largest", 0, 1) == draws("sandwich", 0, 1)[:-1]


def test_training_from_scratch_has_one_network() -> None:
    one = network("omni")
    sampler = SingleNetwork(one)
    assert sampler.draw() == sampler.draw() == [one]


@pytest.mark.parametrize(
    ("sampling", "kind"),
    [
        ("uniform", UniformSampler),
        ("sandwich", SandwichSampler),
        ("largest", SandwichSampler),
        ("fair", FairSampler),
    ],
)
def test_settings_name_the_sampler(sampling: Sampling, kind: type) -> None:
    settings = replace(TrainingSettings(), sampling=sampling)
    assert type(build_sampler(SPACE, settings, 0)) is kind
