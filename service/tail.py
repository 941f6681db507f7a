"""Reads what a run has told since the last look."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from search_spaces.files import whole_lines

MOST_BYTES = 1_000_000


def read_new(file: Path, offset: int, home: Path) -> tuple[list[dict[str, Any]], int]:
    """The whole lines of a journal from a byte on, at most `MOST_BYTES` of them.

    A line that is still being written waits for the next look. One that a killed process left
    unfinished is passed over, as is anything else that is no event.

    Args:
        file: the journal; may not be there yet.
        offset: where the last look ended; beyond the file's end if it was made anew since.
        home: folder whose place on the server is left out of what is told.

    Returns:
        The events and where the next look begins.
    """
    if not file.exists():
        return [], 0
    if offset > file.stat().st_size:
        offset = 0
    with file.open("rb") as stream:
        stream.seek(offset)
        data = stream.read(MOST_BYTES)
        while data and b"\n" not in data and (more := stream.read(MOST_BYTES)):
            data += more
    whole = whole_lines(data)
    hidden = json.dumps(str(home))[1:-1].encode()
    lines = whole.replace(hidden, b"HOME").splitlines()
    events = [event for line in lines if (event := _event(line)) is not None]
    return events, offset + len(whole)


def _event(line: bytes) -> dict[str, Any] | None:
    try:
        event = json.loads(line, parse_constant=lambda _: None)  # NaN is no JSON to a browser
    except ValueError:
        return None
    return event if isinstance(event, dict) and isinstance(event.get("event"), str) else None
