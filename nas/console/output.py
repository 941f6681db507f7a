"""Where the command writes: results to stdout, everything else to stderr.

Consoles are made at each use, so that they follow whatever the two streams are at that moment.

Titles, names, paths and messages come from others. No console reads markup in a text, and what
could steer a terminal is replaced on its way there, so no string needs to be escaped before it is
printed.
"""

from __future__ import annotations

import io
import json
import os
import re
import sys
from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from search_spaces.wording import of_commands

# Into a pipe or a file tables are not folded to the width of a terminal that is not there.
PLAIN_WIDTH = 240

# Control characters, what turns the direction of reading, and halves of characters, which no
# stream can encode. Tabs and line ends stay.
_STEERING = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)
_INSTEAD = "\ufffd"


def out() -> Console:
    """The console for results."""
    return _console(stderr=False)


def err() -> Console:
    """The console for progress, notes and errors."""
    return _console(stderr=True)


def say(text: str, style: str = "") -> None:
    """Print one line to stdout, in the words of the commands, however long."""
    _line(out(), Text(of_commands(text), style))


def tell(text: str, style: str = "") -> None:
    """Print one line to stderr, in the words of the commands, however long."""
    _line(err(), Text(of_commands(text), style))


def tell_error(message: str) -> None:
    """Print ``error: …`` to stderr."""
    _line(err(), Text.assemble(("error: ", "bold red"), (message, "red")))


def print_json(value: Any) -> None:
    """Print a value to stdout as indented JSON, in ASCII where the stream is not Unicode."""
    unicode = (sys.stdout.encoding or "utf-8").lower().startswith("utf")
    text = json.dumps(value, indent=2, ensure_ascii=not unicode)
    sys.stdout.write(_STEERING.sub(lambda found: f"\\u{ord(found[0]):04x}", text) + "\n")


def replace_unwritable() -> None:
    """Let both streams write a question mark for what their encoding has no character for."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def drop_output() -> None:
    """Discard buffered output after the reader closed the pipe."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        try:
            os.dup2(nowhere, stream.fileno())
        except (OSError, ValueError):
            continue  # not a real file: nothing waits to be written to a closed pipe


class _Console(Console):
    def __init__(self, **how: Any) -> None:
        super().__init__(markup=False, emoji=False, highlight=False, **how)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """The segments of what is printed; only those that rich itself makes steer."""
        for text, style, control in super().render(renderable, options):
            if control is None:
                text = _STEERING.sub(_INSTEAD, text)
            yield Segment(text, style, control)

    def print(self, *objects: Any, **how: Any) -> None:
        """Print; what is wider than the terminal is not cut."""
        super().print(*objects, **{"crop": False, **how})

    def on_broken_pipe(self) -> None:
        """Leave it to `nas.console.failures`, which knows what is going on."""
        raise BrokenPipeError


def _console(stderr: bool) -> Console:
    console = _Console(stderr=stderr)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        return _Console(stderr=stderr, width=PLAIN_WIDTH)
    return console


def _line(console: Console, text: Text) -> None:
    console.print(text, soft_wrap=True)
