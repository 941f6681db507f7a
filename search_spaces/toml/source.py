"""TOML text that knows the line of each key, so that errors can name it.

`tomllib` keeps no positions. The scanner below runs after `tomllib` has accepted the text, so it
only has to find keys in text that is known to be well formed.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date, time
from pathlib import Path
from typing import Any, Self

from search_spaces.errors import SpaceFileError
from search_spaces.toml.bounds import check_bounds

MAX_BYTES = 1_000_000

KeyPath = tuple[str, ...]

NEEDS = (
    "at least the tables [space] and [model] and one of [encoder] and [decoder] "
    "(`nas space show digits` prints an example)"
)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_KEY_PART = re.compile(r"""[ \t]*("(?:\\.|[^"\\\n])*"|'[^'\n]*'|[A-Za-z0-9_-]+)[ \t]*""")
_VALUE_TOKEN = re.compile(
    r'"""(?:\\.|[^\\])*?"{3,5}'  # strings over several lines
    r"|'''.*?'{3,5}"
    r'|"(?:\\.|[^"\\\n])*"'
    r"|'[^'\n]*'"
    r"|\#[^\n]*"
    r"|.",
    re.DOTALL,
)
_SKIPPED = re.compile(r"(?:\s|#[^\n]*)*")


@dataclass(frozen=True)
class TomlSource:
    """Parsed TOML with the line of every key.

    Attributes:
        name: what messages call the text: a path or a space's name.
        data: the parsed document.
        lines: key path → number of the line that first names it, from 1.
    """

    name: str
    data: Mapping[str, Any]
    lines: Mapping[KeyPath, int]

    @classmethod
    def parse(cls, text: str, name: str, needs: str = NEEDS) -> Self:
        """Parse TOML.

        Args:
            text: the document.
            name: what messages call it.
            needs: what has to stand in it, told where nothing does.

        Raises:
            SpaceFileError: for a syntax error, naming its line, for an empty text, and for one
                beyond the bounds of `search_spaces.toml.bounds`.
        """
        text = text.replace("\r\n", "\n")
        check_bounds(text, name)
        try:
            data = tomllib.loads(text)
        except ValueError as error:
            raise _syntax_error(text, name, str(error)) from None
        if not data:
            raise SpaceFileError(f"{name}: the file is empty; a space needs {needs}")
        return cls(name, data, dict(_key_lines(text)))

    def error(self, path: KeyPath, problem: str) -> SpaceFileError:
        """The error to raise for the value at `path`: names file, line and key."""
        known = next((path[:n] for n in range(len(path), 0, -1) if path[:n] in self.lines), None)
        line = "" if known is None else f", line {self.lines[known]}"
        key = ".".join(part if part.isprintable() else repr(part) for part in path)
        return SpaceFileError(f"{self.name}{line}, {key}: {problem}")

    def check_name(self, name: str) -> None:
        """Refuse a name of a space that folders of its runs cannot begin with."""
        if not _NAME.fullmatch(name):
            raise self.error(
                ("space", "name"),
                f"found {shown(name)}, allowed are 1 to 64 letters, digits, '.', '_' and '-', "
                "the first a letter or digit",
            )

    def table(self, path: KeyPath, default: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
        """The table at `path`, `default` (when given) where there is none.

        Raises:
            SpaceFileError: when it is missing without a default, or not a table.
        """
        table = self.data
        for depth, key in enumerate(path, start=1):
            if key not in table:
                if default is not None:
                    return default
                raise self.error(path, f"the table [{'.'.join(path)}] is missing")
            value = table[key]
            if not isinstance(value, Mapping):
                raise self.error(path[:depth], f"found {shown(value)}, allowed is a table of keys")
            table = value
        return table

    def check_keys(self, path: KeyPath, allowed: Iterable[str], required: Iterable[str]) -> None:
        """Refuse unknown and missing keys of the table at `path` (the document for ``()``)."""
        table = self.table(path) if path else self.data
        names = list(allowed)
        for key in table:
            if key not in names:
                raise self.error((*path, key), unknown_name(key, names))
        for key in required:
            if key not in table:
                raise self.error((*path, key), "this key is missing, but a space needs it")


def read_text(path: Path) -> str:
    """The text of a space file.

    Raises:
        SpaceFileError: when there is no such file, or it is no text file of at most `MAX_BYTES`.
    """
    if not path.exists():
        raise SpaceFileError(
            f"{path}: there is no such file; `nas space list` names shipped spaces"
        )
    if not path.is_file():
        raise SpaceFileError(f"{path}: this is not a file; give the path of a space's TOML file")
    try:
        with path.open("rb") as stream:
            content = stream.read(MAX_BYTES + 1)
    except OSError as error:
        raise SpaceFileError(f"{path}: the file cannot be read: {error.strerror}") from None
    if len(content) > MAX_BYTES:
        raise SpaceFileError(f"{path}: the file is larger than {MAX_BYTES} bytes; no space is")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise SpaceFileError(f"{path}, line {line}: the file is not UTF-8 text") from None


def unknown_name(given: str, allowed: Iterable[str]) -> str:
    """A sentence that refuses a name, suggests the nearest and lists what is allowed."""
    names = list(allowed)
    near = difflib.get_close_matches(given, names, n=1, cutoff=0.5)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    return f"found {shown(given)}{hint}, allowed are {', '.join(names)}"


def shown(value: object) -> str:
    """The value as messages show it: short."""
    if isinstance(value, Mapping):
        return "a table"
    if isinstance(value, date | time):
        return f"a date or time, {value}"
    text = repr(value) if not isinstance(value, bool) else str(value).lower()
    return text if len(text) <= 60 else text[:57] + "…"


def _syntax_error(text: str, name: str, message: str) -> SpaceFileError:
    match = re.search(r" ?\(at (?:line (\d+), column (\d+)|end of document)\)$", message)
    if match is None:
        return SpaceFileError(f"{name}: this is not TOML: {message}")
    lines = text.split("\n")
    number = int(match[1]) if match[1] else len(text.rstrip().split("\n"))
    found = lines[number - 1].strip()
    return SpaceFileError(
        f"{name}, line {number}: this is not TOML: {message[: match.start()]}; found {shown(found)}"
    )


def _key_lines(text: str) -> Iterator[tuple[KeyPath, int]]:
    """Every key path with the line of its first mention; later mentions are left out.

    Paths are as short as `check_bounds` lets keys be, so that all their beginnings can be kept.
    """
    seen: set[KeyPath] = set()
    line, counted = 1, 0
    for path, position in _statements(text):
        line += text.count("\n", counted, position)
        counted = position
        for depth in range(1, len(path) + 1):
            if path[:depth] not in seen:
                seen.add(path[:depth])
                yield path[:depth], line


def _statements(text: str) -> Iterator[tuple[KeyPath, int]]:
    """The full key path and the position of each table header and each assignment."""
    table: KeyPath = ()
    position = _skip(text, 0)
    while position < len(text):
        start = position
        if text[position] == "[":
            brackets = 2 if text[position : position + 2] == "[[" else 1
            table, position = _dotted_key(text, position + brackets)
            position += brackets
            yield table, start
        else:
            key, position = _dotted_key(text, position)
            yield (*table, *key), start
            position = _end_of_value(text, position + 1)
        position = _skip(text, position)


def _dotted_key(text: str, position: int) -> tuple[KeyPath, int]:
    parts = []
    while match := _KEY_PART.match(text, position):
        raw = match[1]
        parts.append(str(tomllib.loads(f"k={raw}")["k"]) if raw[0] in "\"'" else raw)
        position = match.end()
        if text[position : position + 1] != ".":
            break
        position += 1
    return tuple(parts), position


def _end_of_value(text: str, position: int) -> int:
    depth = 0
    while match := _VALUE_TOKEN.match(text, position):
        token = match[0]
        if token == "\n" and depth == 0:
            break
        depth += (token in "[{") - (token in "]}")
        position = match.end()
    return position


def _skip(text: str, position: int) -> int:
    match = _SKIPPED.match(text, position)
    assert match is not None  # the pattern matches the empty string
    return match.end()
