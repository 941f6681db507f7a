"""JSON that somebody else may have written: all that is wrong with it is a ValueError."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from pydantic import TypeAdapter

T = TypeVar("T")

# What those who make values of JSON trip over when it is not as it should be.
UNREADABLE = (
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    ArithmeticError,
    RecursionError,
)


def parse_json(text: str) -> Any:
    """The value that JSON text stands for.

    Raises:
        ValueError: for what is no JSON, is nested too deeply to be read, or has halves of
            characters in it, which nothing can write again.
    """
    try:
        value = json.loads(text)
        if "\\ud" in text or "\\uD" in text:
            json.dumps(value, ensure_ascii=False).encode()
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    return value


def finite_number(value: Any) -> float:
    """A value that is a number which a float can hold.

    Raises:
        ValueError: for any other.
    """
    if isinstance(value, int | float) and not isinstance(value, bool):
        try:
            if math.isfinite(value):
                return value
        except OverflowError:
            raise ValueError("a whole number is too large") from None
    raise ValueError(f"{value!r} is not a finite number")


def read_as(kind: type[T], data: Any) -> T:
    """A dataclass from its JSON form (that of `dataclasses.asdict`), checked field by field.

    The types of the fields decide: lists become tuples and objects dataclasses or mappings, numbers
    are no text and no truth values, and only fields with a default may lack. A class that refuses
    unknown fields says so in `__pydantic_config__`.

    Raises:
        ValueError: naming the first field at fault, what is right and what was given.
    """
    from pydantic import TypeAdapter, ValidationError  # take a while to load

    if kind not in _adapters:
        _adapters[kind] = TypeAdapter(kind)
    try:
        found: T = _adapters[kind].validate_json(json.dumps(data, allow_nan=False), strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = ".".join(map(str, first["loc"]))
        given = "" if first["type"] == "missing" else f", given {first['input']!r:.60}"
        raise ValueError(f"{name or 'it'}: {first['msg'].lower()}{given}") from None
    return found


_adapters: dict[object, TypeAdapter[Any]] = {}  # making one takes longer than using it
