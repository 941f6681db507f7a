"""What networks that write tokens have in common."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from supernet.export.template.attention import Carried
from supernet.export.template.sizes import (
    MAX_LENGTH,
    MEMORY,
    MEMORY_LENGTH,
    SINUSOIDAL_POSITIONS,
    TRANSLATOR,
)

PAD, BOS, EOS = 0, 1, 2  # padding, begin and end mark


@dataclass
class State:
    """What is remembered between two tokens.

    `layers` is what each layer's self-attention carries on, None before the first token.
    """

    position: int
    layers: list[Carried | None]
    if TRANSLATOR:
        memories: list[Carried]  # what each layer keeps of the source

    def rows(self, rows: Tensor) -> State:
        """The state of these rows of the batch; a row may come up often or not at all."""
        layers = [None if one is None else taken(one, rows) for one in self.layers]
        if TRANSLATOR:
            return State(self.position, layers, [taken(one, rows) for one in self.memories])
        else:
            return State(self.position, layers)

    if MEMORY:

        def next_segment(self) -> State:
            """The state before the next segment of a text: the last keys and values stay."""
            layers = [
                None if one is None else tuple(part[:, :, -MEMORY_LENGTH:] for part in one)
                for one in self.layers
            ]
            return State(0, layers)


def taken(carried: Carried, rows: Tensor) -> Carried:
    """These rows of everything that is carried."""
    return tuple(part.index_select(0, rows) for part in carried)


def placed(x: Tensor, start: int) -> Tensor:
    """Token embeddings ``(B, N, D)`` of the positions from `start` on, as the stacks take them."""
    end, width = start + x.shape[1], x.shape[2]
    if end > MAX_LENGTH:
        raise ValueError(f"{end} positions, but the network has {MAX_LENGTH}")
    x = x * width**0.5
    if SINUSOIDAL_POSITIONS:
        pair = torch.arange((width + 1) // 2, device=x.device, dtype=torch.float32)
        rate = torch.exp(pair * (-2.0 * math.log(10_000.0) / width))
        angle = torch.arange(start, end, device=x.device, dtype=torch.float32)[:, None] * rate
        waves = torch.stack((angle.sin(), angle.cos()), dim=2).flatten(1)[:, :width]
        x = x + waves.to(x.dtype)
    return x
