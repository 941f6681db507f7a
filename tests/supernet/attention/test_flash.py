"""When causal sums are left to flash-linear-attention, and that they come out the same."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from supernet.attention import causal_linear, flash_linear
from supernet.attention.flash_linear import (
    LEAST_STATES,
    flash_causal_sums,
    flash_kernel,
    flash_takes,
)
from tests.supernet.attention.test_contract import assert_near, draw

CUDA, CPU = torch.device("cuda", 0), torch.device("cpu")


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """What is installed is looked up anew, and forgotten afterwards."""
    flash_kernel.cache_clear()
    yield
    flash_kernel.cache_clear()


def stand_in(
    q_BNHC: Tensor, k_BNHC: Tensor, v_BNHV: Tensor, **options: Any
) -> tuple[Tensor, Tensor]:
    """What the kernel computes, in its layout, from our own sums."""
    assert options["scale"] == 1.0 and options["output_final_state"]
    qkv = (x.transpose(1, 2) for x in (q_BNHC, k_BNHC, v_BNHV))
    out, sums = causal_linear.causal_sums(*qkv, options["initial_state"], 1)
    return out.transpose(1, 2), sums


@pytest.mark.parametrize(
    ("device", "dtype", "states", "span", "takes"),
    [
        (CUDA, torch.float32, LEAST_STATES, 1, True),
        (CUDA, torch.float32, LEAST_STATES - 1, 1, False),
        (CUDA, torch.float32, LEAST_STATES, 2, False),
        (CUDA, torch.float64, LEAST_STATES, 1, False),
        (CPU, torch.float32, LEAST_STATES, 1, False),
    ],
)
def test_only_long_plain_fp32_on_cuda(
    device: torch.device,
    dtype: torch.dtype,
    states: int,
    span: int,
    takes: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(flash_linear, "flash_kernel", lambda: stand_in)
    assert flash_takes(device, dtype, states, span) is takes
    monkeypatch.setattr(flash_linear, "flash_kernel", lambda: None)
    assert not flash_takes(device, dtype, states, span)


@pytest.mark.parametrize("installed", [True, False])
def test_the_package_is_imported_where_it_is(
    installed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = SimpleNamespace(chunk_simple_gla=stand_in)
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: "a spec" if installed else None)
    monkeypatch.setattr(
        importlib, "import_module", lambda name: {"fla.ops.simple_gla": found}[name]
    )
    assert flash_kernel() is (stand_in if installed else None)


@pytest.mark.parametrize("carried", [False, True])
@pytest.mark.parametrize("columns", [8, 9, 16])
def test_the_layout(carried: bool, columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flash_linear, "flash_kernel", lambda: stand_in)
    q, k, _ = draw(150, 1)
    v_BHNV = torch.randn(*q.shape[:3], columns, dtype=q.dtype)
    past = torch.randn(*q.shape[:2], q.shape[3], columns, dtype=q.dtype) if carried else None
    own = causal_linear.causal_sums(q, k, v_BHNV, past, 1)
    assert_near(flash_causal_sums(q, k, v_BHNV, past), own, 1e-12)


def test_causal_sums_go_there(monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v = draw(5, 1)
    monkeypatch.setattr(causal_linear, "flash_takes", lambda *_: True)
    monkeypatch.setattr(causal_linear, "flash_causal_sums", lambda *_: "theirs")
    assert causal_linear.causal_sums(q, k, v, None, 1) == "theirs"
    one = (x[:, :, :1] for x in (q, k, v))
    assert causal_linear.causal_sums(*one, None, 1) != "theirs"  # a step needs no kernel


@pytest.mark.gpu
@pytest.mark.parametrize("carried", [False, True])
def test_equals_our_own(carried: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if flash_kernel() is None:
        pytest.skip("the package fla-core is not installed (extra cuda-kernels)")
    leaves = [
        x.cuda().abs().requires_grad_() for x in draw(300, 1, head_dim=32, dtype=torch.float32)
    ]
    past = torch.rand(*leaves[0].shape[:2], 32, 33, device="cuda") if carried else None

    def run() -> list[Tensor]:
        q, k, v = leaves
        out, sums = causal_linear.causal_sums(q, k, causal_linear.with_ones(v), past, 1)
        out = causal_linear.divided(out)
        return [out, sums, *torch.autograd.grad(out.square().sum() + sums.mean(), leaves)]

    theirs = run()
    monkeypatch.setattr(causal_linear, "flash_takes", lambda *_: False)
    for found, expected in zip(theirs, run(), strict=True):
        assert (found - expected).abs().max() <= 5e-3 * expected.abs().max()
