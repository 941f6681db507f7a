"""Window attention: twins in both places, groups of heads, carried states, and what it costs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from search_spaces.errors import UsageError
from supernet.attention import window
from supernet.attention.base import State
from supernet.attention.window import Band, WindowKernel, banded_attention, grouped_attention
from tests.supernet.attention.test_contract import (
    AROUND,
    MASKS,
    Attention,
    assert_finite_at_the_edges,
    assert_near,
    at,
    draw,
    mask_of,
    masked,
    run,
)
from tests.support import naive_attention as naive

SPANS = pytest.mark.parametrize("span", [1, 3])


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that short sequences are several blocks, the last of them short."""
    monkeypatch.setattr(window, "LEAST_BLOCK", 4)


def whole(kernel: WindowKernel, mask: Tensor | None, span: int) -> Attention:
    """Causal attention over a whole sequence at once."""
    return lambda q, k, v: kernel.causal(q, k, v, key_mask_BN=mask, span=span)[0]


def in_pieces(
    kernel: WindowKernel, sizes: Sequence[int], span: int, mask: Tensor | None = None
) -> Attention:
    """The same in several calls, carrying the state; only the first is given its mask."""

    def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        state: State | None = None
        outputs, start = [], 0
        for size in sizes:
            piece = slice(start * span, (start + size) * span)
            parts = (x[:, :, piece] for x in (q, k, v))
            real = mask[:, piece] if mask is not None and start == 0 else None
            out, state = kernel.causal(*parts, key_mask_BN=real, span=span, state=state)
            outputs.append(out)
            start += size
        return torch.cat(outputs, dim=2)

    return attention


Way = Callable[[WindowKernel, Tensor | None, int], Attention]
WAYS = pytest.mark.parametrize("way", [masked, whole], ids=["encoder", "decoder"])


def seen_by(kernel: WindowKernel, way: Way, span: int) -> naive.Seen:
    """The positions of a query, in words of the twin."""
    if way is whole:
        return naive.in_window(kernel.window - 1, 0, span)
    return naive.in_window(kernel.window, kernel.window, span, kernel.global_first)


@WAYS
@SPANS
@pytest.mark.parametrize("size", [1, 5, 40])
def test_equals_the_naive_twin(way: Way, span: int, size: int) -> None:
    for first in (False, True) if way is masked else (False,):
        kernel = WindowKernel(size, global_first=first)
        seen = seen_by(kernel, way, span)
        for padding, real in MASKS.items():
            mask = mask_of(23, span, real) if real else None
            rows = mask_of(23, span, real or [(0, 23), (0, 23)])
            qkv = draw(23, span, seed=len(padding), dtype=torch.float32, heads=1)
            doubled = [x.double() for x in qkv]
            slow = run(lambda q, k, v: naive.softmax(q, k, v, mask, seen=seen), doubled, rows)  # noqa: B023
            with at(padding, first):
                assert_near(run(way(kernel, mask, span), doubled, rows), slow, 1e-10)
                assert_near(run(way(kernel, mask, span), qkv, rows), slow, 1e-5)


@WAYS
def test_a_window_of_everything_is_softmax(way: Way) -> None:
    q, k, v = draw(30, 1)
    found = way(WindowKernel(30), None, 1)(q, k, v)
    expected = F.scaled_dot_product_attention(q, k, v, is_causal=way is whole)
    assert_near([found], [expected], 1e-12)


def test_a_window_of_one_position_is_its_value() -> None:
    q, k, v = draw(30, 1)
    assert_near([whole(WindowKernel(1), None, 1)(q, k, v)], [v], 1e-12)


class TestGroups:
    @WAYS
    @SPANS
    def test_equal_repeated_heads(self, way: Way, span: int) -> None:
        kernel, (q, _, _) = WindowKernel(5, global_first=True), draw(23, span, heads=6)
        _, k, v = draw(23, span, heads=2, seed=1)
        for mask in (None, mask_of(23, span, [(3, 20), (0, 0)])):
            grouped = run(way(kernel, mask, span), [q, k, v], mask)

            def repeated(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = mask) -> Tensor:
                wide = (x.repeat_interleave(3, dim=1) for x in (k, v))
                return way(kernel, mask, span)(q, *wide)

            assert_near(grouped, run(repeated, [q, k, v], mask), 1e-12)

    def test_the_state_holds_key_value_heads_only(self) -> None:
        kernel, (q, _, _) = WindowKernel(4), draw(9, 1, heads=6)
        _, k, v = draw(9, 1, heads=2, seed=1)
        whole_ = kernel.causal(q, k, v)[0]
        _, state = kernel.causal(*(x[:, :, :8] for x in (q, k, v)))
        assert [part.shape for part in state] == [(2, 2, 4, 4)] * 2
        last = kernel.causal(*(x[:, :, 8:] for x in (q, k, v)), state=state)[0]
        assert_near([last], [whole_[:, :, 8:]], 1e-12)


class TestState:
    @SPANS
    @pytest.mark.parametrize("size", [1, 4, 30])
    def test_pieces_are_the_whole(self, size: int, span: int) -> None:
        kernel = WindowKernel(size)
        for dtype, tolerance in ((torch.float64, 1e-10), (torch.float32, 1e-5)):
            qkv = draw(22, span, dtype=dtype)
            parallel = run(whole(kernel, None, span), qkv)
            for sizes in ([1] * 22, [9, 1, 1, 11], [20, 2], [1, 21], [3] * 7 + [1]):
                with at(dtype, sizes):
                    stepwise = run(in_pieces(kernel, sizes, span), qkv)
                    assert_near(stepwise, parallel, tolerance)

    @SPANS
    def test_prompts_of_different_lengths(self, span: int) -> None:
        kernel, qkv = WindowKernel(4), draw(22, span)
        for start in (5, 7, 8):
            mask = mask_of(22, span, [(0, 22), (start, 22)])
            parallel = run(whole(kernel, mask, span), qkv, mask)
            for sizes in ([8] + [1] * 14, [8, 7, 7]):
                with at(start, sizes):
                    stepwise = run(in_pieces(kernel, sizes, span, mask), qkv, mask)
                    assert_near(stepwise, parallel, 1e-10)

    @SPANS
    def test_never_more_than_the_window(self, span: int) -> None:
        kernel = WindowKernel(4)
        for length in (1, 3, 4, 5, 20):
            state: State | None = None
            for sizes in ([length], [1] * length):
                state, start = None, 0
                for size in sizes:
                    piece = slice(start * span, (start + size) * span)
                    parts = (x[:, :, piece].clone() for x in draw(length, span))
                    state, start = kernel.causal(*parts, span=span, state=state)[1], start + size
                assert state is not None
                with at(length, sizes):
                    # 8 bytes; 2 samples, 2 heads of 4; and nothing larger is kept alive.
                    held = [part.untyped_storage().nbytes() for part in state]
                    assert held == [8 * 2 * 2 * 4 * span * min(length, 4)] * 2

    def test_is_reordered_by_its_first_dimension(self) -> None:
        kernel, rows = WindowKernel(4), torch.tensor([2, 0, 0, 1])
        q, k, v = draw(20, 1, batch=3)
        _, state = kernel.causal(*(x[:, :, :12] for x in (q, k, v)))
        late = [x[:, :, 12:] for x in (q, k, v)]
        moved = tuple(part.index_select(0, rows) for part in state)
        found, _ = kernel.causal(*(x[rows] for x in late), state=moved)
        assert_near([found], [kernel.causal(*late, state=state)[0][rows]], 1e-11)

    def test_a_lost_state_shows(self) -> None:
        qkv = draw(12, 1)
        expected = whole(WindowKernel(4), None, 1)(*qkv)[:, :, 11:]
        lost = whole(WindowKernel(4), None, 1)(*(x[:, :, 11:] for x in qkv))
        assert (lost - expected).abs().max() > 1e-2


class TestPadding:
    @WAYS
    @SPANS
    @pytest.mark.parametrize("first", [False, True])
    def test_changes_nothing(self, way: Way, span: int, first: bool) -> None:
        kernel = WindowKernel(3, first)
        for before, length, after in AROUND:
            bare, padded = draw(length, span), draw(before + length + after, span, seed=1)
            inside = slice(before * span, (before + length) * span)
            for x, rubbish in zip(bare, padded, strict=True):
                rubbish[:, :, inside] = x
            mask = mask_of(before + length + after, span, [(before, before + length)] * 2)
            alone = run(way(kernel, None, span), bare, mask[:, inside])
            among = run(way(kernel, mask, span), padded, mask)
            with at(before, length, after):
                assert all((x[:, :, ~mask[0]] == 0).all() for x in among)
                assert_near([x[:, :, inside] for x in among], alone, 1e-10)

    @WAYS
    @pytest.mark.parametrize("first", [False, True])
    def test_samples_do_not_meet_and_an_empty_one_is_zero(self, way: Way, first: bool) -> None:
        kernel, mask = WindowKernel(3, first), mask_of(22, 1, [(2, 22), (9, 14), (0, 0)])
        q, k, v = draw(22, 1, batch=3)
        together = way(kernel, mask, 1)(q, k, v)
        assert (together[2] == 0).all()
        for b in range(3):
            one = slice(b, b + 1)
            alone = way(kernel, mask[one], 1)(q[one], k[one], v[one])
            assert_near([together[one]], [alone], 1e-10)


class TestEdges:
    @WAYS
    @SPANS
    def test_finite(self, way: Way, span: int) -> None:
        for first in (False, True):
            kernel = WindowKernel(3, first)
            assert_finite_at_the_edges(lambda mask: way(kernel, mask, span), kernel, span)  # noqa: B023

    @WAYS
    def test_gradients_by_differences(self, way: Way) -> None:
        attention = way(WindowKernel(3, global_first=True), mask_of(19, 1, [(1, 18)]), 1)
        leaves = [x.requires_grad_() for x in draw(19, 1, batch=1, heads=1, seed=3)]
        assert torch.autograd.gradcheck(attention, leaves, fast_mode=True)

    def test_meta_device(self) -> None:
        kernel, (q, k, v) = WindowKernel(3), (x.to("meta") for x in draw(20, 1))
        out, state = kernel.causal(q, k, v)
        assert out.shape == q.shape and kernel(q, k, v, key_mask_BM=None).shape == q.shape
        assert kernel.causal(q, k, v, state=state)[0].shape == q.shape

    @WAYS
    @pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
    def test_bf16_autocast(self, way: Way, device: str) -> None:
        kernel, qkv = WindowKernel(3, global_first=True), [x.bfloat16() for x in draw(20, 1)]
        with torch.autocast(device, dtype=torch.bfloat16):
            low = way(kernel, None, 1)(*(x.to(device) for x in qkv)).cpu()
        exact = way(kernel, None, 1)(*(x.double() for x in qkv))
        assert low.dtype == torch.bfloat16
        assert_near([low], [exact], 0.03)

    def test_has_no_parameters(self) -> None:
        assert not WindowKernel(3).state_dict()

    def test_refusals(self) -> None:
        with pytest.raises(UsageError, match="window of 0 positions sees nothing"):
            WindowKernel(0)
        kernel, (q, k, v) = WindowKernel(3), draw(4, 1)
        for refused in (
            lambda: kernel.memory(k, v, key_mask_BM=None),
            lambda: kernel.read(q, (), torch.zeros(1, 4)),
        ):
            with pytest.raises(UsageError, match="cannot attend to another sequence"):
                refused()


class TestCost:
    @pytest.mark.parametrize("after", [0, 16])
    def test_pairs_grow_with_the_length_alone(
        self, after: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """What is handed to the fused kernel, and no mask of N × N beside it."""
        monkeypatch.undo()
        pairs: list[int] = []

        def counted(q: Tensor, k: Tensor, v: Tensor, visible: Tensor | None) -> Tensor:
            assert visible is not None and visible.shape == (len(q), q.shape[2], k.shape[2])
            pairs.append(visible.numel())
            return grouped_attention(q, k, v, visible)

        monkeypatch.setattr(window, "grouped_attention", counted)
        for length in (256, 512, 1024):
            q, k, v = draw(length, 1, batch=1, heads=1)
            banded_attention(q, k, v, None, Band(15, after, 1))
        assert pairs == [length * (32 + 15 + after) for length in (256, 512, 1024)]

    @pytest.mark.parametrize("size", [8, 16, 64, 256, 1024])
    def test_blocks_meet_few_keys_more_than_are_seen(
        self, size: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.undo()
        for band in (Band(size - 1, 0, 1), Band(size, size, 1)):
            cut, seen = window._cut(1 << 16, 1 << 16, band), band.before + band.after + 1
            assert cut.reach <= seen + max(32, seen // 4)

    def test_a_short_sequence_is_one_block(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.undo()
        cut = window._cut(20, 23, Band(15, 0, 1))
        assert (cut.blocks, cut.length, cut.reach, cut.offset) == (1, 20, 23, 3)
