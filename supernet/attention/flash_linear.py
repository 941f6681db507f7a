"""Causal linear attention by the CUDA kernels of flash-linear-attention, where they are installed.

The kernels are those for a decay that is not there (`chunk_simple_gla`). They are written in Triton
and multiply fp32 in TF32, so that they agree with `causal_linear` to about three digits. They are
not used for fp64, nor where several states of a position see each other, which they cannot do.

The call follows version 0.6 of the package `fla-core`. It was written where no CUDA device was at
hand: the layout is tested with a stand-in, the numbers only by the tests marked `gpu`.

Source: Yang and Zhang, FLA: A Triton-Based Library for Hardware-Efficient Implementations of Linear
Attention Mechanism (2024).

Shapes: B batch, H heads, N states, C features, V value columns.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

LEAST_STATES = 256
"""Of sequences that are left to the kernels: shorter ones are a few products here, and Triton takes
over a minute to choose among the kernels' forms, on an H100, when they first run in a process."""
ALIGNED_COLUMNS = 16  # rows of values then start at whole 64 bytes


@cache
def flash_kernel() -> Callable[..., Any] | None:
    """The kernel's function; None when the package is not installed."""
    if importlib.util.find_spec("fla") is None:
        return None
    kernel: Callable[..., Any] = importlib.import_module("fla.ops.simple_gla").chunk_simple_gla
    return kernel


def flash_takes(device: torch.device, dtype: torch.dtype, states: int, span: int) -> bool:
    """Whether sums of so many queries, with `span` states per position, are left to the kernel."""
    fits = device.type == "cuda" and dtype == torch.float32 and span == 1 and states >= LEAST_STATES
    if not fits or torch.are_deterministic_algorithms_enabled():  # its kernels promise nothing
        return False
    return flash_kernel() is not None


def flash_causal_sums(
    q_BHNC: Tensor, k_BHNC: Tensor, v_BHNV: Tensor, past_BHCV: Tensor | None
) -> tuple[Tensor, Tensor]:
    """As `causal_linear.causal_sums` with one state per position, by the kernel."""
    kernel, columns = flash_kernel(), v_BHNV.shape[-1]
    assert kernel is not None, "flash_takes was not asked"
    missing = -columns % ALIGNED_COLUMNS
    out_BNHV, sums_BHCV = kernel(
        *(x.transpose(1, 2) for x in (q_BHNC, k_BHNC, F.pad(v_BHNV, (0, missing)))),
        scale=1.0,
        initial_state=None if past_BHCV is None else F.pad(past_BHCV, (0, missing)),
        output_final_state=True,
    )
    return out_BNHV.transpose(1, 2)[..., :columns], sums_BHCV[..., :columns]
