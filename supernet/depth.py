"""Which blocks of a stack a network of fewer layers consists of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

ORDER = "layer_order"


class Stack(nn.Module):
    """Blocks of which a network has the first so many, or those that matter most.

    A supernet that inherits from a checkpoint has an order of its blocks: a network of K layers
    consists of the first K of that order, as they stand in the stack. The order comes with the
    weights (the buffer ``layer_order``) and is there only where weights have one.

    Attributes:
        blocks: all of them.
    """

    blocks: nn.ModuleList

    def __init__(self) -> None:
        super().__init__()
        self._order: tuple[int, ...] | None = None

    def order_layers(self, order: Sequence[int]) -> None:
        """Take networks of fewer layers from the front of `order`, the numbers of all blocks."""
        self._order = tuple(order)
        self.register_buffer(ORDER, torch.tensor(self._order, dtype=torch.int64))

    def kept(self, count: int) -> list[int]:
        """Numbers of the blocks of a network of `count` layers, ascending."""
        assert count <= len(self.blocks), "the network has more layers than the model"
        return list(range(count)) if self._order is None else sorted(self._order[:count])

    def _load_from_state_dict(self, state_dict: dict[str, Tensor], prefix: str, *rest: Any) -> None:
        if (order := state_dict.get(f"{prefix}{ORDER}")) is not None:
            self.order_layers(order.tolist())
        super()._load_from_state_dict(state_dict, prefix, *rest)
