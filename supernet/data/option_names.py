"""What messages about data call what was asked for, in the words of whoever reads them.

A preparation is asked for by a command, by a form or over REST. A message says it once, and takes
the name of what it speaks of from a `Called`: a field of `PrepareRequest` → its name there, with
``columns.ROLE`` for the column of a role.
"""

from __future__ import annotations

from collections.abc import Callable

Called = Callable[[str], str]


def option(field: str) -> str:
    """The option of `nas data prepare`: ``--group-by``, ``--column label=NAME``."""
    name, _, role = field.partition(".")
    if name == "columns":
        return f"--column {role}=NAME" if role else "--column"
    return f"--{name.replace('_', '-')}"
