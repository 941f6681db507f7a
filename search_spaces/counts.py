"""Whole numbers that may be too large to be written out, such as the sizes of spaces."""

from __future__ import annotations

import math


def exponent(number: int) -> int:
    """The power of ten of a positive whole number's first digit.

    Exact, and quick for any number of digits: Python refuses to write more than 4,300 of them.
    """
    power = int(math.log10(number))
    if 10**power > number:  # rounded up, as 10^20 - 1 is
        return power - 1
    return power + 1 if 10 ** (power + 1) <= number else power


def power_of_ten(number: int) -> str:
    """``12345678`` → ``1.2 × 10^7``; small numbers as they are."""
    if number < 10_000:
        return str(number)
    power = exponent(number)
    tenths = (number + 5 * 10 ** (power - 2)) // 10 ** (power - 1)
    if tenths == 100:
        tenths, power = 10, power + 1
    return f"{tenths // 10}.{tenths % 10} × 10^{power}"
