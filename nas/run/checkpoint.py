"""The checkpoint that a search begins with, and the network that it teaches with."""

from __future__ import annotations

import hashlib
from pathlib import Path

from nas.request.resolve import StartingPoint
from nas.request.spec import Start
from search_spaces.errors import DataError
from search_spaces.space import SearchSpace
from supernet.pretrained.checkpoint import CONFIG_FILE, Checkpoint, read_checkpoint
from supernet.pretrained.space import space_around, space_problem


def starting_point(folder: Path) -> StartingPoint:
    """What a request has to know of a checkpoint.

    Raises:
        DataError: when it cannot be read.
    """
    checkpoint = read_checkpoint(folder.resolve())

    def problem(space: SearchSpace) -> str | None:
        return space_problem(space, checkpoint)

    start = Start(folder=str(checkpoint.folder), digest=checkpoint_digest(checkpoint))
    return StartingPoint(start, space_around(checkpoint), problem)


def open_checkpoint(start: Start) -> Checkpoint:
    """The checkpoint that a run began with.

    Raises:
        DataError: when it is gone, damaged, or another one.
    """
    checkpoint = read_checkpoint(start.folder)
    if checkpoint_digest(checkpoint) != start.digest:
        raise DataError(
            f"the checkpoint in {start.folder} has changed since this run began; put the old one "
            "back, or start a new run in another folder"
        )
    return checkpoint


def checkpoint_digest(checkpoint: Checkpoint) -> str:
    """sha256 of a checkpoint's configuration and weights."""
    digest = hashlib.sha256()
    files = {tensor.file for tensor in checkpoint.tensors.values()}
    for file in (checkpoint.folder / CONFIG_FILE, *sorted(files)):
        with file.open("rb") as content:
            digest.update(hashlib.file_digest(content, "sha256").digest())
    return digest.hexdigest()
