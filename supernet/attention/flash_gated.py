"""Gated linear attention by the CUDA kernels of flash-linear-attention, where they are installed.

One kernel for each form of `gated_chunks`. They multiply fp32 in TF32, so that they agree with our
own chunks to about three digits, and are not used for fp64.

The calls follow version 0.6 of the package `fla-core`. They were written where no CUDA device was
at hand: the layout is tested with stand-ins, the numbers only by the tests marked `gpu`.

Source: as `flash_linear`.

Shapes: B batch, H heads, N states, C features, V value columns, G gates of a state (1 or C).
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import cache
from typing import Any, Literal

import torch
from torch import Tensor

from supernet.attention.flash_linear import flash_takes

FlashForm = Literal["head", "channel", "delta"]

FLASH_FUNCTIONS: dict[FlashForm, tuple[str, str]] = {
    "head": ("fla.ops.simple_gla", "chunk_simple_gla"),
    "channel": ("fla.ops.gla", "chunk_gla"),
    "delta": ("fla.ops.gated_delta_rule", "chunk_gated_delta_rule"),
}
"""Module and function of a gate per head, a gate per feature, and the gated delta rule."""


@cache
def flash_gated_kernel(form: FlashForm) -> Callable[..., Any]:
    """The kernel's function; the package has to be installed."""
    module, name = FLASH_FUNCTIONS[form]
    kernel: Callable[..., Any] = getattr(importlib.import_module(module), name)
    return kernel


def flash_gated_takes(device: torch.device, dtype: torch.dtype, states: int) -> bool:
    """Whether sums of so many queries are left to the kernels."""
    return flash_takes(device, dtype, states, 1)


def flash_gated_sums(
    q_BHNC: Tensor,
    k_BHNC: Tensor,
    v_BHNV: Tensor,
    log_gate_BHNG: Tensor,
    beta_BHN: Tensor | None,
    past_BHCV: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """As `gated_chunks.gated_sums`, by the kernels."""
    log_gate_BNHG = log_gate_BHNG.transpose(1, 2)
    form: FlashForm = "head" if log_gate_BHNG.shape[-1] == 1 else "channel"
    options: dict[str, Tensor] = {}
    if beta_BHN is not None:
        form, options = "delta", {"beta": beta_BHN.transpose(1, 2)}
    out_BNHV, state_BHCV = flash_gated_kernel(form)(
        *(x.transpose(1, 2) for x in (q_BHNC, k_BHNC, v_BHNV)),
        g=log_gate_BNHG if form == "channel" else log_gate_BNHG[..., 0],
        **options,
        scale=1.0,
        initial_state=past_BHCV,
        output_final_state=True,
    )
    return out_BNHV.transpose(1, 2), state_BHCV
