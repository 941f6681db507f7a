"""What every causal kernel must show, run over all of them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from search_spaces.errors import UsageError
from supernet.attention import build_kernel, causal_linear
from supernet.attention.bigbird import BigBirdKernel
from supernet.attention.linear import CosformerKernel
from supernet.attention.omni import LinformerKernel
from tests.supernet.attention.test_contract import (
    MASKS,
    SETTINGS,
    SHAPES,
    Attention,
    assert_finite,
    assert_finite_at_the_edges,
    assert_near,
    assert_padding_changes_nothing,
    at,
    corner,
    draw,
    mask_of,
    prefix_of,
    run,
)
from tests.support import naive_attention as naive
from tests.support.decoder_attention_cases import DECODER_CASES, DecoderCase, places, whole


@pytest.fixture(params=DECODER_CASES, ids=[case.name for case in DECODER_CASES])
def case(request: pytest.FixtureRequest) -> DecoderCase:
    chosen: DecoderCase = request.param
    return chosen


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that short sequences are several chunks, the last of them short."""
    monkeypatch.setattr(causal_linear, "CHUNK_STATES", 7)


def test_equals_the_naive_twin(case: DecoderCase) -> None:
    span, exact, short = case.span, case.build(), case.build(dtype=torch.float32)
    seen = naive.causal(span)

    def twin(mask: Tensor | None) -> Attention:
        return lambda *qkv: case.twin(exact, *qkv, mask, span, seen=seen, positions=None)

    for padding, real in MASKS.items():
        mask = mask_of(23, span, real) if real else None
        rows = mask_of(23, span, real or [(0, 23), (0, 23)])
        qkv = draw(23, span, seed=len(padding), dtype=torch.float32)
        doubled = [x.double() for x in qkv]
        slow = run(twin(mask), doubled, rows, exact.parameters())
        with at(padding):
            fast = run(whole(exact, mask, span), doubled, rows, exact.parameters())
            assert_near(fast, slow, 1e-10)
            fast = run(whole(short, mask, span), qkv, rows, short.parameters())
            assert_near(fast, slow, 1e-5)


class TestCausality:
    def test_the_future_may_change(self, case: DecoderCase) -> None:
        kernel, span = case.build(), case.span
        one, other = draw(22, span), draw(22, span, seed=1)
        expected = whole(kernel, None, span)(*one).detach()
        for last in (0, 6, 7, 20):
            until = (last + 1) * span
            mixed = [
                torch.cat((x[:, :, :until], y[:, :, until:]), 2)
                for x, y in zip(one, other, strict=True)
            ]
            changed = whole(kernel, None, span)(*mixed).detach()
            short = whole(kernel, None, span)(*(x[:, :, :until] for x in one)).detach()
            with at(last):
                assert_near([changed[:, :, :until], short], [expected[:, :, :until]] * 2, 1e-11)
                if last < 20:
                    assert (changed - expected)[:, :, until:].abs().max() > 1e-3

    def test_gradients_by_the_future_are_zero(self, case: DecoderCase) -> None:
        kernel, span = case.build(), case.span
        for position in (0, 9, 21):
            qkv = [x.requires_grad_() for x in draw(22, span)]
            own = slice(position * span, (position + 1) * span)
            out = whole(kernel, None, span)(*qkv)[:, :, own]
            gradients = torch.autograd.grad(out.square().sum(), qkv)
            with at(position):
                assert all((x[:, :, own.stop :] == 0).all() for x in gradients)
                assert (gradients[2][:, :, own].abs().sum(dim=(0, 1, 3)) > 0).all()

    def test_all_states_of_a_position_see_each_other(self, case: DecoderCase) -> None:
        kernel, span = case.build(), case.span
        q, k, v = draw(22, span)
        v.requires_grad_()
        whole(kernel, None, span)(q, k, v)[:, :, 5 * span].sum().backward()
        assert v.grad is not None
        seen = v.grad.abs().sum(dim=(0, 1, 3)).nonzero().flatten().tolist()
        assert seen == list(range(6 * span))

    def test_the_last_position_of_an_encoder_is_the_same(self, case: DecoderCase) -> None:
        if case.name.startswith("bigbird"):
            pytest.skip("what is global in an encoder is not in a decoder")
        kernel, span = case.build(), case.span
        qkv = draw(20, span)
        causal = whole(kernel, None, span)(*qkv)
        free = kernel(*qkv, key_mask_BM=None, span=span)
        assert_near([causal[:, :, -span:].detach()], [free[:, :, -span:].detach()], 1e-11)
        assert (causal - free)[:, :, :-span].abs().max() > 1e-2


class TestPadding:
    def test_changes_nothing(self, case: DecoderCase) -> None:
        kernel, span = case.build(), case.span
        assert_padding_changes_nothing(lambda mask: whole(kernel, mask, span), kernel, span)

    def test_in_front_would_change_without_the_mask(self, case: DecoderCase) -> None:
        kernel, span = case.build(), case.span
        qkv = draw(12, span)
        alone = whole(kernel, None, span)(*(x[:, :, 3 * span :] for x in qkv))
        unmasked = whole(kernel, None, span)(*qkv)
        assert (unmasked[:, :, 3 * span :] - alone).abs().max() > 1e-3

    def test_samples_of_a_batch_do_not_meet(self, case: DecoderCase) -> None:
        kernel, span = case.build(), case.span
        mask = mask_of(22, span, [(2, 22), (9, 14), (0, 0)])
        q, k, v = draw(22, span, batch=3)
        together = whole(kernel, mask, span)(q, k, v)
        assert (together[2] == 0).all()
        for b in range(3):
            one = slice(b, b + 1)
            alone = whole(kernel, mask[one], span)(q[one], k[one], v[one])
            assert_near([together[one].detach()], [alone.detach()], 1e-10)


def test_elastic_equals_stand_alone(case: DecoderCase) -> None:
    large, widest = case.build(32), case.span
    for heads, head_dim, layers in SHAPES:
        span = min(layers, widest)
        small = build_kernel(case.kind, case.settings, heads * head_dim, span, "decoder").double()
        prefix_of(small, large)
        qkv = draw(20, span, heads=heads, head_dim=head_dim)
        mask = mask_of(20, span, [(0, 19), (2, 20)])
        elastic = run(whole(large, mask, span), qkv, mask, large.parameters())
        alone = run(whole(small, mask, span), qkv, mask, small.parameters())
        with at(heads, head_dim, span):
            assert_near([corner(*pair) for pair in zip(elastic, alone, strict=True)], alone, 1e-12)


class TestEdges:
    def test_finite(self, case: DecoderCase) -> None:
        kernel, span = case.build(dtype=torch.float32), case.span
        assert_finite_at_the_edges(lambda mask: whole(kernel, mask, span), kernel, span)

    def test_gradients_by_differences(self, case: DecoderCase) -> None:
        kernel, span = case.build(4), case.span
        mask = mask_of(19, span, [(1, 18)])
        qkv = draw(19, span, batch=1, heads=1, seed=3)
        leaves = [*(x.requires_grad_() for x in qkv), *kernel.parameters()]
        attention = whole(kernel, mask, span)
        assert torch.autograd.gradcheck(
            lambda q, k, v, *_: attention(q, k, v), leaves, fast_mode=True
        )

    def test_meta_device(self, case: DecoderCase) -> None:
        kernel = case.build().to("meta")
        q, k, v = (x.to("meta") for x in draw(20, case.span))
        out, state = kernel.causal(q, k, v, span=case.span)
        assert out.shape == q.shape
        own = {name: x.to("meta") for name, x in places(kernel, 20, 20, case.span).items()}
        assert kernel.causal(q, k, v, span=case.span, state=state, **own)[0].shape == q.shape


class TestPrecision:
    @pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
    def test_bf16_autocast(self, case: DecoderCase, device: str) -> None:
        kernel, span = case.build(dtype=torch.float32).to(device), case.span
        qkv = [x.bfloat16() for x in draw(20, span)]
        attention = whole(kernel, None, span)
        with torch.autocast(device, dtype=torch.bfloat16):
            low = run(lambda *x: attention(*(y.to(device) for y in x)).cpu(), qkv)
        exact = run(whole(case.build(), None, span), [x.double() for x in qkv])
        assert low[0].dtype == torch.bfloat16
        linear = case.name.startswith(("cosformer", "norm", "performer"))
        assert_near(low[:1], exact[:1], 2**-8 if linear else 0.03)
        assert_finite(low)

    @pytest.mark.gpu
    def test_cuda_equals_cpu(self, case: DecoderCase) -> None:
        kernel, span = case.build(), case.span
        mask = mask_of(20, span, [(0, 17), (2, 20)])
        qkv = draw(20, span)
        here = run(whole(kernel, mask, span), qkv, mask)
        remote = whole(kernel.cuda(), mask.cuda(), span)
        there = run(lambda *x: remote(*(y.cuda() for y in x)).cpu(), qkv, mask)
        assert_near(there, here, 1e-10)


class TestChunks:
    @pytest.mark.parametrize("span", [1, 2, 3, 100])
    def test_their_length_does_not_matter(self, monkeypatch: pytest.MonkeyPatch, span: int) -> None:
        q, k, v = draw(9, span)
        place = torch.arange(9 * span) // span
        weights = (q @ k.mT) * (place[:, None] >= place[None, :])
        for chunk in (1, 2, 7, 64, 1000):
            monkeypatch.setattr(causal_linear, "CHUNK_STATES", chunk)
            with at(chunk):
                found = causal_linear.causal_sums(q, k, v, None, span)
                assert_near(found, [weights @ v, k.mT @ v], 1e-12)

    @pytest.mark.parametrize("positions", [512, 2048])
    def test_no_tensor_grows_faster_than_the_sequence(
        self, monkeypatch: pytest.MonkeyPatch, positions: int
    ) -> None:
        """Neither N × N nor N × D × D numbers are ever kept, forward or backward."""
        monkeypatch.undo()
        sizes: list[int] = []

        def note(x: Tensor) -> Tensor:
            sizes.append(x.numel())
            return x

        qkv = draw(positions, 1, batch=1, heads=1, head_dim=64, dtype=torch.float32)
        with torch.autograd.graph.saved_tensors_hooks(note, lambda x: x):
            run(whole(CosformerKernel(4096), None, 1), qkv)
        assert max(sizes) <= positions * 64 * 4


class TestRefusals:
    def test_linformer_cannot_be_causal(self) -> None:
        with pytest.raises(UsageError, match="mixes positions"):
            build_kernel("omni", replace(SETTINGS, omni_kernel="linformer"), 8, 1, "decoder")
        with pytest.raises(UsageError, match="mixes positions"):
            build_kernel("omni", replace(SETTINGS, omni_kernel="linformer"), 8, 1, "cross")
        kernel, (q, k, v) = LinformerKernel(4, 24, 1).double(), draw(4, 1)
        for refused in (
            lambda: kernel.causal(q, k, v),
            lambda: kernel.memory(k, v, key_mask_BM=None),
            lambda: kernel.read(q, (), torch.zeros(1, 4)),
        ):
            with pytest.raises(UsageError, match="LinformerKernel cannot stand in a decoder"):
                refused()

    @pytest.mark.parametrize("kernel", [CosformerKernel(9), BigBirdKernel(2, 9)])
    def test_too_long_an_input(self, kernel: CosformerKernel | BigBirdKernel) -> None:
        assert kernel.causal(*draw(9, 1))[0].isfinite().all()
        with pytest.raises(UsageError, match=r"10 positions.*max_length is 9"):
            kernel.causal(*draw(10, 1))


class TestBigBird:
    @pytest.mark.parametrize("span", [1, 3])
    @pytest.mark.parametrize("block", [0, 3, 8, 11])
    def test_sees_blocks_of_the_past_by_the_rule(self, block: int, span: int) -> None:
        kernel, size = BigBirdKernel(2, 40), 2 * span
        q, k, v = draw(30, span)
        v.requires_grad_()
        kernel.causal(q, k, v, span=span)[0][:, :, block * size + size - 1].sum().backward()
        assert v.grad is not None
        states = v.grad.abs().sum(dim=(0, 1, 3)).nonzero().flatten().tolist()
        blocks = naive.blocks_seen(block, range(block + 1), kernel.priority)
        assert states == [s for b in sorted(blocks) for s in range(b * size, (b + 1) * size)]
        assert len(blocks) == min(8, block + 1)
