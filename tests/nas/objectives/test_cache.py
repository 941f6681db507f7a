"""The cache that a search limits: the bytes of live states, and published numbers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from nas.objectives import OBJECTIVES, counted
from search_spaces.architecture import Architecture
from search_spaces.attention import OPERATORS, operator_of
from search_spaces.costs.genotypes import genotype_state_bytes
from search_spaces.costs.states import layer_state_bytes
from search_spaces.loading import load_space, parse_space
from search_spaces.space import SearchSpace
from search_spaces.variation import sample_distinct
from supernet.attention.kernels import KERNELS
from supernet.building import build_network
from supernet.plan import decoder_of, decoder_spans

GIB = 2**30
SPACE = """\
[space]
name = "cached"
task = "language_modelling"

[model]
max_length = 64
head_dim = 4
positions = "none"
{settings}

[model.input]
kind = "tokens"
vocab_size = 11

[decoder]
embed_dim = [8]
num_layers = [1, 2]
self_attention = [{kinds}]
self_num_heads = [2, 4]
self_num_kv_heads = [1, 2]
ffn_dim = [6]

[workload]
batch = 3
source = 30
"""
# Operator → how a space has its layers compute it: kind, and lines of [model].
WAYS = {name: (f"linear:{name}", "") for name in OPERATORS} | {
    "softmax": ("softmax", ""),
    "relative": ("softmax", "relative_positions = 3"),
    "window": ("window:5", ""),
    "performer": ("omni", 'omni_kernel = "performer"'),
    "bigbird": ("omni", 'omni_kernel = "bigbird"'),
}


def space_of(kinds: str = '"softmax"', settings: str = "") -> SearchSpace:
    """A decoder-only space; workloads of it have a batch of 3."""
    return parse_space(SPACE.format(kinds=kinds, settings=settings), "cached.toml")


def cache_mb(space: SearchSpace, **workload: Any) -> float:
    """The objective, of the first network of a space."""
    space = replace(space, workload={**space.workload, **workload})
    rows = np.zeros((1, len(space.slots)), dtype=np.int16)
    return float(counted(space, rows, ["kv_cache_mb"])["kv_cache_mb"][0])


@pytest.mark.parametrize("length", [1, 2, 7, 40])
@pytest.mark.parametrize(
    "name", sorted(n for n in OPERATORS.keys() & KERNELS.keys() if OPERATORS[n].causal)
)
def test_it_is_the_bytes_of_the_live_state(name: str, length: int) -> None:
    kind, settings = WAYS[name]
    space = space_of(f'"{kind}"', settings)
    assert operator_of(space.model, kind, "decoder").name == name
    rows = sample_distinct(space, np.random.default_rng(length), 12)
    counts = genotype_state_bytes(space, rows, length)
    for architecture, count in zip(space.decode(rows), counts.tolist(), strict=True):
        network = build_network(space.model, space.task, architecture).eval()
        with torch.inference_mode():
            state = network.step(torch.ones(1, length, dtype=torch.long), network.start())[1]
        live = [part for layer in state.states for part in layer]
        assert count == sum(part.numel() * part.element_size() for part in live)


def test_prefilling_says_what_stepping_says() -> None:
    space = space_of('"softmax", "linear:norm"')
    (architecture,) = space.decode(sample_distinct(space, np.random.default_rng(3), 1))
    network = build_network(space.model, space.task, architecture).eval()
    tokens_BN = torch.randint(1, 11, (2, 9))
    with torch.inference_mode():
        logits_BNV, after = network.step(tokens_BN, network.start())
        last_B1V, filled = network.prefill(tokens_BN, network.start())
    torch.testing.assert_close(last_B1V, logits_BNV[:, -1:], rtol=1e-5, atol=1e-6)
    assert filled.position == after.position == 9


def state_bytes(space: SearchSpace, network: Architecture, context: int, *given: Any) -> int:
    """The state of one network, layer by layer."""
    decoder = decoder_of(network)
    layers = zip(decoder.layers, decoder_spans(space.model, decoder), strict=True)
    return sum(layer_state_bytes(space.model, *one, context, *given) for one in layers)


@pytest.mark.parametrize("name", ["wikitext103-xl", "wmt14"])
def test_rows_count_like_their_networks(name: str) -> None:
    space = load_space(name)
    rows = sample_distinct(space, np.random.default_rng(0), 50)
    networks = space.decode(rows)
    for allocator in ("live", "paged"):
        counts = genotype_state_bytes(space, rows, 21, 2, allocator, 30)  # type: ignore[arg-type]
        memories = [one.decoder.memory_length for one in networks if one.decoder is not None]
        assert counts.tolist() == [
            state_bytes(space, one, 21 + memory, 2, allocator, 30)
            for one, memory in zip(networks, memories, strict=True)
        ]


def test_the_workload_decides() -> None:
    space = space_of()
    alone = cache_mb(space, batch=1, context=8)
    assert alone == 2 * 8 * 4 * 4 / 1e6  # keys and values of one head of 4, 8 positions, fp32
    assert cache_mb(space, batch=4, context=8) == 4 * alone
    assert cache_mb(space, batch=1, context=8, dtype="bfloat16") == alone / 2
    assert cache_mb(space, batch=1) == pytest.approx(alone * 30 / 8)  # the source's length
    assert cache_mb(space, batch=1, context=8, allocator="paged") == 2 * alone  # a page of 16


def test_only_windows_are_reserved_in_full_by_pages() -> None:
    window, linear = space_of('"window:5"'), space_of('"linear:norm"')
    live = cache_mb(window, context=32)
    assert live == cache_mb(window, context=8) == cache_mb(space_of(), context=5)
    paged = cache_mb(window, context=32, allocator="paged")
    assert paged == cache_mb(space_of(), context=32)
    assert cache_mb(linear, context=32, allocator="paged") == cache_mb(linear, context=32)


GPT_OSS = """\
[space]
name = "gpt-oss"
task = "language_modelling"

[model]
max_length = 131072
head_dim = 64
positions = "rotary"

[model.input]
kind = "tokens"
vocab_size = 32

[decoder]
embed_dim = [2880]
num_layers = [{layers}]
self_attention = ["softmax", "window:128"]
self_num_heads = [64]
self_num_kv_heads = [8]
ffn_dim = [2880]
{windows}
[workload]
source = {context}
batch = {batch}
dtype = "bfloat16"
"""


def gpt_oss(layers: int, context: int, batch: int, windows: bool = False) -> SearchSpace:
    """Its caches; every other layer has a window where there are any."""
    kinds = ["softmax" if number % 2 or not windows else "window:128" for number in range(layers)]
    own = "".join(
        f'[decoder.layer.{number}]\nself_attention = ["{kind}"]\n'
        for number, kind in enumerate(kinds)
    )
    text = GPT_OSS.format(layers=layers, windows=own, context=context, batch=batch)
    return parse_space(text, "gpt-oss.toml")


def test_a_published_number_of_bytes_a_token() -> None:
    assert cache_mb(gpt_oss(36, 1, 1)) * 1e6 == 73_728
    assert cache_mb(gpt_oss(36, 78_384, 1)) * 1e6 / GIB == pytest.approx(5.38, abs=0.005)


def test_published_numbers_of_two_allocators() -> None:
    space = gpt_oss(24, 8192, 32, windows=True)
    assert cache_mb(space) * 1e6 / GIB == pytest.approx(6.09, abs=0.005)
    assert cache_mb(space, allocator="paged") * 1e6 / GIB == 12.0


def test_the_least_of_a_space_is_found() -> None:
    """Few heads are not the least where sums grow with the square of a head's width."""
    space = replace(load_space("wmt14"), workload={"batch": 1, "source": 30, "target": 30})
    cache = OBJECTIVES["kv_cache_mb"]
    assert cache.count is not None and cache.ends is not None
    least = cache.count(space, cache.ends(space)).min()
    rows = sample_distinct(space, np.random.default_rng(1), 2000)
    assert least <= cache.count(space, rows).min()


def test_networks_that_write_nothing_have_none() -> None:
    problem = OBJECTIVES["kv_cache_mb"].problem
    assert "classify" in str(problem(load_space("digits"))) and problem(space_of()) is None
