"""Bounds on TOML text, checked in one pass before a parser follows it down.

`tomllib` takes time and memory by the square of a key's depth, and follows brackets by recursion.
No space comes near these bounds, so a text beyond them is refused before anything is made of it.
"""

from __future__ import annotations

import re

from search_spaces.errors import SpaceFileError

MAX_DEPTH = 6  # brackets within each other, and dots of one key; a space needs three
MAX_WORD = 200  # characters of a key, quoted or not, or of a number
MAX_KEYS = 5_000
MAX_VALUES = 50_000

# Strings are matched whole, so that nothing inside of them is taken for a key. A quote that opens
# a string without an end is a mark, and the last thing that a parser gets to see.
_TOKEN = re.compile(
    r'(?P<string>"""(?:\\.|[^\\])*?"{3,5}|\'\'\'.*?\'{3,5}'
    r"|\"(?!\"\")(?:\\.|[^\"\\\n])*\"|'(?!'')[^'\n]*')"
    r"|(?P<gap>\#[^\n]*|\s+)"
    r"|(?P<word>[^\s\"'#\[\]{}=,.]+)"
    r"|(?P<mark>.)",
    re.DOTALL,
)


def check_bounds(text: str, name: str) -> None:
    """Refuse text that is nested, or long in its keys, or rich in them beyond any space.

    Args:
        text: TOML, or what somebody takes for it.
        name: what messages call the text.

    Raises:
        SpaceFileError: naming the line and the bound.
    """
    found = _excess(text)
    if found is not None:
        position, problem = found
        line = text.count("\n", 0, position) + 1
        raise SpaceFileError(f"{name}, line {line}: {problem}; no space needs as much")


def _excess(text: str) -> tuple[int, str] | None:
    """Where a text goes beyond which bound."""
    passed = _Passed()
    for match in _TOKEN.finditer(text):
        token, kind = match[0], match.lastgroup
        problem = None
        if kind == "string":
            passed.string = len(token)
        elif kind == "gap":
            passed.gap(token)
        elif kind == "word":
            problem = _too_long(len(token))
        elif token in "\"'":
            return None
        else:
            problem = passed.mark(token)
        if problem is not None:
            return match.start(), problem
    return None


class _Passed:
    """What a scan has come by so far."""

    def __init__(self) -> None:
        self.string = 0  # length of the string just before
        self._in_value = False  # rather than in a key or a header
        self._depth = self._dots = self._keys = self._values = 0

    def gap(self, token: str) -> None:
        """Pass a comment or white space."""
        if "\n" in token:
            self._dots = self.string = 0
            self._in_value = self._in_value and self._depth > 0

    def mark(self, token: str) -> str | None:
        """Pass a sign; gives the bound that is broken."""
        ends_key = token in ".=" or (token == "]" and not self._in_value)
        key = self.string if ends_key else 0
        self.string, self._in_value = 0, self._in_value or token == "="
        self._dots = self._dots + 1 if token == "." else 0
        self._depth += (token in "[{") - (token in "]}")
        self._keys += token == "="
        self._values += token in ",[{"
        if max(self._depth, self._dots) > MAX_DEPTH:
            return f"tables, lists or keys nested more than {MAX_DEPTH} deep"
        if self._keys > MAX_KEYS:
            return f"more than {MAX_KEYS} keys"
        if self._values > MAX_VALUES:
            return f"more than {MAX_VALUES} values"
        return _too_long(key)


def _too_long(length: int) -> str | None:
    if length <= MAX_WORD:
        return None
    return f"a key or number of {length} characters, allowed are {MAX_WORD}"
