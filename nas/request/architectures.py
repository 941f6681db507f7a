"""Architectures that are named on a command line: files, standard input, lines of text."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from search_spaces.architecture import Architecture
from search_spaces.errors import ArchitectureError
from search_spaces.interchange import ArchitectureForm, parse_architecture
from search_spaces.notation import EXAMPLE, looks_like_text

Read = TypeVar("Read")

_WAYS = f"a file, - for standard input, or a line such as {EXAMPLE!r}"


def read_architecture(source: str) -> Architecture:
    """Read an architecture that was named on the command line.

    Args:
        source: a file, ``-`` for standard input, or a line of `search_spaces.notation`.

    Raises:
        ArchitectureError: for a file that cannot be read or holds something else.
    """
    return read_named(source, None, parse_architecture)


def read_named(
    source: str,
    form: ArchitectureForm | None,
    parse: Callable[[str, ArchitectureForm | None], Read],
) -> Read:
    """What `parse` makes of a source; errors name it."""
    name = "standard input" if source == "-" else source
    if not source.strip():
        raise ArchitectureError(f"no architecture is given: give {_WAYS}")
    if looks_like_text(source):
        name, text = "the line", source
    else:
        text = _content(source, name)
    try:
        return parse(text, form)
    except ArchitectureError as error:
        raise ArchitectureError(f"{name}: {error}") from None


def _content(source: str, name: str) -> str:
    try:
        if source == "-":
            return sys.stdin.read()
        return Path(source).read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise ArchitectureError(
            f"{name}: there is no such file, and it is no line of text; give {_WAYS}"
        ) from None
    except OSError as error:
        raise ArchitectureError(f"{name} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise ArchitectureError(f"{name} is not UTF-8: {error}") from None
