"""What is said of an uploaded file, in the words of the place where it is read.

A process prepares the file before anybody knows who reads what came of it: a program that asks over
REST, or somebody before the form. What its sentences name of the request are marks, and whoever
shows a sentence puts the names there that its reader knows.
"""

from __future__ import annotations

import re

from supernet.data.option_names import Called, option

_MARK = re.compile("\x1f([a-z_]+(?:\\.[a-z]+)?)\x1f")  # no line of a file's name has that character


def marked(field: str) -> str:
    """The mark of a field of a preparation."""
    return f"\x1f{field}\x1f"


def told(text: str, called: Called) -> str:
    """A text with the names that its reader knows."""
    return _MARK.sub(lambda found: called(found[1]), text)


def of_command(field: str) -> str:
    """What only the command can be asked for."""
    return f"nas data prepare {option(field)}"
