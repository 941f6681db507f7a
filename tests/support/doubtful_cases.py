"""A finished run of which one network of the front was not timed reliably."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from nas.run.folder import RunFolder

WHY = "only 1 of 5 sessions were calm: others kept 2 of <3> cores [busy]"


def with_doubt(folder: RunFolder, place: int = 0) -> str:
    """Make the latency of a network of the front doubtful, there and where it was verified.

    Returns:
        Its id.
    """
    front = folder.read_json("pareto.json")
    chosen: str = front["front"][place]["id"]
    for entry in front["front"]:
        entry["doubtful"] = {"latency_ms": WHY} if entry["id"] == chosen else {}
    folder.write_json("pareto.json", front)
    file = folder.path / "verification.jsonl"
    if file.exists():
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        for line in lines:
            if line["id"] == chosen:
                line["doubtful"] = {"latency_ms": WHY}
        rewrite(file, lines)
    return chosen


def rewrite(file: Path, lines: list[dict[str, Any]]) -> None:
    """Put other lines in the place of those of a journal."""
    file.write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
