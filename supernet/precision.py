"""In which precision products are computed on a device, and whether twice in the same way."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

AMPERE = (8, 0)  # the first cards with products of bfloat16 and of TF32


def has_bfloat16(device: str | torch.device) -> bool:
    """Whether a device is a graphics card with products of bfloat16."""
    if torch.device(device).type != "cuda":
        return False
    return torch.cuda.get_device_capability(device) >= AMPERE


def autocast(device: str | torch.device, wanted: bool | None = None) -> torch.autocast:
    """A context in which matrix products are in bfloat16, or a context that changes nothing.

    Args:
        device: where.
        wanted: which of the two; None for bfloat16 on cards that have it.
    """
    enabled = has_bfloat16(device) if wanted is None else wanted
    return torch.autocast(torch.device(device).type, dtype=torch.bfloat16, enabled=enabled)


@contextmanager
def tf32(device: str | torch.device, wanted: bool | None = None) -> Iterator[None]:
    """In it what autocast leaves in fp32 on a card is multiplied in TF32: 10 bits of fractions.

    Args:
        device: where; nothing changes on a processor.
        wanted: as of `autocast`; without bfloat16 products are fp32 ones, those of convolutions
            too, which torch multiplies in TF32 by itself.
    """
    if not has_bfloat16(device):
        yield
        return
    products, convolutions = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    if wanted is False:
        torch.backends.cudnn.allow_tf32 = False
    else:
        torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(products)
        torch.backends.cudnn.allow_tf32 = convolutions


@contextmanager
def repeatable(device: str | torch.device, wanted: bool) -> Iterator[None]:
    """In it a card computes the same whenever it is asked the same; a processor does in any case.

    Raises:
        RuntimeError: in it, for an operation that has no such way on a card.
    """
    if not wanted or torch.device(device).type == "cpu":
        yield
        return
    before = torch.are_deterministic_algorithms_enabled()
    filling: Any = torch.utils.deterministic  # what is allocated is filled, to find faults
    filled = filling.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True)
    filling.fill_uninitialized_memory = False
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)
        filling.fill_uninitialized_memory = filled
