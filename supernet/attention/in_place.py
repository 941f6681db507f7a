"""Arithmetic in the memory of its first operand, where no gradient is asked for.

It is for what the caller has made itself and reads no more. On a CPU the time of such a step is
that of its memory, and memory that was just written is near.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def times(own: Tensor, factor: Tensor) -> Tensor:
    """``own * factor``."""
    return own * factor if torch.is_grad_enabled() else own.mul_(factor)


def plus(own: Tensor, other: Tensor | float) -> Tensor:
    """``own + other``."""
    return own + other if torch.is_grad_enabled() else own.add_(other)


def plus_product(own: Tensor, left: Tensor, right: Tensor, rate: int = 1) -> Tensor:
    """``own + rate * left @ right``, each of three dimensions."""
    out = None if torch.is_grad_enabled() else own
    return torch.baddbmm(own, left, right, alpha=rate, out=out)


def silu(own: Tensor) -> Tensor:
    """``own * sigmoid(own)``."""
    return F.silu(own, inplace=not torch.is_grad_enabled())
