"""Prepares a file of data that somebody has uploaded: ``python -m service.data_preparing``.

It reads one line of JSON from stdin, writes what it does as lines of JSON to stdout, the last of
which is what came of it, and ends as `service.children.end_with_others` tells. No file may take
more processor time and memory than `CPU_S` and `MEMORY_MB` beside its own size and that of the
checkpoint that it is for, or make a file of more than `FILE_BYTES`: the system ends the process
that does.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from search_spaces.errors import NasError
from service.children import end_with_others
from service.process_limits import bytes_of, limited
from service.settings import GIB, MIB

CPU_S, MEMORY_MB = 3600, 4096
FILE_BYTES = 16 * GIB
TELL_S = 0.5  # between two notes
FAILED = 1


def prepare_file(order: Mapping[str, Any]) -> dict[str, Any]:
    """Prepare a file.

    Args:
        order: ``task``, ``source``, ``out``, and of `service.api.routes.data.DataOptions` what is
            given; ``checkpoint`` is the folder of its ``tokenizer``.

    Returns:
        ``found``: what is to be known of the data set, or ``problem``: what is wrong; with marks of
        `search_spaces.wording`.
    """
    from supernet.data.prepare import prepare
    from supernet.data.prepare.doctor import MOST_SHOWN
    from supernet.data.prepare.plan import PrepareRequest

    source, out = Path(order["source"]), Path(order["out"])
    folder = order.get("checkpoint")
    asked: dict[str, Any] = {} if folder is None else {"tokenizer": Path(folder)}
    hidden = {f"{source.parent}/": "", str(out): "the data set"}
    hidden |= {} if folder is None else {str(folder): f"the checkpoint {order['tokenizer']}"}
    try:
        request = PrepareRequest(
            order["task"],
            (source,),
            out,
            image_size=order.get("image_size"),
            columns=tuple(sorted(order.get("columns", {}).items())),
            group_by=order.get("group_by"),
            skip_bad=order.get("skip_bad", False),
            pictures_by_path=False,
            **asked,
        )
        prepared = prepare(request, _Teller())
    except NasError as error:
        return {"problem": _without_paths(error.marked, hidden)}
    manifest = prepared.manifest
    size = sum(file.stat().st_size for file in out.rglob("*") if file.is_file())
    found: dict[str, Any] = {"family": manifest.content, "task": manifest.task, "bytes": size}
    for name, lines in (("left_out", prepared.bad), ("ignored", prepared.ignored)):
        found[name] = [_without_paths(one, hidden) for one in lines[:MOST_SHOWN]]
    more = {"num_ignored": len(prepared.ignored), "guessed": prepared.guessed}
    return {"found": found | more}


def _without_paths(text: str, hidden: Mapping[str, str]) -> str:
    """What is said of files, without saying where the service keeps them."""
    for path, name in hidden.items():
        text = text.replace(path, name)
    return text


class _Teller:
    """Writes what is being done, not too often."""

    def __init__(self) -> None:
        self._last = 0.0

    def __call__(self, what: str, done: int, total: int) -> None:
        if time.monotonic() - self._last < TELL_S:
            return
        self._last = time.monotonic()
        share = f", {done / total:.0%}" if total else ""
        _write({"note": f"{what}{share}"})


def _write(line: Mapping[str, Any]) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def main() -> None:
    """Prepare the file that stdin names."""
    os.nice(10)  # searches and pages go first
    # A card's driver maps more memory than any file may take, and others are timed on the card.
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    order = json.loads(sys.stdin.buffer.readline())
    end_with_others()
    import supernet.data.prepare  # noqa: F401  what libraries take is not the file's

    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_BYTES, hard))
    folder = order.get("checkpoint")  # mapped, held in fp32, and given to a network
    weights_mb = 0 if folder is None else bytes_of(Path(folder)) // MIB
    with limited(CPU_S, MEMORY_MB + 2 * order["bytes"] // MIB + 4 * weights_mb):
        try:
            answer = prepare_file(order)
        except MemoryError:
            os._exit(FAILED)
    _write(answer)


if __name__ == "__main__":
    main()
