"""Linear attention as one step of a gradient, against the same written out and the naive twins."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from supernet.attention import linear
from supernet.attention.linear import CosformerKernel, ReluLinearKernel
from supernet.attention.omni import PerformerKernel
from supernet.blocks import ElasticAttention
from supernet.plan import AttentionPlan
from supernet.slices import Slices
from tests.supernet.attention.test_contract import (
    EDGES,
    MAX_LENGTH,
    SETTINGS,
    assert_finite,
    assert_near,
    at,
    mask_of,
)
from tests.support import naive_attention as naive
from tests.support.decoder_attention_cases import places

Way = Callable[[ReluLinearKernel, Tensor, Tensor | None, int], Tensor]
KERNELS: dict[str, Callable[[], ReluLinearKernel]] = {
    "cosformer": lambda: CosformerKernel(MAX_LENGTH),
    "performer": PerformerKernel,
}
# Real positions of two samples of 9; of the first of the last there are none.
MASKS = [None, [(0, 9), (2, 9)], [(1, 7), (4, 5)], [(0, 0), (3, 9)]]
PLACES = torch.arange(9)[None]


def draw(span: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    """Queries, keys and values of 9 positions in one tensor, ``(2, N, 3, 2, 4)``."""
    generator = torch.Generator().manual_seed(seed)
    shape = (2, 9 * span, 3, 2, 4)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()


def apart(qkv: Tensor) -> list[Tensor]:
    return [x.transpose(1, 2) for x in qkv.unbind(2)]


def one_attended(kernel: ReluLinearKernel, x: Tensor, mask: Tensor | None, span: int) -> Tensor:
    return kernel.attended(x, key_mask_BN=mask, span=span)


def one_past(kernel: ReluLinearKernel, x: Tensor, mask: Tensor | None, span: int) -> Tensor:
    return kernel.attended_past(x, key_mask_BN=mask, span=span, state=None)[0]


def one_crossed(kernel: ReluLinearKernel, x: Tensor, mask: Tensor | None, span: int) -> Tensor:
    kept = kernel.kept(x[:, :, 1:], key_mask_BM=mask, span=span)
    return kernel.asked(x[:, :9, :1], kept, PLACES)


def attended(kernel: ReluLinearKernel, x: Tensor, mask: Tensor | None, span: int) -> Tensor:
    return kernel(*apart(x), key_mask_BM=mask, span=span)  # type: ignore[no-any-return]


def past(kernel: ReluLinearKernel, x: Tensor, mask: Tensor | None, span: int) -> Tensor:
    return kernel.causal(*apart(x), key_mask_BN=mask, span=span)[0]


def crossed(kernel: ReluLinearKernel, x: Tensor, mask: Tensor | None, span: int) -> Tensor:
    q, k, v = apart(x)
    return kernel.read(q[:, :, :9], kernel.memory(k, v, key_mask_BM=mask, span=span), PLACES)


WAYS: dict[str, tuple[Way, Way]] = {
    "encoder": (one_attended, attended),
    "past": (one_past, past),
    "across": (one_crossed, crossed),
}


@pytest.fixture(params=KERNELS)
def kernel(request: pytest.FixtureRequest) -> ReluLinearKernel:
    return KERNELS[request.param]()


@pytest.fixture(params=WAYS)
def ways(request: pytest.FixtureRequest) -> tuple[Way, Way]:
    return WAYS[request.param]


def rows_of(out: Tensor, mask: Tensor | None, way: Way) -> Tensor:
    """The rows that mean something; queries of another sequence all do."""
    if mask is None or way in (one_crossed, crossed):
        return out
    return out * mask[:, None, :, None]


def found(
    way: Way, kernel: ReluLinearKernel, x: Tensor, mask: Tensor | None, span: int
) -> list[Tensor]:
    """The output, and the gradient of a weighted sum of its rows."""
    out = rows_of(way(kernel, x, mask, span), mask, way)
    weights = torch.linspace(-1, 1, out.numel(), dtype=torch.float64).view(out.shape)
    (gradient,) = torch.autograd.grad((out.double() * weights).sum(), x)
    return [out.detach(), gradient]


@pytest.mark.parametrize("span", [1, 3])
def test_equals_what_is_written_out(
    kernel: ReluLinearKernel, ways: tuple[Way, Way], span: int
) -> None:
    for number, real in enumerate(MASKS):
        mask = None if real is None else mask_of(9, span, real)
        with at(real):
            mine, theirs = (found(way, kernel, draw(span, number), mask, span) for way in ways)
            assert_near(mine, theirs, 1e-12)


@pytest.mark.parametrize("span", [1, 3])
def test_equals_the_naive_twin(kernel: ReluLinearKernel, span: int) -> None:
    for real in MASKS:
        mask, x = None if real is None else mask_of(9, span, real), draw(span)
        for way, seen in ((one_attended, naive.everything), (one_past, naive.causal(span))):
            out = rows_of(way(kernel, x, mask, span), mask, way)
            if isinstance(kernel, CosformerKernel):
                twin = naive.cosformer(*apart(x), mask, MAX_LENGTH, span, seen)
            else:
                twin = naive.performer(*apart(x), mask, seen)
            with at(real, way.__name__):
                assert_near([out.detach()], [rows_of(twin, mask, way).detach()], 1e-12)


@pytest.mark.parametrize("real", MASKS)
def test_gradients_by_differences(
    kernel: ReluLinearKernel, ways: tuple[Way, Way], real: list[tuple[int, int]] | None
) -> None:
    mask, way = None if real is None else mask_of(9, 1, real), ways[0]
    assert torch.autograd.gradcheck(
        lambda x: rows_of(way(kernel, x, mask, 1), mask, way), [draw(1)], fast_mode=True
    )


def test_gradients_of_what_is_carried_on(kernel: ReluLinearKernel) -> None:
    """Of the sums alone, and of them and the output together."""
    for weight in (0.0, 1.0):
        gradients = []
        for one in (True, False):
            x = draw(1)
            if one:
                out, state = kernel.attended_past(x, key_mask_BN=None, span=1, state=None)
            else:
                out, state = kernel.causal(*apart(x))
            total = state[0].square().sum() + (weight * out.sum() if weight else 0.0)
            gradients += torch.autograd.grad(total, x)
        assert_near(gradients[:1], gradients[1:], 1e-12)


@pytest.mark.parametrize("most", [4, 128])
def test_goes_on_from_a_state(
    kernel: ReluLinearKernel, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a state, and in long sequences, not all pairs are multiplied."""
    monkeypatch.setattr(linear, "MOST_PAIRED", most)
    x = draw(1)
    whole, (sums,) = kernel.attended_past(x, key_mask_BN=None, span=1, state=None)
    first, state = kernel.attended_past(x[:, :5], key_mask_BN=None, span=1, state=None)
    second, after = kernel.attended_past(
        x[:, 5:], key_mask_BN=None, span=1, state=state, **places(kernel, 5, x.shape[1] - 5)
    )
    found = [torch.cat((first, second), dim=2), after[0]]
    expected = [past(kernel, x, None, 1), sums]
    assert_near([one.detach() for one in found], [one.detach() for one in expected], 1e-12)
    assert_near([whole.detach()], [expected[0].detach()], 1e-12)


def test_padding_changes_nothing_and_has_no_gradient(
    kernel: ReluLinearKernel, ways: tuple[Way, Way]
) -> None:
    way, mask = ways[0], mask_of(9, 1, [(1, 7), (4, 5)])
    x = draw(1).detach()
    results = []
    for filling in (0.0, 1e4):
        filled = torch.where(mask[:, :, None, None, None], x, filling)
        if way is one_crossed:  # there queries are of another sequence
            filled[:, :, 0] = x[:, :, 0]
        out, gradient = found(way, kernel, filled.requires_grad_(), mask, 1)
        assert (gradient[:, :, 1:] * ~mask[:, :, None, None, None] == 0).all()
        results.append([out, gradient])
    assert_near(*results, 1e-12)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision(kernel: ReluLinearKernel, ways: tuple[Way, Way], dtype: torch.dtype) -> None:
    """Sums are kept in fp32: the output is rounded once, and the gradient not much oftener."""
    mine, written_out = ways
    for real in MASKS:
        mask = None if real is None else mask_of(9, 3, real)
        x = draw(3, dtype=dtype)
        exact = found(written_out, kernel, x.detach().double().requires_grad_(), mask, 3)
        with torch.autocast("cpu", dtype=torch.bfloat16), at(real):
            low = found(mine, kernel, x, mask, 3)
            assert low[0].dtype == low[1].dtype == dtype
            assert_near(low[:1], exact[:1], 2**-8)
            assert_near(low[1:], exact[1:], 2**-6)


@pytest.mark.parametrize("edge", EDGES)
def test_finite_at_the_edges(kernel: ReluLinearKernel, ways: tuple[Way, Way], edge: str) -> None:
    for real in MASKS:
        mask = None if real is None else mask_of(9, 1, real)
        x = EDGES[edge](draw(1).detach()).bfloat16().requires_grad_()
        out = ways[0](kernel, x, mask, 1)
        out.float().sum().backward()
        assert x.grad is not None
        with at(real):
            assert_finite([out, x.grad])


@pytest.mark.parametrize("place", ["encoder", "decoder", "cross"])
@pytest.mark.parametrize("kind", ["linear", "omni"])
def test_a_block_in_bf16_takes_this_way(
    kind: str, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With gradients and under autocast; they are as near to those of fp32 as by the other way."""
    torch.manual_seed(5)
    plan = AttentionPlan(width=16, key_width=16, num_heads=4, head_dim=8, kinds=(kind,))
    block = ElasticAttention(SETTINGS, 12, plan, place)  # type: ignore[arg-type]
    x, steps = torch.randn(2, 9, 12), set[str]()

    def gradients(low: bool) -> dict[str, Tensor]:
        slices = Slices(block)
        block.zero_grad()
        with slices.training():
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=low):
                if place == "encoder":
                    out = block(x, kind, 2, None, 1)
                elif place == "decoder":
                    out = block.causal(x, kind, 2, None, 1)[0]
                else:
                    out = block.read(x, kind, 2, block.memory(x, kind, 2, None, 1), PLACES)
            steps.clear()
            steps.update(names_of(out.grad_fn))
            slices.backward(out.float().square().sum())
        return {n: p.grad.clone() for n, p in block.named_parameters() if p.grad is not None}

    wanted, mine = gradients(low=False), gradients(low=True)
    own = {"encoder": {"Attended"}, "decoder": {"AttendedPast"}, "cross": {"Kept", "Read"}}[place]
    assert {f"{name}Backward" for name in own} <= steps
    monkeypatch.setattr(ElasticAttention, "_undivided", lambda *_: None)
    theirs = gradients(low=True)
    assert "BmmBackward0" in steps
    for name, value in wanted.items():
        far, further = (float((one[name] - value).norm()) for one in (mine, theirs))
        assert far <= 1.5 * further + 0.01 * float(value.norm()), name


def names_of(step: Any) -> Iterator[str]:
    """The steps of a gradient's computation."""
    if step is not None:
        yield step.name()
        for before, _ in step.next_functions:
            yield from names_of(before)
