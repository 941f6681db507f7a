"""What two splits share: equal files, and examples that occur in both.

Examples are told apart by 64 bits of a hash, which wait in files until all splits are written: in
memory there are 8 bytes an example of a held-out split, and nothing of the training split.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Self

import numpy as np
from numpy.typing import NDArray

from search_spaces.errors import UsageError

HASH_BYTES = 8
HASHES_PER_CHUNK = 1 << 20

Hashes = NDArray[np.uint64]


def refuse_equal_files(files: Mapping[str, tuple[str, str]]) -> None:
    """See that no file is given for two splits.

    Args:
        files: role, such as ``valid.source`` or ``train`` → name and digest of the content.

    Raises:
        UsageError: naming both; copies, packed or not, are equal.
    """
    seen: dict[str, tuple[str, str]] = {}
    for role, (name, digest) in files.items():
        split = role.partition(".")[0]
        other, known = seen.setdefault(digest, (split, name))
        if other != split:
            raise UsageError(
                f"{known} of the {other} split and {name} of the {split} split hold the same: what "
                "was learnt by heart would be taken for skill. Give each split data of its own, or "
                "--allow-overlap if that is meant"
            )


class Overlaps:
    """Counts examples of held-out splits that other splits have too.

    Args:
        folder: where hashes wait, in files without a name.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: dict[tuple[str, str], IO[bytes]] = {}
        self._open = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def add(self, split: str, examples: Iterable[bytes], what: str = "") -> None:
        """Take note of examples; empty ones are not counted.

        Args:
            split: where they are.
            examples: their content.
            what: which part of an example this is, such as ``source``; empty for all of it.
        """
        if (split, what) not in self._files:
            made = tempfile.TemporaryFile(dir=self._folder)  # noqa: SIM115 (closed with the rest)
            file = self._open.enter_context(made)
            self._files[split, what] = file
        hashes = (
            hashlib.blake2b(example, digest_size=HASH_BYTES).digest()
            for example in examples
            if example
        )
        self._files[split, what].write(b"".join(hashes))

    def of(self, split: str, others: Iterable[str]) -> dict[str, int]:
        """How many examples of a split are in the others too.

        Returns:
            ``train`` or ``train.source`` → the number, where it is not 0.
        """
        found = {}
        for (mine, what), file in list(self._files.items()):
            if mine != split:
                continue
            hashes, counts = np.unique(_joined(file), return_counts=True)
            for other in others:
                met = np.zeros(len(hashes), dtype=bool)
                for part in _chunks(self._files.get((other, what))):
                    met |= np.isin(hashes, part)
                if count := int(counts[met].sum()):
                    found[f"{other}.{what}" if what else other] = count
        return found


def _joined(file: IO[bytes]) -> Hashes:
    return np.concatenate([np.zeros(0, dtype=np.uint64), *_chunks(file)])


def _chunks(file: IO[bytes] | None) -> Iterator[Hashes]:
    if file is not None:
        file.seek(0)
        while data := file.read(HASH_BYTES * HASHES_PER_CHUNK):
            yield np.frombuffer(data, dtype=np.uint64)
