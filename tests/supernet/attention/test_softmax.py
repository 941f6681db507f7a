"""Softmax attention: worked examples and relative keys."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from supernet.attention.softmax import SoftmaxKernel, fused_attention, masked_attention


def column(*numbers: float) -> Tensor:
    """One batch, one head, width 1."""
    return torch.tensor(numbers, dtype=torch.float64).view(1, 1, -1, 1)


def draw(length: int, seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [
        torch.randn(2, 2, length, 4, generator=generator, dtype=torch.float64) for _ in range(3)
    ]


def relative_kernel(distance: int, dim: int = 8) -> SoftmaxKernel:
    kernel = SoftmaxKernel(distance, dim).double()
    assert kernel.relative_keys_CW is not None
    torch.nn.init.normal_(kernel.relative_keys_CW, generator=torch.Generator().manual_seed(1))
    return kernel


def test_worked_example() -> None:
    q, k, v = column(1.0, 0.0), column(0.0, math.log(3.0)), column(0.0, 8.0)
    out = SoftmaxKernel(0, 1)(q, k, v, key_mask_BM=None)
    assert out.flatten().tolist() == pytest.approx([6.0, 4.0])


def test_worked_example_with_a_mask() -> None:
    q, k, v = column(1.0, 0.0), column(0.0, math.log(3.0)), column(5.0, 8.0)
    out = SoftmaxKernel(0, 1)(q, k, v, key_mask_BM=torch.tensor([[True, False]]))
    assert out.flatten().tolist() == pytest.approx([5.0, 5.0])


def test_worked_example_with_relative_keys() -> None:
    """Keys one before, at and after the query weigh 1, 2 and 4; farther ones as the nearest row."""
    kernel = SoftmaxKernel(1, 1).double()
    assert kernel.relative_keys_CW is not None
    with torch.no_grad():
        kernel.relative_keys_CW.copy_(torch.tensor([[1.0], [2.0], [4.0]]).log())
    v = column(1.0, 10.0, 100.0)
    out = kernel(torch.ones_like(v), torch.zeros_like(v), v, key_mask_BM=None)
    expected = [(2 + 40 + 400) / 10, (1 + 20 + 400) / 7, (1 + 10 + 200) / 4]
    assert out.flatten().tolist() == pytest.approx(expected)


def test_new_relative_keys_change_nothing() -> None:
    q, k, v = draw(9)
    plain = SoftmaxKernel(0, 8)(q, k, v, key_mask_BM=None)
    new = SoftmaxKernel(3, 8).double()(q, k, v, key_mask_BM=None)
    assert torch.allclose(plain, new, atol=1e-12)
    assert not torch.allclose(plain, relative_kernel(3)(q, k, v, key_mask_BM=None), atol=1e-3)


def test_new_relative_keys_learn() -> None:
    kernel = SoftmaxKernel(3, 8).double()
    assert kernel.relative_keys_CW is not None
    kernel(*draw(9), key_mask_BM=None).square().sum().backward()
    gradient = kernel.relative_keys_CW.grad
    assert gradient is not None
    assert (gradient.abs().sum(dim=1) > 0).all()


def test_relative_keys_see_distances_only() -> None:
    """Moving everything by one place moves the output; only the rim has other neighbours."""
    kernel, mask = relative_kernel(2), torch.ones(2, 9, dtype=torch.bool)
    q, k, v = draw(9)
    moved = [torch.cat((torch.zeros_like(x[:, :, :4]), x), dim=2) for x in (q, k, v)]
    moved_mask = torch.cat((torch.zeros_like(mask[:, :4]), mask), dim=1)
    out = kernel(*moved, key_mask_BM=moved_mask)[:, :, 4:]
    assert torch.allclose(out, kernel(q, k, v, key_mask_BM=mask), atol=1e-12)


def test_relative_keys_make_order_matter() -> None:
    q, k, v = draw(9)
    for kernel, same in ((SoftmaxKernel(0, 8), True), (relative_kernel(2), False)):
        out = kernel(q, k, v, key_mask_BM=None)
        swapped = kernel(q, k.flip(2), v.flip(2), key_mask_BM=None)
        assert torch.allclose(out, swapped, atol=1e-10) is same


def test_more_distance_than_tokens() -> None:
    """Rows beyond the sequence are never read."""
    q, k, v = draw(3)
    kernel = relative_kernel(6)
    assert kernel.relative_keys_CW is not None
    kernel(q, k, v, key_mask_BM=None).sum().backward()
    gradient = kernel.relative_keys_CW.grad
    assert gradient is not None
    assert (gradient.abs().sum(dim=1) > 0).tolist() == [False] * 4 + [True] * 5 + [False] * 4


def test_a_sample_without_keys_does_not_spoil_the_others() -> None:
    q, k, v = draw(5)
    mask = torch.tensor([[False] * 5, [True] * 5])
    out = masked_attention(q, k, v, mask)
    assert (out[0] == 0).all()
    assert torch.allclose(out[1:], masked_attention(q[1:], k[1:], v[1:], None))


# -- bf16 on a CPU ----------------------------------------------------------------------------


MASKS: dict[str, dict[str, Any]] = {
    "none": {},
    "causal": {"is_causal": True},
    "seen keys": {"mask": torch.tensor([True, True, False, True, True]).view(1, 1, 1, 5)},
    "a bias": {"mask": torch.linspace(-2, 2, 25).view(1, 1, 5, 5)},
    "a bias with hidden keys": {"mask": torch.zeros(5, 5).masked_fill(torch.eye(5) > 0, -math.inf)},
    "a bias in bf16": {"mask": torch.linspace(-2, 2, 25).view(1, 1, 5, 5).bfloat16()},
}


@pytest.mark.parametrize("options", MASKS.values(), ids=MASKS.keys())
@pytest.mark.parametrize("autocast", [False, True])
def test_in_bf16_it_is_what_fp32_gives_rounded_once(
    options: dict[str, Any], autocast: bool
) -> None:
    low = [x.bfloat16().requires_grad_() for x in draw(5)]
    high = [x.detach().float().requires_grad_() for x in low]
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        out = fused_attention(*low, **options)
    exact = reference(*high, **options)
    assert out.dtype == torch.bfloat16
    assert torch.equal(out, exact.bfloat16())
    found = torch.autograd.grad(out.float().square().sum(), low)
    wanted = torch.autograd.grad(exact.bfloat16().float().square().sum(), high)
    for mine, theirs in zip(found, wanted, strict=True):
        assert torch.equal(mine, theirs.bfloat16())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_in_other_precisions_it_is_torchs(dtype: torch.dtype) -> None:
    qkv = [x.to(dtype) for x in draw(5)]
    for options in list(MASKS.values())[:3]:
        out = fused_attention(*qkv, **options)
        assert out.dtype == dtype and torch.equal(out, reference(*qkv, **options))


def reference(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, is_causal: bool = False
) -> Tensor:
    mask = mask.float() if mask is not None and mask.dtype == torch.bfloat16 else mask
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=is_causal)
