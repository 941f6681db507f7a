"""What messages call things where a program reads them that asks over REST."""

from __future__ import annotations

from collections.abc import Mapping

from search_spaces.wording import (
    FORGET_SPEED,
    OWN_CHECKPOINT,
    OWN_DATA,
    REPROFILE,
    RESUME,
    RETIME,
    TUNE,
    option,
    told,
)

# What a body calls otherwise than the command: a file that is sent, and what does a thing here.
_NAMES: Mapping[str, str] = {
    "source": "file",
    RESUME: "a retry",
    OWN_CHECKPOINT: "naming that checkpoint",
    OWN_DATA: "whoever runs the service can put them back",
    RETIME: "a new search, once nas cache clear was typed where the service runs",
    REPROFILE: "nas profile, where it was made",
    FORGET_SPEED: "nas cache clear, where the service runs",
    TUNE: "whoever runs the service can have other settings tried",
}
# Of a preparation what an upload cannot be asked for.
COMMAND_ALONE = frozenset(
    "out target valid test vocab_size joint max_length max_ratio allow_overlap bfloat16".split()
)


def of_field(field: str) -> str:
    """What a request's body calls a field, or what does a thing; a command where none does."""
    if field in COMMAND_ALONE:
        return f"nas data prepare {option(field)}"
    return _NAMES.get(field, field)


def for_programs(text: str) -> str:
    """A message with the names of REST."""
    return told(text, of_field)
