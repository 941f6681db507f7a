"""Checkpoints: written atomically, read without running anything that is in them."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from search_spaces.errors import DamagedRunError
from search_spaces.files import replacing


@dataclass(frozen=True)
class CheckpointFolder:
    """Where a training keeps its state.

    Attributes:
        path: the folder; ``last.pt`` holds everything needed to go on, ``best.pt`` the weights
            with the lowest validation loss so far.
        digest: what the training is of; a checkpoint of anything else is not taken up.
        check: raises an error where this process may not write any more.
    """

    path: Path
    digest: str
    check: Callable[[], None] = lambda: None

    @property
    def last(self) -> Path:
        """The file to go on from."""
        return self.path / "last.pt"

    @property
    def best(self) -> Path:
        """The best weights so far."""
        return self.path / "best.pt"

    def save_last(self, state: dict[str, Any]) -> None:
        """Replace ``last.pt``."""
        self.check()
        save(self.last, {**state, "digest": self.digest})

    def save_best(self, state: dict[str, Any]) -> None:
        """Replace ``best.pt``."""
        self.check()
        save(self.best, state)

    def load_last(self) -> dict[str, Any] | None:
        """The state to go on from; None where there is none of this training.

        Raises:
            DamagedRunError: when the file cannot be read.
        """
        if not self.last.exists():
            return None
        state = load(self.last)
        return state if state.get("digest") == self.digest else None


def save(path: Path, state: dict[str, Any]) -> None:
    """Write a checkpoint atomically.

    Raises:
        OSError: when the disk is full or not writable.
    """
    # Through memory: torch turns a failing write into a RuntimeError of its own, and writing to a
    # path would put the temporary name into the archive.
    content = dumped(state)
    with replacing(path) as temporary:
        temporary.write_bytes(content)


def dumped(state: dict[str, Any]) -> bytes:
    """A checkpoint as it stands in a file."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return buffer.getvalue()


def read(content: bytes) -> dict[str, Any]:
    """The state that `dumped` gave; only tensors and plain values are accepted."""
    state = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    assert isinstance(state, dict)
    return state


def load(path: Path) -> dict[str, Any]:
    """Read a checkpoint to the CPU; only tensors and plain values are accepted.

    Torch does not look at the archive's checksums, so a weight that changed on disk would be
    taken as it is; they are compared here first.

    Raises:
        DamagedRunError: when the file is missing, cut off, changed or holds anything else.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            changed = archive.testzip()
        state = None if changed else torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # damage comes out as almost any of zipfile's and torch's errors
        raise DamagedRunError(f"cannot read the checkpoint {path}: {error}") from error
    if changed:
        raise DamagedRunError(f"the checkpoint {path} is damaged: {changed} has changed")
    if not isinstance(state, dict):
        raise DamagedRunError(f"{path} is not a checkpoint of this project")
    return state
