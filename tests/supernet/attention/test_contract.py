"""What every attention kernel must show, run over all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import get_args

import pytest
import torch
from torch import Tensor

from search_spaces.architecture import SKIP, AttentionKind
from search_spaces.attention import OPERATORS
from search_spaces.settings import LinearKernel, ModelSettings, OmniKernel, TokenInput
from supernet.attention import AttentionKernel, build_kernel
from supernet.attention.kernels import KERNELS
from tests.support import naive_attention as naive

Attention = Callable[[Tensor, Tensor, Tensor], Tensor]

# Real positions, start and end, of two samples of 23 positions.
MASKS: dict[str, list[tuple[int, int]]] = {
    "none": [],
    "appended": [(0, 20), (0, 11)],
    "prepended": [(3, 23), (14, 23)],
    "both": [(1, 20), (5, 6)],
}
EDGES: dict[str, Callable[[Tensor], Tensor]] = {
    "random": lambda x: x,
    "zero": torch.zeros_like,
    "equal": lambda x: torch.full_like(x, 0.5),
    "negative": lambda x: -x.abs() - 1.0,
    "large": lambda x: x * 1e4,
    "large and equal": lambda x: torch.full_like(x, 1e4),
    "tiny": lambda x: x * 1e-20,
}
# Positions of padding before, real ones, and padding after: short, and beyond what a model takes.
AROUND = [(0, 5, 7), (6, 21, 0), (5, 1, 4), (5, 21, 4), (0, 21, 40), (40, 1, 0), (40, 5, 0)]
# Heads, their size, joined layers.
SHAPES = [(1, 4, 1), (2, 8, 2), (4, 4, 3)]
MAX_LENGTH = 24
SETTINGS = ModelSettings(
    input=TokenInput(vocab_size=16),
    max_length=MAX_LENGTH,
    num_classes=2,
    qkv_dim=16,
    linformer_rank=5,
    bigbird_block=2,
)


@dataclass(frozen=True)
class Case:
    """One kernel under one setting, with its twin."""

    name: str
    kind: AttentionKind
    settings: ModelSettings
    span: int
    twin: Callable[..., Tensor]  # (kernel, q, k, v, mask, span)

    def build(self, dim: int = 8, dtype: torch.dtype = torch.float64) -> AttentionKernel:
        """A kernel whose parameters are random, and the same numbers in every precision."""
        kernel = build_kernel(self.kind, self.settings, dim, self.span)
        generator = torch.Generator().manual_seed(7)
        for parameter in kernel.parameters():
            torch.nn.init.normal_(parameter, generator=generator)
        return kernel.to(dtype)


def _cases() -> list[Case]:
    plain = Case(
        "softmax", "softmax", SETTINGS, 1, lambda m, q, k, v, x, _: naive.softmax(q, k, v, x)
    )
    cases = [
        plain,
        replace(
            plain,
            name="relative",
            settings=replace(SETTINGS, relative_positions=3),
            twin=lambda m, q, k, v, x, _: naive.softmax(q, k, v, x, m.relative_keys_CW),
        ),
        replace(
            plain,
            name="cosformer",
            kind="linear",
            twin=lambda m, q, k, v, x, p: naive.cosformer(q, k, v, x, MAX_LENGTH, p),
        ),
        replace(
            plain,
            name="norm",
            kind="linear",
            settings=replace(SETTINGS, linear_kernel="norm"),
            twin=lambda m, q, k, v, x, _: naive.norm_linear(q, k, v, x, m.gain_W),
        ),
    ]
    twins: dict[str, Callable[..., Tensor]] = {
        "full": lambda m, q, k, v, x, _: naive.softmax(q, k, v, x),
        "performer": lambda m, q, k, v, x, _: naive.performer(q, k, v, x),
        "linformer": lambda m, q, k, v, x, p: naive.linformer(q, k, v, x, m.projection_KTP, p),
        "bigbird": lambda m, q, k, v, x, p: naive.bigbird(q, k, v, x, m.priority, 2, p),
    }
    for kernel, twin in twins.items():
        settings = replace(SETTINGS, omni_kernel=kernel)  # type: ignore[arg-type]
        for span in (1, 3):
            cases.append(Case(f"{kernel}-{span}", "omni", settings, span, twin))
    return cases


CASES = _cases()


def test_settings_costs_and_classes_name_the_same_operators() -> None:
    named = {*get_args(LinearKernel), *get_args(OmniKernel)} - {"full"}
    assert set(KERNELS) == named | {"softmax", "relative", "window"}
    assert set(OPERATORS) == {*KERNELS, SKIP}  # which computes nothing


def draw(
    positions: int,
    span: int,
    *,
    batch: int = 2,
    heads: int = 2,
    head_dim: int = 4,
    seed: int = 0,
    dtype: torch.dtype = torch.float64,
) -> list[Tensor]:
    """Queries, keys and values."""
    generator = torch.Generator().manual_seed(seed)
    shape = (batch, heads, positions * span, head_dim)
    return [torch.randn(shape, generator=generator, dtype=dtype) for _ in range(3)]


def mask_of(positions: int, span: int, real: list[tuple[int, int]]) -> Tensor:
    """Real positions ``start <= p < end`` of each sample, spread over their states."""
    place = torch.arange(positions)
    rows = [(place >= start) & (place < end) for start, end in real]
    return torch.stack(rows).repeat_interleave(span, dim=1)


def masked(kernel: AttentionKernel, mask: Tensor | None, span: int) -> Attention:
    """The kernel as a function of queries, keys and values."""
    return lambda q, k, v: kernel(q, k, v, key_mask_BM=mask, span=span)


def run(
    attention: Attention,
    qkv: Sequence[Tensor],
    rows: Tensor | None = None,
    parameters: Iterable[Tensor] = (),
) -> list[Tensor]:
    """The output, and the gradients by q, k, v and parameters of a weighted sum of its rows.

    Both are zero in the rows that are not asked for, ``(B, N)``.
    """
    leaves = [x.detach().clone().requires_grad_() for x in qkv]
    out = attention(*leaves)
    if rows is not None:
        out = out * rows[:, None, :, None]
        weight = torch.zeros(out.shape, dtype=torch.float64)
        place = rows[:, None, :, None].expand(out.shape)
        weight[place] = torch.arange(int(place.sum()), dtype=torch.float64).sin()
    else:
        weight = torch.arange(out.numel(), dtype=torch.float64).sin().view(out.shape)
    gradients = torch.autograd.grad((out.double() * weight).sum(), [*leaves, *parameters])
    return [out.detach(), *gradients]


def assert_near(actual: Sequence[Tensor], expected: Sequence[Tensor], tolerance: float) -> None:
    """Largest difference, relative to the largest expected value where that is above 1."""
    for mine, theirs in zip(actual, expected, strict=True):
        scale = max(1.0, float(theirs.abs().max()))
        error = float((mine.double() - theirs.double()).abs().max())
        assert error <= tolerance * scale


def assert_finite(tensors: Iterable[Tensor]) -> None:
    assert all(bool(torch.isfinite(x).all()) for x in tensors)


@contextmanager
def at(*where: object) -> Iterator[None]:
    """Says in which turn of a loop something failed."""
    try:
        yield
    except AssertionError as failure:
        failure.add_note(f"at {where}")
        raise


def at_the_edges(qkv: Sequence[Tensor]) -> list[Tensor]:
    """All edges of a batch as samples of a larger one, a block for each edge."""
    return [torch.cat([change(x) for change in EDGES.values()]) for x in qkv]


def assert_finite_at_the_edges(
    attend: Callable[[Tensor | None], Attention], kernel: AttentionKernel, span: int
) -> None:
    for length in (1, 3, 20):
        qkv = at_the_edges(draw(length, span, dtype=torch.float32))
        mask = mask_of(length, span, [(0, length), (length // 2, length)] * len(EDGES))
        empty = mask_of(length, span, [(0, 0), (length // 2, length)] * len(EDGES))
        for masks in (None, mask, empty):
            with at(length, masks):
                assert_finite(run(attend(masks), qkv, None, kernel.parameters()))


def assert_padding_changes_nothing(
    attend: Callable[[Tensor | None], Attention], kernel: AttentionKernel, span: int
) -> None:
    for before, length, after in AROUND:
        bare, padded = draw(length, span), draw(before + length + after, span, seed=1)
        inside = slice(before * span, (before + length) * span)
        for x, rubbish in zip(bare, padded, strict=True):
            rubbish[:, :, inside] = x
        mask = mask_of(before + length + after, span, [(before, before + length)] * 2)
        alone = run(attend(None), bare, mask[:, inside], kernel.parameters())
        among = run(attend(mask), padded, mask, kernel.parameters())
        with at(before, length, after):
            assert all((x[:, :, ~mask[0]] == 0).all() for x in among[:4])
            assert_near([x[:, :, inside] for x in among[:4]], alone[:4], 1e-10)
            assert_near(among[4:], alone[4:], 1e-10)


def prefix_of(small: AttentionKernel, large: AttentionKernel) -> None:
    """Give a kernel the corners of a larger one's parameters."""
    own = dict(large.named_parameters())
    with torch.no_grad():
        for name, parameter in small.named_parameters():
            parameter.copy_(corner(own[name], parameter))


def corner(large: Tensor, small: Tensor) -> Tensor:
    """The prefix of a tensor in every dimension."""
    return large[tuple(slice(0, size) for size in small.shape)]


@pytest.fixture(params=CASES, ids=[case.name for case in CASES])
def case(request: pytest.FixtureRequest) -> Case:
    chosen: Case = request.param
    return chosen


def test_equals_the_naive_twin(case: Case) -> None:
    span, exact, short = case.span, case.build(), case.build(dtype=torch.float32)

    def twin(mask: Tensor | None) -> Attention:
        return lambda q, k, v: case.twin(exact, q, k, v, mask, span)

    for padding, real in MASKS.items():
        mask = mask_of(23, span, real) if real else None
        rows = mask_of(23, span, real or [(0, 23), (0, 23)])
        qkv = draw(23, span, seed=len(padding), dtype=torch.float32)
        doubled = [x.double() for x in qkv]
        slow = run(twin(mask), doubled, rows, exact.parameters())
        with at(padding):
            fast = run(masked(exact, mask, span), doubled, rows, exact.parameters())
            assert_near(fast, slow, 1e-10)
            fast = run(masked(short, mask, span), qkv, rows, short.parameters())
            assert_near(fast, slow, 1e-5)


class TestPadding:
    def test_changes_nothing(self, case: Case) -> None:
        kernel, span = case.build(), case.span
        assert_padding_changes_nothing(lambda mask: masked(kernel, mask, span), kernel, span)

    def test_would_change_without_the_mask(self, case: Case) -> None:
        kernel, span = case.build(), case.span
        qkv = draw(12, span)
        alone = run(masked(kernel, None, span), [x[:, :, : 9 * span] for x in qkv])[0]
        unmasked = run(masked(kernel, None, span), qkv)[0]
        assert (unmasked[:, :, : 9 * span] - alone).abs().max() > 1e-3

    def test_samples_of_a_batch_do_not_meet(self, case: Case) -> None:
        kernel, span = case.build(), case.span
        mask = mask_of(22, span, [(2, 22), (9, 14), (0, 0)])
        q, k, v = draw(22, span, batch=3)
        together = kernel(q, k, v, key_mask_BM=mask, span=span)
        for b in range(3):
            one = slice(b, b + 1)
            alone = kernel(q[one], k[one], v[one], key_mask_BM=mask[one], span=span)
            assert_near([together[one].detach()], [alone.detach()], 1e-10)


class TestElastic:
    def test_equals_stand_alone(self, case: Case) -> None:
        large, widest = case.build(32), case.span
        for heads, head_dim, layers in SHAPES:
            span = min(layers, widest)
            small = build_kernel(case.kind, case.settings, heads * head_dim, span).double()
            prefix_of(small, large)
            qkv = draw(20, span, heads=heads, head_dim=head_dim)
            mask = mask_of(20, span, [(0, 19), (2, 20)])
            elastic = run(masked(large, mask, span), qkv, mask, large.parameters())
            alone = run(masked(small, mask, span), qkv, mask, small.parameters())
            corners = [corner(*pair) for pair in zip(elastic, alone, strict=True)]
            with at(heads, head_dim, span):
                assert_near(corners, alone, 1e-12)
                for mine, theirs in zip(elastic[4:], alone[4:], strict=True):
                    assert float(mine.abs().sum()) == pytest.approx(float(theirs.abs().sum()))

    def test_has_the_parameters_of_its_kind_and_nothing_else(self, case: Case) -> None:
        expected = {"relative": 7 * 16, "norm": 16}
        expected |= {f"linformer-{p}": 5 * MAX_LENGTH * p for p in (1, 3)}
        kernel = case.build(16)
        assert sum(p.numel() for p in kernel.parameters()) == expected.get(case.name, 0)
        assert set(kernel.state_dict()) == {name for name, _ in kernel.named_parameters()}


class TestEdges:
    def test_finite(self, case: Case) -> None:
        kernel, span = case.build(dtype=torch.float32), case.span
        assert_finite_at_the_edges(lambda mask: masked(kernel, mask, span), kernel, span)

    def test_no_key_gives_zeros(self, case: Case) -> None:
        kernel, span = case.build(dtype=torch.float32), case.span
        for length in (3, 20):
            mask = mask_of(length, span, [(0, 0), (0, length)])
            qkv = draw(length, span, dtype=torch.float32)
            out, *gradients = run(masked(kernel, mask, span), qkv, None, kernel.parameters())
            assert_finite(gradients)
            assert all((x[0] == 0).all() and (x[1] != 0).any() for x in (out, *gradients[:3]))

    @pytest.mark.parametrize("positions", [3, 20])
    def test_gradients_by_differences(self, case: Case, positions: int) -> None:
        kernel, span = case.build(4), case.span
        mask = mask_of(positions, span, [(1, positions)])
        qkv = draw(positions, span, batch=1, heads=1, seed=3)
        leaves = [*(x.requires_grad_() for x in qkv), *kernel.parameters()]
        attention = masked(kernel, mask, span)
        assert torch.autograd.gradcheck(
            lambda q, k, v, *_: attention(q, k, v), leaves, fast_mode=True
        )

    def test_meta_device(self, case: Case) -> None:
        kernel = case.build().to("meta")
        q, k, v = (x.to("meta") for x in draw(20, case.span))
        assert kernel(q, k, v, key_mask_BM=None, span=case.span).shape == q.shape


class TestPrecision:
    @pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
    @pytest.mark.parametrize("with_mask", [False, True], ids=["bare", "mask"])
    def test_bf16_autocast(self, case: Case, device: str, with_mask: bool) -> None:
        kernel, span = case.build(dtype=torch.float32).to(device), case.span
        rows = mask_of(20, span, [(0, 17), (2, 20)])
        qkv = [x.bfloat16() for x in draw(20, span)]
        mask = rows.to(device) if with_mask else None
        attention = masked(kernel, mask, span)
        with torch.autocast(device, dtype=torch.bfloat16):
            low = run(lambda *x: attention(*(y.to(device) for y in x)).cpu(), qkv, rows)
        high = masked(case.build(), rows if with_mask else None, span)
        exact = run(high, [x.double() for x in qkv], rows)
        assert low[0].dtype == torch.bfloat16
        # Half a unit in the last place where sums are kept in fp32, as linear kernels must.
        linear = case.name.startswith(("cosformer", "norm", "performer"))
        assert_near(low[:1], exact[:1], 2**-8 if linear else 0.03)
        assert_finite(low)

    @pytest.mark.gpu
    def test_cuda_equals_cpu(self, case: Case) -> None:
        kernel, span = case.build(), case.span
        mask = mask_of(20, span, [(0, 17), (2, 20)])
        qkv = draw(20, span)
        here = run(masked(kernel, mask, span), qkv, mask)
        remote = masked(kernel.cuda(), mask.cuda(), span)
        there = run(lambda *x: remote(*(y.cuda() for y in x)).cpu(), qkv, mask)
        assert_near(there, here, 1e-10)
