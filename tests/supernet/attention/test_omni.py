"""Omnidirectional kernels: worked examples, what each may see, and how kinds become kernels."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from search_spaces.architecture import AttentionKind
from search_spaces.errors import ArchitectureError, UsageError
from search_spaces.settings import ModelSettings, TokenInput
from supernet.attention import AttentionKernel, build_kernel
from supernet.attention.bigbird import BigBirdKernel
from supernet.attention.linear import CosformerKernel, NormLinearKernel
from supernet.attention.omni import LinformerKernel, PerformerKernel
from supernet.attention.softmax import SoftmaxKernel
from tests.support.naive_attention import blocks_seen

SETTINGS = ModelSettings(input=TokenInput(vocab_size=16), max_length=24, qkv_dim=16)


def draw(states: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    shape = (2, 2, states, 4)
    return [torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(3)]


def seen_by(kernel: AttentionKernel, query: int, states: int, span: int = 1) -> list[int]:
    """Numbers of the keys whose values reach the output of one query."""
    q, k, v = draw(states)
    v.requires_grad_()
    kernel(q, k, v, key_mask_BM=None, span=span)[:, :, query].sum().backward()
    assert v.grad is not None
    return v.grad.abs().sum(dim=(0, 1, 3)).nonzero().flatten().tolist()


class TestPerformer:
    def test_worked_example(self) -> None:
        """Features 2 and 1 of the keys, so weights of two and one thirds."""
        k = torch.tensor([2.0 - 1e-3, 1.0 - 1e-3], dtype=torch.float64).view(1, 1, 2, 1)
        v = torch.tensor([3.0, 9.0], dtype=torch.float64).view(1, 1, 2, 1)
        out = PerformerKernel()(torch.ones_like(k), k, v, key_mask_BM=None)
        assert out.flatten().tolist() == pytest.approx([5.0, 5.0])

    def test_has_no_positions(self) -> None:
        q, k, v = draw(12)
        out = PerformerKernel()(q, k, v, key_mask_BM=None, span=3)
        turned = PerformerKernel()(q, k.flip(2), v.flip(2), key_mask_BM=None, span=3)
        assert torch.allclose(out, turned, atol=1e-12)


class TestLinformer:
    def test_identity_projection_is_full_attention(self) -> None:
        kernel = LinformerKernel(12, 6, 2).double()
        with torch.no_grad():
            kernel.projection_KTP.copy_(torch.eye(12).view(12, 6, 2))
        out = kernel(*draw(12), key_mask_BM=None, span=2)
        full = SoftmaxKernel(0, 8)(*draw(12), key_mask_BM=None)
        assert torch.allclose(out, full, atol=1e-12)

    def test_rank_one_gives_every_query_the_same_mixture(self) -> None:
        kernel = LinformerKernel(1, 12, 1).double()
        q, k, v = draw(12)
        mixture = torch.einsum("n,bhnd->bhd", kernel.projection_KTP[0, :, 0], v)
        out = kernel(q, k, v, key_mask_BM=None)
        assert torch.allclose(out, mixture[:, :, None].expand(out.shape), atol=1e-12)

    def test_bare_and_masked_input_read_the_same_columns(self) -> None:
        kernel = LinformerKernel(5, 8, 3).double()
        for span in (1, 2, 3):
            mask = torch.ones(2, 6 * span, dtype=torch.bool)
            bare = kernel(*draw(6 * span), key_mask_BM=None, span=span)
            masked = kernel(*draw(6 * span), key_mask_BM=mask, span=span)
            assert torch.allclose(bare, masked, atol=1e-12)

    def test_initial_size_and_seed(self) -> None:
        kernel = LinformerKernel(32, 64, 4)
        drawn = []
        for seed in (1, 1, 2):
            kernel.reset_parameters(torch.Generator().manual_seed(seed))
            drawn.append(kernel.projection_KTP.detach().clone())
        assert torch.equal(drawn[0], drawn[1])
        assert not torch.equal(drawn[0], drawn[2])
        assert float(drawn[0].std()) == pytest.approx(1 / math.sqrt(64 * 4), rel=0.05)

    def test_too_long_an_input_is_refused(self) -> None:
        with pytest.raises(UsageError, match=r"7 positions.*max_length is 6"):
            LinformerKernel(4, 6, 2).double()(*draw(14), key_mask_BM=None, span=2)


class TestBigBird:
    @pytest.mark.parametrize(("states", "span"), [(1, 1), (7, 1), (16, 1), (32, 2), (45, 3)])
    def test_up_to_eight_blocks_is_full_attention(self, states: int, span: int) -> None:
        out = BigBirdKernel(2, 40)(*draw(states), key_mask_BM=None, span=span)
        full = SoftmaxKernel(0, 8)(*draw(states), key_mask_BM=None)
        assert torch.allclose(out, full, atol=1e-12)

    def test_nine_blocks_is_not(self) -> None:
        out = BigBirdKernel(2, 40)(*draw(18), key_mask_BM=None)
        full = SoftmaxKernel(0, 8)(*draw(18), key_mask_BM=None)
        assert torch.allclose(out[:, :, :4], full[:, :, :4], atol=1e-12)
        assert (out[:, :, 4:] - full[:, :, 4:]).abs().max() > 1e-3

    @pytest.mark.parametrize("span", [1, 3])
    @pytest.mark.parametrize("query_block", [0, 1, 2, 9, 14])
    def test_sees_the_blocks_of_the_rule(self, query_block: int, span: int) -> None:
        kernel, size = BigBirdKernel(2, 40), 2 * span
        seen = seen_by(kernel, query_block * size, 15 * size, span)
        blocks = sorted({state // size for state in seen})
        assert set(blocks) == blocks_seen(query_block, range(15), kernel.priority)
        assert seen == [state for b in blocks for state in range(b * size, (b + 1) * size)]
        assert len(blocks) == (15 if query_block < 2 else 8)

    def test_inside_are_two_global_three_window_and_three_random_blocks(self) -> None:
        blocks = {state // 2 for state in seen_by(BigBirdKernel(2, 40), 18, 30)}
        random = blocks - {0, 1} - {8, 9, 10}
        assert {0, 1, 8, 9, 10} <= blocks
        assert len(random) == 3

    def test_random_blocks_differ_by_row_and_not_by_kernel(self) -> None:
        first, second = BigBirdKernel(2, 100), BigBirdKernel(2, 100)
        assert torch.equal(first.priority, second.priority)
        far = {tuple(sorted(blocks_seen(b, range(2, 50), first.priority))) for b in range(4, 50)}
        assert len(far) == 46

    def test_every_block_is_seen_by_someone_at_random(self) -> None:
        priority = BigBirdKernel(2, 100).priority
        seen = [c for b in range(2, 50) for c in blocks_seen(b, range(50), priority)]
        assert min(seen.count(c) for c in range(50)) >= 3

    def test_the_last_block_may_be_short(self) -> None:
        assert seen_by(BigBirdKernel(4, 40), 38, 39)[-3:] == [36, 37, 38]

    def test_too_long_an_input_is_refused(self) -> None:
        with pytest.raises(UsageError, match=r"41 positions.*max_length is 40"):
            BigBirdKernel(2, 40)(*draw(41), key_mask_BM=None)


class TestBuildKernel:
    @pytest.mark.parametrize(
        ("kind", "change", "expected"),
        [
            ("softmax", {}, SoftmaxKernel),
            ("linear", {}, CosformerKernel),
            ("linear", {"linear_kernel": "norm"}, NormLinearKernel),
            ("omni", {}, PerformerKernel),
            ("omni", {"omni_kernel": "linformer"}, LinformerKernel),
            ("omni", {"omni_kernel": "bigbird"}, BigBirdKernel),
            ("omni", {"omni_kernel": "full"}, SoftmaxKernel),
        ],
    )
    def test_kinds(
        self, kind: AttentionKind, change: dict[str, str], expected: type[AttentionKernel]
    ) -> None:
        kernel = build_kernel(kind, replace(SETTINGS, **change), 16, 2)  # type: ignore[arg-type]
        assert type(kernel) is expected

    def test_full_omni_attention_has_no_relative_keys(self) -> None:
        settings = replace(SETTINGS, omni_kernel="full", relative_positions=4)
        assert list(build_kernel("omni", settings, 16, 2).parameters()) == []
        assert len(list(build_kernel("softmax", settings, 16, 1).parameters())) == 1

    def test_unknown_kind(self) -> None:
        with pytest.raises(ArchitectureError, match="'sparse'; allowed are softmax, linear, omni"):
            build_kernel("sparse", SETTINGS, 16, 1)
