"""What the layers of a network need alike, worked out once: masks, positions and their waves.

Each layer asks for what it needs of the padding or of the positions by itself, so that it can also
be called alone. Within `sharing`, as a stack runs its layers, the first answer is kept for the
others.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any, ParamSpec, TypeVar

from torch.compiler import is_dynamo_compiling

P = ParamSpec("P")
T = TypeVar("T")

_KNOWN: ContextVar[dict[Hashable, Any] | None] = ContextVar("known", default=None)


def sharing() -> AbstractContextManager[None]:
    """In it the results of `shared` are kept; nothing that it is given may change meanwhile.

    Within another one nothing is new, and a compiler of networks sees none.
    """
    if is_dynamo_compiling() or _KNOWN.get() is not None:
        return nullcontext()
    return _kept()


@contextmanager
def _kept() -> Iterator[None]:
    token = _KNOWN.set({})
    try:
        yield
    finally:
        _KNOWN.reset(token)


def shared(make: Callable[P, T], *given: P.args, **named: P.kwargs) -> T:
    """``make(*given, **named)``, within `sharing` called once for the same arguments.

    A compiler of networks, which finds equal parts by itself, sees the call alone.

    Args:
        make: a function without gradients, whose result nobody changes in place.
        given: its arguments, tensors among them: the same one, not one of the same numbers.
        named: the same, by name.
    """
    known = None if is_dynamo_compiling() else _KNOWN.get()
    if known is None:
        return make(*given, **named)
    key = make, given, tuple(named.items())
    if key not in known:
        known[key] = make(*given, **named)
    result: T = known[key]
    return result
