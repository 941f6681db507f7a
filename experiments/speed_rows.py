"""One line of the speed study: what was measured, its mark, and whether it was kept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Row:
    """A measured value and its mark.

    Attributes:
        name: what was measured, in words.
        value: as measured.
        at_least: the smallest value that passes; None where there is no such mark.
        at_most: the largest value that passes; None where there is no such mark.
        detail: the numbers behind it, in words.
    """

    name: str
    value: float
    at_least: float | None = None
    at_most: float | None = None
    detail: str = ""

    @property
    def passed(self) -> bool:
        """Whether the value keeps its marks; a row without a mark is for information."""
        above = self.at_least is None or self.value >= self.at_least
        return above and (self.at_most is None or self.value <= self.at_most)

    @property
    def mark(self) -> str:
        """The mark in words; empty where there is none."""
        if self.at_least is not None:
            return f"at least {self.at_least:g}"
        return "" if self.at_most is None else f"at most {self.at_most:g}"

    def to_json(self) -> dict[str, Any]:
        """Name, value, mark, whether it passed, and the details."""
        return {
            "name": self.name,
            "value": self.value,
            "mark": self.mark,
            "passed": self.passed,
            "detail": self.detail,
        }
