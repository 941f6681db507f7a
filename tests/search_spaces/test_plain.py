"""The plain networks of a space, and the space of a single network."""

from __future__ import annotations

import numpy as np
import pytest

from nas.objectives.size import network_costs
from search_spaces import plain
from search_spaces.architecture import Architecture
from search_spaces.loading import load_space, parse_space
from search_spaces.plain import alone, plain_rows
from search_spaces.space import SearchSpace
from search_spaces.variation import enumerate_all, sample_distinct
from tests.support.pipeline_cases import TINY, edited


def is_plain(network: Architecture) -> bool:
    """The slow twin: every layer is softmax and like the first."""
    for stack in (network.encoder, network.decoder):
        if stack is None:
            continue
        kinds = {
            getattr(layer, gene, None)
            for layer in stack.layers
            for gene in ("attention", "self_attention", "cross_attention")
        }
        if kinds - {None} != {"softmax"} or len(set(stack.layers)) > 1:
            return False
    crossed = network.decoder.layers if network.decoder and network.encoder else ()
    return all(layer.ende_connect == 1 for layer in crossed)


@pytest.mark.parametrize(
    "text",
    [
        TINY,
        edited(('attention = ["softmax", "linear", "omni"]', 'attention = ["linear"]')),
        TINY + '\n[encoder.layer.1]\nattention = ["omni"]\n',
    ],
    ids=["all", "none", "one layer only"],
)
def test_they_are_those_of_a_listing(text: str) -> None:
    space = parse_space(text, "mine.toml")
    listed = {one.id for one in space.decode(enumerate_all(space)) if is_plain(one)}
    found = [one.id for one in space.decode(plain_rows(space))]
    assert set(found) == listed and len(found) == len(listed)


def test_both_stacks_and_a_few_of_very_many(monkeypatch: pytest.MonkeyPatch) -> None:
    space = load_space("multi30k")
    rows = plain_rows(space)
    assert len(rows) == 3 * 4 * 2 * 3 * 3 * 4 * 2 * 3 * 2
    assert all(map(is_plain, space.decode(rows[:: len(rows) // 50])))
    most = network_costs(space, rows).max(axis=0)
    monkeypatch.setattr(plain, "MOST_LISTED", 100)
    few = plain_rows(space)
    assert 1 < len(few) <= 100
    assert (network_costs(space, few).max(axis=0) == most).all()


@pytest.mark.parametrize("name", ["digits", "multi30k", "wikitext103-xl", "lm-small"])
def test_a_network_alone_costs_what_it_costs_among_others(name: str) -> None:
    space: SearchSpace = load_space(name)
    rows = sample_distinct(space, np.random.default_rng(1), 3)
    for row, network in zip(rows, space.decode(rows), strict=True):
        single = alone(space, network)
        assert single.size == 1
        own = network_costs(single, single.encode([network]))
        assert (own == network_costs(space, row[None])).all()


def test_sizes_that_no_space_offers_can_be_counted() -> None:
    space = load_space("digits")
    (network,) = space.decode(plain_rows(space)[-1:])
    data = network.to_json()
    data["encoder"]["layers"][0]["ffn_dim"] -= 1
    odd = Architecture.from_json(data)
    assert not space.contains(odd)
    (params, flops), (fewer, less) = (
        network_costs(one, one.encode([each]))[0]
        for each in (network, odd)
        for one in (alone(space, each),)
    )
    assert fewer == params - (2 * 48 + 1) and less < flops
