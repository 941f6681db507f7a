"""Cross-attention: queries of one sequence, keys and values of another; every kernel."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from search_spaces.errors import UsageError
from supernet.attention import build_kernel
from supernet.attention.linear import CosformerKernel
from tests.supernet.attention.test_contract import (
    AROUND,
    EDGES,
    MASKS,
    SETTINGS,
    SHAPES,
    Attention,
    assert_finite,
    assert_near,
    at,
    at_the_edges,
    corner,
    draw,
    mask_of,
    prefix_of,
    run,
)
from tests.support.decoder_attention_cases import CROSS_CASES, DecoderCase, across
from tests.support.naive_attention import everything

QUERIES = 9


@pytest.fixture(params=CROSS_CASES, ids=[case.name for case in CROSS_CASES])
def case(request: pytest.FixtureRequest) -> DecoderCase:
    chosen: DecoderCase = request.param
    return chosen


def draw_across(
    keys: int, span: int, dtype: torch.dtype = torch.float64, **kw: int
) -> list[Tensor]:
    """Queries at 9 positions, and keys and values of so many positions."""
    q = draw(QUERIES, 1, dtype=dtype, **{**kw, "seed": 5})
    return [q[0], *draw(keys, span, dtype=dtype, **kw)[1:]]


def places(start: int = 0) -> Tensor:
    return torch.arange(start, start + QUERIES)[None]


@pytest.mark.parametrize("start", [0, 13])
def test_equals_the_naive_twin(case: DecoderCase, start: int) -> None:
    span, positions = case.span, places(start)
    exact, short = case.build(place="cross"), case.build(dtype=torch.float32, place="cross")

    def twin(mask: Tensor | None) -> Attention:
        at_places = positions[0].tolist()
        return lambda *qkv: case.twin(exact, *qkv, mask, span, seen=everything, positions=at_places)

    for padding, real in MASKS.items():
        mask = mask_of(23, span, real) if real else None
        qkv = draw_across(23, span, torch.float32)
        doubled = [x.double() for x in qkv]
        slow = run(twin(mask), doubled, None, exact.parameters())
        with at(padding):
            fast = run(across(exact, mask, span, positions), doubled, None, exact.parameters())
            assert_near(fast, slow, 1e-10)
            fast = run(across(short, mask, span, positions), qkv, None, short.parameters())
            assert_near(fast, slow, 1e-5)


def test_padding_changes_nothing(case: DecoderCase) -> None:
    span, kernel = case.span, case.build(place="cross")
    for before, length, after in AROUND:
        bare, padded = draw_across(length, span), draw_across(before + length + after, span, seed=1)
        inside = slice(before * span, (before + length) * span)
        for x, rubbish in zip(bare[1:], padded[1:], strict=True):
            rubbish[:, :, inside] = x
        mask = mask_of(before + length + after, span, [(before, before + length)] * 2)
        alone = run(across(kernel, None, span, places()), bare, None, kernel.parameters())
        among = run(across(kernel, mask, span, places()), padded, None, kernel.parameters())
        with at(before, length, after):
            assert all((x[:, :, ~mask[0]] == 0).all() for x in among[2:4])
            among[2:4] = [x[:, :, inside] for x in among[2:4]]
            assert_near(among, alone, 1e-10)


def test_query_by_query_is_all_at_once(case: DecoderCase) -> None:
    kernel, span = case.build(place="cross"), case.span
    q, k, v = draw_across(20, span)
    memory = kernel.memory(k, v, key_mask_BM=mask_of(20, span, [(0, 17), (2, 20)]), span=span)
    together = kernel.read(q, memory, places(3))
    for n in range(QUERIES):
        alone = kernel.read(q[:, :, n : n + 1], memory, places(3)[:, n : n + 1])
        assert_near([alone.detach()], [together[:, :, n : n + 1].detach()], 1e-12)


def test_the_order_of_joined_layers_does_not_matter(case: DecoderCase) -> None:
    """Each copy of a position keeps that position."""
    if case.span == 1:
        pytest.skip("one layer only")
    kernel = case.build(place="cross")
    q, k, v = draw_across(20, 3)
    turned = [x.unflatten(2, (-1, 3)).flip(3).flatten(2, 3) for x in (k, v)]
    one = across(kernel, None, 3, places())(q, k, v)
    other = across(kernel, None, 3, places())(q, *turned)
    assert_near([other.detach()], [one.detach()], 1e-11)


def test_elastic_equals_stand_alone(case: DecoderCase) -> None:
    large, span = case.build(32, place="cross"), case.span
    for heads, head_dim, _ in SHAPES:
        small = build_kernel(case.kind, case.settings, heads * head_dim, span, "cross").double()
        prefix_of(small, large)
        qkv = draw_across(20, span, heads=heads, head_dim=head_dim)
        mask = mask_of(20, span, [(0, 19), (2, 20)])
        elastic = run(across(large, mask, span, places()), qkv, None, large.parameters())
        alone = run(across(small, mask, span, places()), qkv, None, small.parameters())
        with at(heads, head_dim):
            assert_near([corner(*pair) for pair in zip(elastic, alone, strict=True)], alone, 1e-12)


def test_finite(case: DecoderCase) -> None:
    kernel, span = case.build(dtype=torch.float32, place="cross"), case.span
    for length in (1, 3, 20):
        qkv = at_the_edges(draw_across(length, span, torch.float32))
        empty = mask_of(length, span, [(0, 0), (length // 2, length)] * len(EDGES))
        for mask in (None, empty):
            out, *gradients = run(
                across(kernel, mask, span, places()), qkv, None, kernel.parameters()
            )
            with at(length, mask):
                assert_finite([out, *gradients])
                assert mask is None or (out[::2] == 0).all()


class TestCosformer:
    def test_both_sides_count_with_the_same_constant(self) -> None:
        """Weights depend on the difference of positions alone, and change from step to step."""
        k, v = torch.ones(1, 1, 6, 2).double(), torch.eye(6)[None, None].double()
        kernel = CosformerKernel(12)
        memory = kernel.memory(k, v, key_mask_BM=None)
        rows = [
            kernel.read(torch.ones(1, 1, 1, 2).double(), memory, torch.tensor([[t]]))[0, 0, 0]
            for t in range(6)
        ]
        assert [int(row.argmax()) for row in rows] == list(range(6))
        assert torch.allclose(
            rows[0] / rows[0][0], (torch.arange(6) * torch.pi / 24).cos().double()
        )

    @pytest.mark.parametrize("max_length", [16, 1024, 8192])
    def test_one_token_far_away_is_seen_whole(self, max_length: int) -> None:
        """However small its weight, it is the only one: the mean of the values is its value."""
        kernel = CosformerKernel(max_length)
        k, v = -torch.ones(1, 1, 1, 8), torch.arange(8.0).view(1, 1, 1, 8)
        memory = kernel.memory(k, v, key_mask_BM=None)
        for last in (max_length - 2, max_length - 1):
            out = kernel.read(-torch.ones(1, 1, 1, 8), memory, torch.tensor([[last]]))
            assert torch.allclose(out, v, rtol=1e-3)

    def test_too_long_a_memory_is_refused(self) -> None:
        k, v = draw(10, 1)[1:]
        with pytest.raises(UsageError, match=r"10 positions.*max_length is 9"):
            CosformerKernel(9).memory(k, v, key_mask_BM=None)


def test_there_are_no_relative_keys_across() -> None:
    kernel = build_kernel("softmax", replace(SETTINGS, relative_positions=3), 8, 1, "cross")
    assert not list(kernel.parameters())
