"""Linear attention by 1 + elu and by a learned feature map: twins, states, and a first shape."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from supernet.attention import causal_linear
from supernet.attention.linear import EluKernel, HedgehogKernel, MeanLinearKernel
from tests.supernet.attention.test_contract import (
    MASKS,
    SHAPES,
    Attention,
    assert_finite_at_the_edges,
    assert_near,
    assert_padding_changes_nothing,
    at,
    corner,
    draw,
    mask_of,
    masked,
    prefix_of,
    run,
)
from tests.support import naive_attention as naive
from tests.support.decoder_attention_cases import across, in_pieces, whole


@dataclass(frozen=True)
class MapCase:
    """One kernel with its twin."""

    name: str
    make: Callable[[int, int], MeanLinearKernel]  # of width and head_dim
    twin: Callable[..., Tensor]
    features: int  # of a head of 4

    def build(
        self, dtype: torch.dtype = torch.float64, width: int = 8, head_dim: int = 4
    ) -> MeanLinearKernel:
        """A kernel whose parameters are random, and the same numbers in every precision."""
        kernel, generator = self.make(width, head_dim), torch.Generator().manual_seed(7)
        for parameter in kernel.parameters():
            torch.nn.init.normal_(parameter, generator=generator)
        return kernel.to(dtype)


CASES = [
    MapCase("elu", lambda *_: EluKernel(), lambda m, *given: naive.elu(*given), 4),
    MapCase(
        "hedgehog",
        lambda *sizes: HedgehogKernel(*sizes),
        lambda m, q, k, v, mask, seen: naive.hedgehog(q, k, v, mask, m.map_WD, seen),
        8,
    ),
]


@pytest.fixture(params=CASES, ids=[case.name for case in CASES])
def case(request: pytest.FixtureRequest) -> MapCase:
    chosen: MapCase = request.param
    return chosen


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that short sequences are several chunks, the last of them short."""
    monkeypatch.setattr(causal_linear, "CHUNK_STATES", 7)


Way = Callable[[MeanLinearKernel, Tensor | None, int], Attention]
WAYS = pytest.mark.parametrize("way", [masked, whole], ids=["encoder", "decoder"])
SPANS = pytest.mark.parametrize("span", [1, 3])


@WAYS
@SPANS
def test_equals_the_naive_twin(case: MapCase, way: Way, span: int) -> None:
    exact, short = case.build(), case.build(torch.float32)
    seen = naive.causal(span) if way is whole else naive.everything
    for padding, real in MASKS.items():
        mask = mask_of(23, span, real) if real else None
        rows = mask_of(23, span, real or [(0, 23), (0, 23)])
        qkv = draw(23, span, seed=len(padding), dtype=torch.float32, heads=2 if span == 1 else 1)
        doubled = [x.double() for x in qkv]

        def twin(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = mask) -> Tensor:
            return case.twin(exact, q, k, v, mask, seen)

        slow = run(twin, doubled, rows, exact.parameters())
        with at(padding):
            fast = run(way(exact, mask, span), doubled, rows, exact.parameters())
            assert_near(fast, slow, 1e-10)
            fast = run(way(short, mask, span), qkv, rows, short.parameters())
            assert_near(fast, slow, 1e-5)


@SPANS
def test_across_sequences(case: MapCase, span: int) -> None:
    kernel = case.build()
    q, (_, k, v) = draw(5, 1, seed=1)[0], draw(12, span)
    for real in ([(0, 12), (0, 12)], [(2, 9), (0, 0)]):
        mask = mask_of(12, span, real)
        seen = [q, k, v]
        found = run(
            across(kernel, mask, span, torch.arange(5)[None]), seen, None, kernel.parameters()
        )
        slow = run(lambda *x: case.twin(kernel, *x, mask, naive.everything), seen, None, ())  # noqa: B023
        with at(real):
            assert_near(found[:4], slow, 1e-10)


@SPANS
def test_pieces_are_the_whole(case: MapCase, span: int) -> None:
    kernel, qkv = case.build(), draw(22, span)
    parallel = run(whole(kernel, None, span), qkv, None, kernel.parameters())
    for sizes in ([1] * 22, [9, 1, 1, 11], [20, 2], [1, 21]):
        with at(sizes):
            stepwise = run(in_pieces(kernel, sizes, span), qkv, None, kernel.parameters())
            assert_near(stepwise, parallel, 1e-10)


def test_the_state_does_not_grow(case: MapCase) -> None:
    kernel = case.build(torch.float32)
    for length in (1, 9, 40):
        (sums,) = kernel.causal(*draw(length, 1, dtype=torch.bfloat16))[1]
        with at(length):
            # 2 samples, 2 heads, features by values and the denominator, in fp32.
            assert sums.shape == (2, 2, case.features, 5) and sums.dtype == torch.float32


@WAYS
@SPANS
def test_padding_changes_nothing(case: MapCase, way: Way, span: int) -> None:
    kernel = case.build()
    assert_padding_changes_nothing(lambda mask: way(kernel, mask, span), kernel, span)


@WAYS
@SPANS
def test_finite_at_the_edges(case: MapCase, way: Way, span: int) -> None:
    kernel = case.build(torch.float32)
    assert_finite_at_the_edges(lambda mask: way(kernel, mask, span), kernel, span)


@WAYS
def test_gradients_by_differences(case: MapCase, way: Way) -> None:
    kernel = case.build(width=4)
    attention = way(kernel, mask_of(19, 1, [(1, 18)]), 1)
    leaves = [x.requires_grad_() for x in draw(19, 1, batch=1, heads=1, seed=3)]
    assert torch.autograd.gradcheck(
        lambda q, k, v, *_: attention(q, k, v), [*leaves, *kernel.parameters()], fast_mode=True
    )


@WAYS
def test_bf16_autocast(case: MapCase, way: Way) -> None:
    qkv = [x.bfloat16() for x in draw(20, 1)]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        low = run(way(case.build(torch.float32), None, 1), qkv)[0]
    exact = run(way(case.build(), None, 1), [x.double() for x in qkv])[0]
    assert low.dtype == torch.bfloat16
    assert_near([low], [exact], 2**-8)


@WAYS
def test_elastic_equals_stand_alone(case: MapCase, way: Way) -> None:
    large = case.build(width=32, head_dim=8)
    for heads, head_dim, _ in SHAPES:
        small = case.make(heads * head_dim, head_dim).double()
        prefix_of(small, large)
        qkv = draw(20, 1, heads=heads, head_dim=head_dim)
        mask = mask_of(20, 1, [(0, 19), (2, 20)])
        elastic = run(way(large, mask, 1), qkv, mask, large.parameters())
        alone = run(way(small, mask, 1), qkv, mask, small.parameters())
        with at(heads, head_dim):
            assert_near([corner(*pair) for pair in zip(elastic, alone, strict=True)], alone, 1e-12)


class TestHedgehog:
    def test_starts_as_the_softmax_of_both_signs(self) -> None:
        x = draw(3, 1)[0]
        features = HedgehogKernel(8, 4).double().features(x, torch.zeros(1, 3)).detach()
        assert_near([features - 1e-6], [torch.cat((x, -x), dim=-1).softmax(dim=-1)], 1e-12)
        assert (features >= 1e-6).all()

    def test_starts_nearer_to_softmax_than_elu(self) -> None:
        """Weights grow with the product of query and key, and steeply: entropies as well."""
        q, k, _ = draw(64, 1, heads=1, head_dim=16, seed=2)
        v = torch.eye(64, dtype=q.dtype).expand(2, 1, 64, 64)
        softmax = (q @ k.mT / 4).softmax(dim=-1)
        near = {}
        for name, kernel in (("hedgehog", HedgehogKernel(16, 16)), ("elu", EluKernel())):
            weights = kernel.double()(q, k, v, key_mask_BM=None)
            near[name] = float((weights - softmax).detach().abs().sum(dim=-1).mean())
        assert near["hedgehog"] < near["elu"]

    def test_parameters(self) -> None:
        kernel = HedgehogKernel(8, 4)
        torch.nn.init.ones_(kernel.map_WD)
        kernel.reset_parameters()
        assert kernel.map_WD.shape == (8, 4) and (kernel.map_WD == 0).all()
        assert not list(EluKernel().parameters())
