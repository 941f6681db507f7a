"""Counts what a device would be asked for, and how often Python would wait for it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

# Their result is a number of Python, or a tensor whose size is not known before it is computed.
WAITING = {
    "aten._local_scalar_dense.default",
    "aten.masked_select.default",
    "aten.nonzero.default",
    "aten.unique_consecutive.default",
    "aten._unique2.default",
}


class CountedOperations(TorchDispatchMode):
    """Counts operations of torch while it is entered.

    A list that is made of a tensor counts as a wait, which torch does not dispatch on a CPU.

    Attributes:
        calls: operation → how often it was asked for.
        waits: of them, those that a device is waited for.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()
        self.waits: Counter[str] = Counter()
        listed: Callable[[Tensor], Any] = Tensor.tolist

        def tolist(tensor: Tensor) -> Any:
            self.waits["tolist"] += 1
            return listed(tensor)

        monkeypatch.setattr(Tensor, "tolist", tolist)

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        name = str(func)
        self.calls[name] += 1
        indices = args[1] if name.startswith("aten.index.") else ()
        masks = any(one is not None and one.dtype == torch.bool for one in indices)
        if name in WAITING or masks:
            self.waits[name] += 1
        return func(*args, **(kwargs or {}))
