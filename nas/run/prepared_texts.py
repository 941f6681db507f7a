"""Texts that were prepared for checkpoints, kept in the user's cache folder."""

from __future__ import annotations

import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from latency.locking import cache_dir, file_lock
from search_spaces.errors import DataError
from search_spaces.files import unfinished_folder
from supernet.data.manifest import FILE_NAME, read_manifest


@dataclass(frozen=True)
class PreparedTexts:
    """Data that `nas search --from` made of a folder of texts.

    Attributes:
        id: name of their folder.
        folders: that folder, and what unfinished tries have left beside it.
        size: of them together, in bytes.
        finished: whether a search can use them.
        problem: what is wrong with damaged ones.
        task: of the checkpoint that they are for; None where that cannot be read.
        examples: to learn from.
    """

    id: str
    folders: tuple[Path, ...]
    size: int
    finished: bool
    problem: str = ""
    task: str | None = None
    examples: int = 0

    @property
    def state(self) -> str:
        """``used``, ``unfinished`` or ``damaged``."""
        if self.problem:
            return "damaged"
        return "used" if self.finished else "unfinished"

    def to_json(self) -> dict[str, Any]:
        """What ``--json`` prints."""
        return {
            "kind": "texts",
            "id": self.id,
            "state": self.state,
            "problem": self.problem or None,
            "task": self.task,
            "examples": self.examples,
            "size": self.size,
            "files": [str(folder) for folder in self.folders],
        }


def prepared_texts_dir() -> Path:
    """The folder of all of them."""
    return cache_dir() / "data"


def texts_lock(name: str) -> Path:
    """Held by who prepares or removes the texts of that name."""
    return prepared_texts_dir() / f"{name}.lock"


def read_prepared_texts() -> list[PreparedTexts]:
    """All that are kept, by name."""
    return [_read(name, folders) for name, folders in sorted(_folders().items())]


def _folders() -> dict[str, list[Path]]:
    """Name → the folder of that name, and what unfinished tries have left beside it."""
    place = prepared_texts_dir()
    groups: dict[str, list[Path]] = {}
    for folder in sorted(place.iterdir() if place.is_dir() else ()):
        if folder.is_dir():
            name = unfinished_folder(folder.name) or folder.name
            groups.setdefault(name, []).append(folder)
    return groups


def remove_prepared_texts(one: PreparedTexts, timeout_s: float) -> None:
    """Remove them; a search that reads them is to be asked for anew, with the texts themselves.

    Raises:
        NasError: when they are being prepared right now.
        OSError: when a folder cannot be removed.
    """
    with file_lock(texts_lock(one.id), timeout_s):
        for folder in _folders().get(one.id, []):  # who held the lock may have renamed some
            shutil.rmtree(folder)


def _read(name: str, folders: list[Path]) -> PreparedTexts:
    size = sum(map(_size, folders))
    folder = prepared_texts_dir() / name
    if not (folder / FILE_NAME).is_file():
        return PreparedTexts(name, tuple(folders), size, finished=False)
    try:
        manifest = read_manifest(folder)
    except DataError as error:
        return PreparedTexts(name, tuple(folders), size, finished=True, problem=str(error))
    examples = manifest.splits["train"].examples
    return PreparedTexts(
        name, tuple(folders), size, finished=True, task=manifest.task, examples=examples
    )


def _size(folder: Path) -> int:
    """Of what is in it, in bytes; what goes meanwhile, since a search prepares it, is left out."""
    size = 0
    with suppress(FileNotFoundError):
        for file in folder.rglob("*"):
            with suppress(FileNotFoundError):
                size += file.stat().st_size
    return size
