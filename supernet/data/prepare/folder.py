"""A plain folder of texts → data for a search that begins with a checkpoint.

For an encoder the texts themselves are held out, see `supernet.data.prepare.embedding`. For a
language model lines follow each other, so that the last of every file are held out. Files that are
called ``valid`` and ``test``, with any of the endings, are those splits.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from search_spaces.errors import DataError
from supernet.data.manifest import FILE_NAME, file_sha256
from supernet.data.prepare import prepare
from supernet.data.prepare.plain_texts import read_texts, text_files
from supernet.data.prepare.plan import SPLITS, PrepareRequest
from supernet.data.text_files import Report
from supernet.pretrained.checkpoint import Checkpoint, checkpoint_digest

RECIPE = 1  # raised whenever equal folders would give other data than before
HELD_OUT = 20  # one line in so many is for the validation split, and as many for the test split
NAME_DIGITS = 12

Files = Mapping[str, Sequence[Path]]


@dataclass(frozen=True, slots=True)
class TextFolder:
    """A folder of texts, and the checkpoint that reads them.

    Attributes:
        folder: of texts.
        checkpoint: for embeddings, or a language model.
        files: split → its files; at least those of ``train``.
        name: of the data: equal texts and checkpoints, equal names.
    """

    folder: Path
    checkpoint: Checkpoint
    files: Files
    name: str

    @classmethod
    def read(cls, folder: Path, checkpoint: Checkpoint) -> TextFolder:
        """Find the files of a folder and read them once.

        Raises:
            DataError: when it has no texts to learn from.
        """
        found = text_files([folder])
        held = {split: [p for p in found if _stem(p) == split] for split in ("valid", "test")}
        train = [p for p in found if _stem(p) not in held]
        if not train:
            raise DataError(
                f"{folder} has no texts to learn from beside those called "
                f"{' and '.join(split for split in held if held[split])}: put others there"
            )
        files = {"train": train} | {split: paths for split, paths in held.items() if paths}
        read = [
            (split, str(path.relative_to(folder)), file_sha256(path))
            for split, paths in files.items()
            for path in paths
        ]
        about = [RECIPE, checkpoint.task, checkpoint_digest(checkpoint), _reading(checkpoint), read]
        digest = hashlib.sha256(json.dumps(about).encode()).hexdigest()
        plain = re.sub(r"[^A-Za-z0-9._-]+", "-", folder.resolve().name).strip("-.") or "texts"
        return cls(folder, checkpoint, files, f"{plain[:64]}-{digest[:NAME_DIGITS]}")

    def prepare(self, place: Path, report: Report) -> Path:
        """Prepare the data, unless they are there already.

        Args:
            place: folder of the folder to make.
            report: as of `supernet.data.prepare.prepare`.

        Returns:
            The folder of prepared data.

        Raises:
            DataError: when a file cannot be used, or there are too few texts.
        """
        out = place / self.name
        if (out / FILE_NAME).is_file():
            return out
        if self.checkpoint.task == "embedding":
            prepare(self._request(self.files, out), report)
            return out
        place.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=place) as made:
            prepare(self._request(self._split(Path(made)), out), report)
        return out

    def _request(self, files: Files, out: Path) -> PrepareRequest:
        return PrepareRequest(
            task=self.checkpoint.task,
            source=tuple(files["train"]),
            out=out,
            valid=tuple(files.get("valid", ())),
            test=tuple(files.get("test", ())),
            tokenizer=self.checkpoint.folder,
            allow_overlap=True,  # how much is shared is counted all the same
        )

    def _split(self, place: Path) -> Files:
        """Files of lines for every split; those that are missing have the ends of the others."""
        made = {split: place / f"{split}.txt" for split in SPLITS}
        # Lines that count for the next one to be held out: of files of a line each every twentieth
        # is, for either split another.
        unshared = {"valid": HELD_OUT // 2, "test": 0}
        with ExitStack() as stack:
            written = {
                split: stack.enter_context(path.open("w", encoding="utf-8", newline=""))
                for split, path in made.items()
            }
            for split, path in ((split, p) for split, paths in self.files.items() for p in paths):
                parts: list[tuple[str, int | None]] = [(split, None)]
                if split == "train":
                    parts = self._parts(path, unshared)
                lines = _lines(path)
                for name, share in parts:
                    written[name].writelines(f"{one}\n" for one in itertools.islice(lines, share))
        for split, path in made.items():
            if not path.stat().st_size:
                raise DataError(
                    f"{self.folder} has too few lines to hold some out for the {split} split: put "
                    f"more texts there, or a file called {split}.txt"
                )
        return {split: (path,) for split, path in made.items()}

    def _parts(self, path: Path, unshared: dict[str, int]) -> list[tuple[str, int | None]]:
        """How many lines of a training file go to which split, in their order."""
        count, held = sum(1 for _ in _lines(path)), {}
        for split in unshared:
            if split not in self.files:
                held[split], unshared[split] = divmod(unshared[split] + count, HELD_OUT)
        return [("train", count - sum(held.values())), *held.items()]


def _stem(path: Path) -> str:
    return path.name.lower().partition(".")[0]


def _reading(checkpoint: Checkpoint) -> list[tuple[str, str]]:
    """The files that say how a checkpoint reads texts: name and digest."""
    sentence = () if checkpoint.sentence is None else checkpoint.sentence.files
    names = sorted({*checkpoint.tokenizer_files, *sentence})
    return [(name, file_sha256(checkpoint.folder / name)) for name in names]


def _lines(path: Path) -> Iterator[str]:
    for text in read_texts(path):
        yield from text.split("\n")
