"""What a network uses of the supernet's parameters: leading parts of them.

A part is a view, so its gradient would be spread, filled up with zeros, over a tensor of the whole
parameter's size, once for each network of an update; and under autocast each use of a part would be
cast anew. While a network trains within `Slices`, its parts are tensors of their own instead, cast
once an update, whose gradients are added to those of the parameters where they lie.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor, nn

Key = tuple[Tensor, tuple[int, ...], bool]
"""A parameter, the shape of a part of it, and whether the part is cast for products."""

_CURRENT: ContextVar[Slices | None] = ContextVar("slices", default=None)


def prefix(parameter: Tensor, *sizes: int) -> Tensor:
    """The leading ``sizes`` of a parameter as a view; the parameter itself when that is all.

    Raises:
        RuntimeError: for a size beyond the parameter's (indexing would cut it down silently).
    """
    for dim, size in enumerate(sizes):
        if parameter.shape[dim] != size:
            parameter = parameter.narrow(dim, 0, size)
    return parameter


def used(parameter: Tensor, *sizes: int) -> Tensor:
    """As `prefix`, for a network's computation."""
    slices = _CURRENT.get()
    return prefix(parameter, *sizes) if slices is None else slices.of(parameter, *sizes)


def multiplied(parameter: Tensor, *sizes: int) -> Tensor:
    """As `used`, of what is multiplied as a matrix: in the precision of products."""
    slices = _CURRENT.get()
    if slices is None:
        return prefix(parameter, *sizes)
    return slices.of(parameter, *sizes, product=True)


class Slices:
    """The parts of a model's parameters that a network uses.

    One network after the other trains within `training`, its gradients added by `backward`.
    """

    def __init__(self, model: nn.Module) -> None:
        """Nothing is in use yet.

        Args:
            model: whose parameters get gradients.
        """
        self._model = model
        self._parts: dict[Key, Tensor] = {}
        self._cast: dict[Tensor, Tensor] = {}
        self._gradients: dict[Tensor, Tensor] = {}

    def begin(self) -> None:
        """A new update: the parameters have other values."""
        if self._cast:
            with torch.no_grad():
                torch._foreach_copy_(list(self._cast.values()), list(self._cast))

    @contextmanager
    def training(self) -> Iterator[None]:
        """In it one network uses these parts."""
        token = _CURRENT.set(self)
        try:
            yield
        finally:
            _CURRENT.reset(token)
            self._parts.clear()

    def of(self, parameter: Tensor, *sizes: int, product: bool = False) -> Tensor:
        """The part of a parameter, cast where it is multiplied; as often as it is asked for."""
        cast = product and torch.is_autocast_enabled(parameter.device.type)
        shape = (*sizes, *parameter.shape[len(sizes) :])
        if not parameter.requires_grad or (shape == parameter.shape and not cast):
            return prefix(parameter, *sizes)
        key = parameter, shape, cast
        if (known := self._parts.get(key)) is None:
            source = self._in_products(parameter) if cast else parameter.detach()
            known = self._parts[key] = prefix(source, *sizes).detach().requires_grad_()
        return known

    def backward(
        self, output: Tensor, gradient: Tensor | None = None, *, by: Sequence[Tensor] = ()
    ) -> list[Tensor]:
        """As ``output.backward(gradient)``, with the gradients of parts added to the parameters'.

        Args:
            output: of the network.
            gradient: by it; 1 for a loss.
            by: what besides parameters a gradient is wanted of.

        Returns:
            The gradients by those.
        """
        whole = [p for p in self._model.parameters() if p.requires_grad]
        into = [*self._parts, *((one, one.shape, False) for one in whole)]
        leaves = [*self._parts.values(), *whole, *by]
        found = torch.autograd.grad(output, leaves, gradient, allow_unused=True)
        self._add(zip(into, found, strict=False))
        wanted = found[len(into) :]
        return [torch.zeros_like(x) if g is None else g for x, g in zip(by, wanted, strict=True)]

    def _add(self, gradients: Iterable[tuple[Key, Tensor | None]]) -> None:
        new: list[tuple[Tensor, Tensor]] = []  # gradients, and what is their first
        more: list[tuple[Tensor, Tensor]] = []
        cleared = list[Tensor]()
        for (parameter, shape, _), change in gradients:
            if change is None:
                continue
            known = parameter.grad is not None
            grown = self._gradient(parameter)
            if known or shape != parameter.shape:
                more.append((prefix(grown, *shape), change))
                if not known:
                    cleared.append(grown)
            else:
                new.append((grown, change))
        if new:
            torch._foreach_copy_(*_both(new))
        if cleared:
            torch._foreach_zero_(cleared)
        if more:
            torch._foreach_add_(*_both(more))

    def _in_products(self, parameter: Tensor) -> Tensor:
        if parameter not in self._cast:
            precision = torch.get_autocast_dtype(parameter.device.type)
            self._cast[parameter] = parameter.detach().to(precision)
        return self._cast[parameter]

    def _gradient(self, parameter: Tensor) -> Tensor:
        """The parameter's gradient; where it has none, one of whatever values."""
        if parameter.grad is None:
            if parameter not in self._gradients:
                self._gradients[parameter] = torch.empty_like(parameter)
            parameter.grad = self._gradients[parameter]
        return parameter.grad


def _both(pairs: Sequence[tuple[Tensor, Tensor]]) -> tuple[list[Tensor], list[Tensor]]:
    return [one for one, _ in pairs], [other for _, other in pairs]
