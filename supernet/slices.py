"""What a network uses of the supernet's parameters: leading parts of them.

A part is a view, so its gradient would be spread, filled up with zeros, over a tensor of the whole
parameter's size, once for each network of an update; and under autocast each use of a part would be
cast anew. While a network trains within `Slices`, its parts are tensors of their own instead, cast
once an update, whose gradients are added to those of the parameters where they lie. Parameters that
are multiplied with the same input are cast into one tensor, so that their parts are one matrix.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Key = tuple[tuple[Tensor, ...], tuple[int, ...], bool]
"""Parameters of one shape whose parts stand one below the other, as a rule a single one; the shape
of each part; and whether they are cast for products."""

_CURRENT: ContextVar[Casts | None] = ContextVar("slices", default=None)


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
    slices = _current()
    return prefix(parameter, *sizes) if slices is None else slices.of(parameter, *sizes)


def multiplied(parameter: Tensor, *sizes: int) -> Tensor:
    """As `used`, of what is multiplied as a matrix: in the precision of products."""
    slices = _current()
    if slices is None:
        return prefix(parameter, *sizes)
    return slices.of(parameter, *sizes, product=True)


def rows(table: Tensor, numbers: Tensor, width: int) -> Tensor:
    """The leading `width` of some rows of a table, ``numbers.shape + (width,)``.

    A gradient by the whole table would be nearly all zeros, and of a large vocabulary costs more
    than a layer; in training that of the rows is added where they lie.

    Args:
        table: a parameter ``(rows, widest)``.
        numbers: of rows, from 0; int64.
        width: at most the table's.
    """
    slices = _current()
    return (_looked_up if slices is None else slices.rows)(table, numbers, width)


def _looked_up(table: Tensor, numbers: Tensor, width: int) -> Tensor:
    return F.embedding(numbers, prefix(table, len(table), width))


def stacked(parameters: Sequence[Tensor], *sizes: int) -> Tensor | None:
    """The parts of parameters of one shape, one below the other, as one matrix for products.

    None where they lie apart: everywhere but within `Casts` and under autocast, and where a
    parameter has another shape, as keys of fewer heads have.
    """
    slices = _current()
    return None if slices is None else slices.stacked(parameters, *sizes)


def _current() -> Casts | None:
    """What is held now; nothing in a compiled network, whose compiler cannot look it up."""
    return None if torch.compiler.is_dynamo_compiling() else _CURRENT.get()


class Casts:
    """Parameters in the precision of products, cast once for as long as they are `held`.

    For networks that are evaluated: autocast casts parameters anew at each use in inference mode,
    in a decoder for every token, and the parts of a supernet's in any case.
    """

    def __init__(self) -> None:
        """Nothing is cast yet."""
        self._cast: dict[tuple[Tensor, ...], Tensor] = {}
        self._parts: dict[Key, Tensor] = {}

    @contextmanager
    def held(self) -> Iterator[None]:
        """In it parameters, whose values may not change, are taken from here."""
        token = _CURRENT.set(self)
        try:
            yield
        finally:
            _CURRENT.reset(token)

    def of(self, parameter: Tensor, *sizes: int, product: bool = False) -> Tensor:
        """The part of a parameter, cast where it is multiplied."""
        if not product or not _is_cast(parameter):
            return prefix(parameter, *sizes)
        return self._part(((parameter,), (*sizes, *parameter.shape[len(sizes) :]), True))

    def rows(self, table: Tensor, numbers: Tensor, width: int) -> Tensor:
        """See `rows`."""
        return _looked_up(table, numbers, width)

    def stacked(self, parameters: Sequence[Tensor], *sizes: int) -> Tensor | None:
        """See `stacked`."""
        first = parameters[0]
        if not _is_cast(first) or any(one.shape != first.shape for one in parameters):
            return None
        return self._part((tuple(parameters), (*sizes, *first.shape[len(sizes) :]), True))

    def _part(self, key: Key) -> Tensor:
        if (known := self._parts.get(key)) is None:
            parameters, shape, _ = key
            together = prefix(self._in_products(parameters), len(parameters), *shape)
            known = self._parts[key] = together.flatten(0, 1)
        return known

    def _in_products(self, parameters: tuple[Tensor, ...]) -> Tensor:
        """Parameters of one shape in the precision of products, with a dimension for them."""
        if parameters not in self._cast:
            precision = torch.get_autocast_dtype(parameters[0].device.type)
            with torch.no_grad():
                self._cast[parameters] = torch.stack(parameters).to(precision)
        return self._cast[parameters]


class Slices(Casts):
    """The parts of a model's parameters that a network uses.

    One network after the other trains within `training`, its gradients added by `backward`.
    """

    def __init__(self, model: nn.Module) -> None:
        """Nothing is in use yet.

        Args:
            model: whose parameters get gradients.
        """
        super().__init__()
        self._model = model
        # Walking through the modules of a model takes as long as fifty operations ask for.
        self._whole = [one for one in model.parameters() if one.requires_grad]
        self._gradients: dict[Tensor, Tensor] = {}
        self._rows: list[tuple[Tensor, Tensor, Tensor]] = []  # table, numbers, and what they have

    def begin(self) -> None:
        """A new update: the parameters have other values."""
        if self._cast:
            into = [cast for together in self._cast.values() for cast in together]
            with torch.no_grad():
                torch._foreach_copy_(into, [one for group in self._cast for one in group])

    @contextmanager
    def training(self) -> Iterator[None]:
        """In it one network uses these parts."""
        try:
            with self.held():
                yield
        finally:
            self._parts.clear()
            self._rows.clear()

    def of(self, parameter: Tensor, *sizes: int, product: bool = False) -> Tensor:
        """The part of a parameter, cast where it is multiplied; as often as it is asked for."""
        cast = product and _is_cast(parameter)
        shape = (*sizes, *parameter.shape[len(sizes) :])
        if not parameter.requires_grad or (shape == parameter.shape and not cast):
            return prefix(parameter, *sizes)
        return self._part(((parameter,), shape, cast))

    def rows(self, table: Tensor, numbers: Tensor, width: int) -> Tensor:
        """See `rows`."""
        if not table.requires_grad:
            return _looked_up(table, numbers, width)
        found = _looked_up(table.detach(), numbers, width).requires_grad_()
        self._rows.append((table, numbers, found))
        # A view, for whoever counts operations hooks onto what modules are given, which autograd
        # refuses of leaves.
        return found.view_as(found)

    def stacked(self, parameters: Sequence[Tensor], *sizes: int) -> Tensor | None:
        """See `stacked`."""
        return super().stacked(parameters, *sizes) if parameters[0].requires_grad else None

    def _part(self, key: Key) -> Tensor:
        if (known := self._parts.get(key)) is None:
            (whole, *_), shape, cast = key
            source = super()._part(key) if cast else prefix(whole.detach(), *shape)
            known = self._parts[key] = source.detach().requires_grad_()
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
        into: list[Key] = [*self._parts, *(((one,), one.shape, False) for one in self._whole)]
        looked_up = [found for _, _, found in self._rows]
        leaves = [*self._parts.values(), *self._whole, *looked_up, *by]
        found = torch.autograd.grad(output, leaves, gradient, allow_unused=True)
        self._add(
            (parameter, shape, change)
            for (parameters, shape, _), together in zip(into, found, strict=False)
            if together is not None
            for parameter, change in zip(parameters, together.chunk(len(parameters)), strict=True)
        )
        wanted = found[len(into) + len(looked_up) :]
        for (table, numbers, _), change in zip(self._rows, found[len(into) :], strict=False):
            if change is not None:
                self._add_rows(table, numbers, change)
        return [torch.zeros_like(x) if g is None else g for x, g in zip(by, wanted, strict=True)]

    def _add(self, gradients: Iterable[tuple[Tensor, tuple[int, ...], Tensor]]) -> None:
        """Add gradients of parts of these shapes to those of their parameters."""
        first: list[tuple[Tensor, Tensor]] = []  # where a gradient belongs, and the gradient
        more: list[tuple[Tensor, Tensor]] = []
        cleared = list[Tensor]()
        for parameter, shape, change in gradients:
            known, whole = self._gradient(parameter)
            (more if known else first).append((prefix(whole, *shape), change))
            if not known and shape != parameter.shape:
                cleared.append(whole)
        if cleared:
            torch._foreach_zero_(cleared)
        for pairs in _by_layout(first):
            torch._foreach_copy_(*pairs)
        for pairs in _by_layout(more):
            torch._foreach_add_(*pairs)

    def _add_rows(self, table: Tensor, numbers: Tensor, change: Tensor) -> None:
        """Add the gradients of some rows to that of their table; one that stands twice has both."""
        known, whole = self._gradient(table)
        if not known:
            whole.zero_()
        width = change.shape[-1]
        whole.narrow(1, 0, width).index_add_(0, numbers.flatten(), change.reshape(-1, width))

    def _gradient(self, parameter: Tensor) -> tuple[bool, Tensor]:
        """Whether the parameter has a gradient, and that one; or one of whatever values."""
        if parameter.grad is not None:
            return True, parameter.grad
        parameter.grad = self._room(parameter)
        return False, parameter.grad

    def _room(self, parameter: Tensor) -> Tensor:
        if parameter not in self._gradients:
            self._gradients[parameter] = torch.empty_like(parameter)
        return self._gradients[parameter]

    def beside(self) -> SlicesBeside:
        """Slices of the same parameters for another thread that works at the same time."""
        return SlicesBeside(self)


class SlicesBeside(Slices):
    """Slices whose gradients are their own until they are added to the parameters'.

    So a thread trains the same networks on other examples while `first` is in use. Casts are those
    of `first`; who of two threads comes first to need one makes it, in the worst case both do.
    """

    def __init__(self, first: Slices) -> None:
        """Nothing is in use yet."""
        super().__init__(first._model)
        self._first, self._cast = first, first._cast
        self._has = dict[Tensor, None]()  # a gradient, in the order in which they came
        self._looked_up: list[tuple[Tensor, Tensor, Tensor]] = []  # as `_rows`, with gradients

    def begin(self) -> None:
        """A new update; casts are renewed by `first`."""
        self._has.clear()
        self._looked_up.clear()

    def add_up(self) -> None:
        """Add this thread's gradients to those of the parameters; once an update."""
        self._first._add((one, one.shape, self._gradients[one]) for one in self._has)
        for rows in self._looked_up:
            self._first._add_rows(*rows)

    def _gradient(self, parameter: Tensor) -> tuple[bool, Tensor]:
        known = parameter in self._has
        self._has[parameter] = None
        return known, self._room(parameter)

    def _add_rows(self, table: Tensor, numbers: Tensor, change: Tensor) -> None:
        """Kept as rows: a gradient of the whole table would be mostly zeros."""
        self._looked_up.append((table, numbers, change))


def _is_cast(parameter: Tensor) -> bool:
    """Whether products take another precision than a parameter's."""
    return torch.is_autocast_enabled(parameter.device.type)


def _by_layout(
    pairs: Iterable[tuple[Tensor, Tensor]],
) -> list[tuple[list[Tensor], list[Tensor]]]:
    """Pairs of the same precision and strides, which a GPU takes at once, apart from the others."""
    found: dict[tuple[bool, torch.dtype], tuple[list[Tensor], list[Tensor]]] = {}
    for one, other in pairs:
        alike = one.stride() == other.stride(), other.dtype
        ones, others = found.setdefault(alike, ([], []))
        ones.append(one)
        others.append(other)
    return list(found.values())
