"""Linear attention: worked examples, and the defects of the published code that must not return."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from search_spaces.errors import UsageError
from supernet.attention.linear import (
    CosformerKernel,
    NormLinearKernel,
    cosine_features,
    relu_features,
)


def column(*numbers: float) -> Tensor:
    """One batch, one head, width 1."""
    return torch.tensor(numbers, dtype=torch.float64).view(1, 1, -1, 1)


def draw(length: int, head_dim: int = 4) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    shape = (2, 2, length, head_dim)
    return [torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(3)]


class TestCosformer:
    def test_worked_example(self) -> None:
        """M = 3: angles of 30, 60 and 90 degrees, so cosines 1, √3/2 and 1/2 of the distances."""
        v = column(1.0, 10.0, 100.0)
        out = CosformerKernel(3)(torch.ones_like(v), torch.ones_like(v), v, key_mask_BM=None)
        near = math.sqrt(3) / 2
        expected = [
            (1 + 10 * near + 50) / (1.5 + near),
            (near + 10 + 100 * near) / (1 + 2 * near),
            (0.5 + 10 * near + 100) / (1.5 + near),
        ]
        assert out.flatten().tolist() == pytest.approx(expected)

    def test_features_multiply_to_the_cosine(self) -> None:
        positions = torch.arange(8)[None]
        features = cosine_features(torch.ones(1, 1, 8, 1, dtype=torch.float64), positions, 8)
        angle = torch.arange(1, 9, dtype=torch.float64) * (math.pi / 16)
        expected = (angle[:, None] - angle[None, :]).cos()
        assert torch.allclose((features @ features.mT)[0, 0], expected, atol=1e-14)

    def test_angles_do_not_depend_on_the_length(self) -> None:
        """Keys that weigh nothing may come or go; with M = current length they would matter."""
        q, k, v = (x.abs() for x in draw(12))
        k[:, :, 7:] = -1.0
        long = CosformerKernel(12)(q, k, v, key_mask_BM=None)[:, :, :7]
        short = CosformerKernel(12)(*(x[:, :, :7] for x in (q, k, v)), key_mask_BM=None)
        other_constant = CosformerKernel(7)(*(x[:, :, :7] for x in (q, k, v)), key_mask_BM=None)
        assert torch.allclose(long, short, atol=1e-2)
        assert (long - other_constant).abs().max() > 5e-2

    def test_positions_matter(self) -> None:
        q, k, v = draw(10)
        out = CosformerKernel(10)(q, k, v, key_mask_BM=None)
        turned = CosformerKernel(10)(q, k.flip(2), v.flip(2), key_mask_BM=None)
        assert (out - turned).abs().max() > 1e-2

    def test_is_a_weighted_mean(self) -> None:
        q, k, _ = draw(10)
        ones = torch.ones_like(q)
        assert torch.allclose(CosformerKernel(10)(q, k, ones, key_mask_BM=None), ones)

    def test_padding_far_outside_of_the_model_stays_a_weighted_mean(self) -> None:
        """Beyond M the cosine would be negative, and the denominator with it."""
        q, k, _ = draw(60)
        mask = (torch.arange(60) // 10 == 2).expand(2, 60)
        out = CosformerKernel(10)(q, k, torch.ones_like(q), key_mask_BM=mask)
        assert torch.allclose(out, torch.ones_like(out))

    def test_sees_both_directions(self) -> None:
        q, k, v = (x.requires_grad_() for x in draw(6))
        CosformerKernel(6)(q, k, v, key_mask_BM=None)[:, :, 0].sum().backward()
        assert v.grad is not None
        assert (v.grad.abs().sum(dim=(0, 1, 3)) > 0).all()

    def test_gradient_near_zero_is_bounded(self) -> None:
        """Queries just above zero: at most 1e3 times the spread of the values."""
        _, k, v = draw(20)
        q = torch.full_like(k, 1e-9).requires_grad_()
        CosformerKernel(20)(q, k, v, key_mask_BM=None).sum().backward()
        assert q.grad is not None
        assert q.grad.abs().max() <= 1e3 * 4 * (v.max() - v.min())

    def test_too_long_an_input_is_refused(self) -> None:
        kernel = CosformerKernel(9)
        assert kernel(*draw(9), key_mask_BM=None).isfinite().all()
        with pytest.raises(UsageError, match=r"10 positions.*max_length is 9"):
            kernel(*draw(10), key_mask_BM=None)

    def test_no_feature_vanishes(self) -> None:
        assert relu_features(torch.tensor([-5.0, 0.0, 2.0])).tolist() == pytest.approx(
            [1e-3, 1e-3, 2.001]
        )


class TestNormLinear:
    def test_worked_example(self) -> None:
        """Zero queries and keys have the feature 1: the mean value, over its root mean square."""
        v = torch.tensor([[3.0, 0.0], [3.0, 8.0]], dtype=torch.float64)[None, None]
        kernel = NormLinearKernel(2).double()
        with torch.no_grad():
            kernel.gain_W.copy_(torch.tensor([1.0, 10.0]))
        out = kernel(torch.zeros_like(v), torch.zeros_like(v), v, key_mask_BM=None)
        size = math.sqrt((9 + 16) / 2)
        assert out[0, 0].flatten().tolist() == pytest.approx([3 / size, 40 / size] * 2)

    def test_root_mean_square_of_each_head_is_one(self) -> None:
        out = NormLinearKernel(8).double()(*draw(10), key_mask_BM=None)
        rms = out.square().mean(dim=-1).sqrt()
        assert torch.allclose(rms, torch.ones_like(rms), atol=1e-4)

    def test_heads_do_not_meet(self) -> None:
        q, k, v = draw(10)
        kernel = NormLinearKernel(8).double()
        both = kernel(q, k, v, key_mask_BM=None)
        first = kernel(q[:, :1], k[:, :1], v[:, :1], key_mask_BM=None)
        assert torch.allclose(both[:, :1], first, atol=1e-12)

    def test_gain_belongs_to_its_head(self) -> None:
        kernel = NormLinearKernel(8).double()
        before = kernel(*draw(10), key_mask_BM=None)
        with torch.no_grad():
            kernel.gain_W[4:] = 3.0
        after = kernel(*draw(10), key_mask_BM=None)
        assert torch.allclose(after[:, 0], before[:, 0])
        assert torch.allclose(after[:, 1], 3 * before[:, 1])

    def test_repeating_the_input_changes_nothing(self) -> None:
        """The number of keys is divided out, epsilon included."""
        q, k, v = (1e-3 * x for x in draw(6))
        kernel = NormLinearKernel(8).double()
        once = kernel(q, k, v, key_mask_BM=None)
        twice = kernel(*(torch.cat((x, x), dim=2) for x in (q, k, v)), key_mask_BM=None)
        assert torch.allclose(twice[:, :, :6], once, atol=1e-12)
