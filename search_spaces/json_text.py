"""JSON that somebody else may have written: all that is wrong with it is a ValueError."""

from __future__ import annotations

import json
import math
from typing import Any

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
