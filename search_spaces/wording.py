"""What messages call things, in the words of whoever reads them.

A message is written before anybody knows who reads it: somebody at a shell, a program that asks
over REST, or somebody before a form. What it names of a request, or advises to do, is a mark in its
text, and whoever shows the text puts the words there that its reader knows. A `NasError` by itself
speaks as the commands do.
"""

from __future__ import annotations

import re
from collections.abc import Callable

Called = Callable[[str], str]
"""Field of a request, or thing to do → its name."""

RESUME = "resume"
"""To go on with a run, which makes anew what is damaged in it."""
RETIME = "retime"
"""To time anew what was timed before."""
REPROFILE = "reprofile"
"""To make the profile of a device anew."""
FORGET_SPEED = "forget_speed"
"""To forget how fast a machine was."""
TUNE = "tune"
"""To try other settings for the training of a network."""
OWN_DATA = "own_data"
"""To show a run the data that it was made with, which are elsewhere by now."""
OWN_CHECKPOINT = "own_checkpoint"
"""To name a checkpoint: its folder, or what it is called on a server."""

# No text that is typed or is a file's name has these characters, and nothing strips them.
_BEGIN, _COMMAND, _END = "\x02", "\x05", "\x03"
_MARK = re.compile("\x02([a-z0-9_]+(?:\\.[a-z]+)?)(?:\x05([^\x03]*))?\x03")
# Options that are not called like their fields.
_OPTIONS = {"start": "--from", "limits": "--limit", "settings": "--set", "tags": "--tag"}


def mark(field: str, command: str | None = None) -> str:
    """The mark of a field of a request, or of a thing to do.

    Args:
        field: its name, with ``columns.ROLE`` for the column of a role.
        command: what the commands say in its place; its option if not given.
    """
    return f"{_BEGIN}{field}{_END if command is None else f'{_COMMAND}{command}{_END}'}"


def option(field: str) -> str:
    """The option of a field: ``--group-by``, ``--from``, ``--column label=NAME``."""
    name, _, role = field.partition(".")
    if name == "columns":
        return f"--column {role}=NAME" if role else "--column"
    return _OPTIONS.get(field, f"--{name.replace('_', '-')}")


def names_option(text: str) -> bool:
    """Whether a text names a field of a request by nothing but its option."""
    return any(not found[2] for found in _MARK.finditer(text))


def told(text: str, called: Called) -> str:
    """A text with the names that its reader knows."""
    return _MARK.sub(lambda found: called(found[1]), text)


def of_commands(text: str) -> str:
    """The same for somebody at a shell."""
    return _MARK.sub(lambda found: found[2] or option(found[1]), text)
