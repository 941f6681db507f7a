"""The parameters of a network by name and shape, without memory for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from search_spaces.architecture import Architecture
from search_spaces.errors import DataError
from search_spaces.settings import ModelSettings
from search_spaces.tasks import TaskName
from supernet.building import build_network
from supernet.extraction import StandAlone


class _Undrawn(TorchFunctionMode):
    """Leaves out the drawing of first weights, for which the device ``meta`` loads a compiler."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        named = kwargs or {}
        if func.__name__ in ("normal_", "uniform_"):
            return args[0] if args else named["tensor"]
        if func.__name__ in ("mul", "__mul__") and isinstance(args[1], float):
            return args[0]
        if func is torch.randn:
            return torch.empty(*args, **{key: v for key, v in named.items() if key != "generator"})
        return func(*args, **named)


def bare_network(task: TaskName, settings: ModelSettings, architecture: Architecture) -> StandAlone:
    """A network of these sizes whose parameters have no memory yet (torch's device ``meta``)."""
    with torch.device("meta"), _Undrawn():
        return build_network(settings, task, architecture)


def parameter_shapes(
    task: TaskName, settings: ModelSettings, architecture: Architecture
) -> dict[str, tuple[int, ...]]:
    """The shape of each parameter of a network, by its name in ``network.network``.

    Raises:
        DataError: for sizes that are too large together.
    """
    try:
        state = bare_network(task, settings, architecture).network.state_dict()
    except (RuntimeError, OverflowError) as error:
        told = str(error).partition("\n")[0]
        raise DataError(f"a network of these sizes would be too large: {told}") from error
    return {name: tuple(tensor.shape) for name, tensor in state.items()}
