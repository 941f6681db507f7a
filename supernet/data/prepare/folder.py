"""A plain folder of texts → data for a search that begins with a checkpoint.

Files whose names begin with ``valid`` or ``test`` are for those splits. Without them an encoder's
texts are held out by their content, see `supernet.data.prepare.embedding`, and of a language model
the last lines of every file.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from supernet.data.manifest import FILE_NAME
from supernet.data.prepare import prepare
from supernet.data.prepare.doctor import Doctor
from supernet.data.prepare.plan import PrepareRequest
from supernet.data.prepare.records import input_sha256
from supernet.data.prepare.splits import files_of
from supernet.data.text_files import Report
from supernet.pretrained.checkpoint import Checkpoint, checkpoint_digest

RECIPE = 2  # raised whenever equal folders would give other data than before
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
        files = files_of({"train": [folder]}, Doctor())
        read = [
            (split, str(path.relative_to(folder)), input_sha256(path))
            for split, paths in files.items()
            for path in paths
        ]
        about = [RECIPE, checkpoint.task, checkpoint_digest(checkpoint), read]
        if checkpoint.sentence is not None and checkpoint.sentence.by_role:
            about.append("prompts by role")  # which the recipe did without once
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
        request = PrepareRequest(
            task=self.checkpoint.task,
            source=tuple(self.files["train"]),
            out=out,
            valid=tuple(self.files.get("valid", ())),
            test=tuple(self.files.get("test", ())),
            tokenizer=self.checkpoint.folder,
            allow_overlap=True,  # how much is shared is counted all the same
        )
        prepare(request, report)
        return out
