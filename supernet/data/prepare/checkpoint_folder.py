"""The tokenizer of a checkpoint's folder, for texts that are prepared with it."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from search_spaces.errors import DataError, UsageError
from search_spaces.wording import mark
from supernet.blueprint import ARCHITECTURE_FILE
from supernet.data.checkpoint_tokenizer import KIND, CheckpointTokenizer
from supernet.data.manifest import InputFile, TokenizerRecord
from supernet.data.tokenizer import VOCABULARIES
from supernet.pretrained.json_files import read_object
from supernet.pretrained.padding import TOKENIZER_FILE, marks_of, number_of, renumbered
from supernet.pretrained.sentences import TOKENIZER_SETTINGS

OLDER_FILES = ("vocab.txt", "vocab.json", "tokenizer.model")  # of which one can be made
LONGEST_TOKENS = 512  # that encoders of checkpoints usually read


def read_folder(folder: Path, whole_texts: bool = False) -> CheckpointTokenizer:
    """The tokenizer of a checkpoint.

    Args:
        folder: with a ``tokenizer.json``; what its marks are called stands in
            ``tokenizer_config.json``, or in ``special_tokens_map.json``, where they are there, and
            the padding may stand in ``tokenizer.json``.
        whole_texts: for networks that read whole texts, which take 0 for padding: where padding
            has another number the two change places (`supernet.pretrained.padding`).

    Raises:
        UsageError: when there is no such folder or file, or the package `tokenizers` is missing.
        DataError: when a file is damaged or asks for code, and when networks would take a word for
            padding.
    """
    if not folder.is_dir():
        raise UsageError(
            f"{mark('tokenizer')} {folder} is no folder; give {', '.join(VOCABULARIES)}, or the "
            f"folder of a checkpoint with its {TOKENIZER_FILE}"
        )
    file = folder / TOKENIZER_FILE
    if not file.is_file():
        how = "fetch it from where the checkpoint comes from"
        if (folder / ARCHITECTURE_FILE).is_file():
            how = (
                "it is an export whose tokenizer was made with its data: a search that begins with "
                "it takes the prepared folder that its own search was given"
            )
        elif any((folder / name).is_file() for name in OLDER_FILES):
            how = (
                "transformers writes one: "
                "AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)"
            )
        raise UsageError(f"{folder} has no {TOKENIZER_FILE}; {how}")
    values = read_object(file)
    marks = marks_of(folder, values)
    padding = marks.get("pad_token", "")
    tokenizer = CheckpointTokenizer(json.dumps(values).encode(), marks, str(file))
    if whole_texts and number_of(values, padding):  # of a file that the package can read
        values = renumbered(values, padding)
        tokenizer = CheckpointTokenizer(json.dumps(values).encode(), marks, str(file))
    if whole_texts and tokenizer.padding is None:
        raise DataError(
            f"token 0 of {folder} is {tokenizer.symbols[0]!r}, and networks that read whole texts "
            f"take 0 for padding: name a pad_token in {TOKENIZER_SETTINGS}"
        )
    return tokenizer


def input_file(tokenizer: CheckpointTokenizer) -> InputFile:
    """A tokenizer among what a preparation read: its rules and what its marks are called."""
    read = tokenizer.content + json.dumps(tokenizer.marks, sort_keys=True).encode()
    digest = hashlib.sha256(read).hexdigest()
    return InputFile(role="tokenizer", name=TOKENIZER_FILE, sha256=digest)


def tokenizer_record(tokenizer: CheckpointTokenizer) -> TokenizerRecord:
    """What the manifest says about a tokenizer."""
    return TokenizerRecord(kind=KIND, vocab_size=tokenizer.vocab_size)


def check_joins(tokenizer: CheckpointTokenizer, folder: Path) -> None:
    """See that lines which are joined can be told apart.

    Raises:
        DataError: otherwise.
    """
    if not tokenizer.joins:
        raise DataError(
            f"the tokenizer of {folder} neither marks ends of texts nor keeps line feeds, so that "
            f"lines of a text would run together: give {TOKENIZER_FILE} a post-processor that adds "
            "a mark"
        )
