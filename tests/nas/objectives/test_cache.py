"""The cache that a search limits: the bytes of live states, and published numbers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
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
from search_spaces.space import Genotypes, SearchSpace
from search_spaces.variation import sample_distinct
from supernet.attention.kernels import KERNELS
from supernet.blueprint import Blueprint
from supernet.building import build_network
from supernet.decoding_state import DecodingState
from supernet.export.standalone import as_module, modeling_source
from supernet.export.weights import plain_weights
from supernet.extraction import StandAlone
from supernet.plan import decoder_of, decoder_spans
from tests.support.memory_cases import memory_space, remembering

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
CROSSING = """\
[space]
name = "crossing"
task = "translation"

[model]
max_length = 64
head_dim = 4
bigbird_block = 2
positions = "none"
{settings}

[model.input]
kind = "tokens"
vocab_size = 11
share_embeddings = true

[encoder]
embed_dim = [8]
num_layers = [2]
attention = ["softmax"]
num_heads = [2]
ffn_dim = [6]

[decoder]
embed_dim = [8]
num_layers = [1, 2]
self_attention = ["linear:elu", "softmax"]
self_num_heads = [2]
self_num_kv_heads = [1, 2]
cross_attention = ["{kind}"]
cross_num_heads = [1, 2]
ende_connect = [1, 2]
ffn_dim = [6]
"""
SOURCE = 13
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


def held(parts: Iterable[torch.Tensor | None]) -> int:
    """Bytes that are kept alive by these tensors, what a view was cut from included."""
    storages = (part.untyped_storage() for part in parts if part is not None)
    return sum({one.data_ptr(): one.nbytes() for one in storages if one.nbytes()}.values())


def of_ours(state: DecodingState) -> int:
    """Bytes that a state of one of our networks holds."""
    kept = [*(state.states or ()), *(one for one in state.memories if one is not None)]
    return held(part for layer in kept for part in layer)


def of_exported(state: Any) -> int:
    """Bytes that a state of exported code holds."""
    return held(part for layer in (*state.layers, *state.memories) for part in layer or ())


def exported(network: StandAlone, space: SearchSpace, dtype: torch.dtype = torch.float32) -> Any:
    """A network's exported code, with its weights, in that precision."""
    blueprint = Blueprint(space.task, space.model, network.architecture)
    made = as_module(modeling_source(blueprint), Path("modeling.py")).Network(blueprint.to_json())
    made.load_state_dict(plain_weights(network))
    return made.to(dtype).eval()


@torch.inference_mode()
def check_held(space: SearchSpace, row: Genotypes, dtype: torch.dtype, read: int) -> None:
    """A prompt, then one more token, by ours and by the exported code: the bytes are counted."""
    network = build_network(space.model, space.task, space.decode(row)[0]).eval()
    made, tokens_BN = exported(network, space, dtype), torch.ones(1, read, dtype=torch.long)
    decoder = decoder_of(network.architecture)
    source = None if network.architecture.encoder is None else tokens_BN[:, :1].repeat(1, SOURCE)
    before = tokens_BN[:, :1].repeat(1, decoder.memory_length)
    with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
        ours = network.start(before if source is None else source)
        ours = network.step(tokens_BN, ours)[1]
    state = made.start() if source is None else made.start(source)
    state = made.remember(before, state) if decoder.memory_length else state
    state = made.step(tokens_BN, state)[1]
    for length in (read, read + 1):
        counted = genotype_state_bytes(space, row, length, dtype.itemsize, source_length=SOURCE)
        assert of_ours(ours) == of_exported(state) == counted.tolist()[0]
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
            ours = network.step(tokens_BN[:, :1], ours)[1]
        state = made.step(tokens_BN[:, :1], state)[1]


CAUSAL = sorted(n for n in OPERATORS.keys() & KERNELS.keys() if OPERATORS[n].causal)
PRECISIONS = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])


@PRECISIONS
@pytest.mark.parametrize("name", CAUSAL)
def test_it_is_the_bytes_that_the_state_holds(name: str, dtype: torch.dtype) -> None:
    kind, settings = WAYS[name]
    space = space_of(f'"{kind}"', settings)
    assert operator_of(space.model, kind, "decoder").name == name
    rows = sample_distinct(space, np.random.default_rng(0), 4)
    for row, read in zip(rows, (1, 4, 5, 40), strict=True):
        check_held(space, row[None], dtype, read)


@PRECISIONS
@pytest.mark.parametrize("name", sorted(n for n in CAUSAL if OPERATORS[n].crosses))
def test_so_it_is_with_a_source(name: str, dtype: torch.dtype) -> None:
    kind, settings = WAYS[name]
    space = parse_space(CROSSING.format(kind=kind, settings=settings), "crossing.toml")
    for row in sample_distinct(space, np.random.default_rng(0), 3):
        check_held(space, row[None], dtype, 7)


@PRECISIONS
def test_so_it_is_with_a_remembered_context(dtype: torch.dtype) -> None:
    space = memory_space()
    for row in sample_distinct(space, np.random.default_rng(0), 4):
        check_held(space, row[None], dtype, 7)


def test_a_view_holds_all_that_it_is_cut_from() -> None:
    whole = torch.zeros(10)
    assert held([whole[:2], None, whole[5:]]) == 40 and held([whole[:2].clone()]) == 8


def test_padding_is_held_besides() -> None:
    """Of a context that begins with padding it is remembered where."""
    space = memory_space()
    architecture = remembering(3)
    network = build_network(space.model, space.task, architecture).eval()
    with torch.inference_mode():
        full, padded = (network.start(torch.tensor([[first, 1, 1]])) for first in (1, 0))
    assert of_ours(padded) - of_ours(full) == 3 * len(decoder_of(architecture).layers)


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


@pytest.mark.parametrize(("kind", "whole"), [("softmax", 32), ("linear:elu", 17)])
def test_a_source_takes_whole_pages_where_its_keys_are_kept(kind: str, whole: int) -> None:
    space = parse_space(CROSSING.format(kind=kind, settings=""), "crossing.toml")
    rows = sample_distinct(space, np.random.default_rng(0), 8)
    paged = genotype_state_bytes(space, rows, 16, 4, "paged", 17)
    assert paged.tolist() == genotype_state_bytes(space, rows, 16, 4, "live", whole).tolist()


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
