"""The tokenizer of a checkpoint's folder, for texts that are prepared with it."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from search_spaces.errors import DataError, UsageError
from search_spaces.wording import mark
from supernet.data.checkpoint_tokenizer import (
    KIND,
    MARK_NAMES,
    MARKS_FILE,
    TOKENIZER_FILE,
    CheckpointTokenizer,
)
from supernet.data.manifest import InputFile, TokenizerRecord
from supernet.data.tokenizer import VOCABULARIES
from supernet.pretrained.json_files import read_object, refuse_code

OLDER_FILES = ("vocab.txt", "vocab.json", "tokenizer.model")  # of which one can be made
LONGEST_TOKENS = 512  # that encoders of checkpoints usually read


def read_folder(folder: Path) -> CheckpointTokenizer:
    """The tokenizer of a checkpoint.

    Args:
        folder: with a ``tokenizer.json``; what its marks are called stands in
            ``tokenizer_config.json``, or in ``special_tokens_map.json``, where they are there, and
            the padding may stand in ``tokenizer.json``.

    Raises:
        UsageError: when there is no such folder or file, or the package `tokenizers` is missing.
        DataError: when a file is damaged or asks for code.
    """
    if not folder.is_dir():
        raise UsageError(
            f"{mark('tokenizer')} {folder} is no folder; give {', '.join(VOCABULARIES)}, or the "
            f"folder of a checkpoint with its {TOKENIZER_FILE}"
        )
    file = folder / TOKENIZER_FILE
    if not file.is_file():
        how = "fetch it from where the checkpoint comes from"
        if any((folder / name).is_file() for name in OLDER_FILES):
            how = (
                "transformers writes one: "
                "AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)"
            )
        raise UsageError(f"{folder} has no {TOKENIZER_FILE}; {how}")
    values = read_object(file)
    marks = _filled_with(values)
    for name in ("special_tokens_map.json", MARKS_FILE):
        if (folder / name).is_file():
            settings = read_object(folder / name)
            refuse_code(folder / name, settings)
            marks |= _marks(settings)
    return CheckpointTokenizer(json.dumps(values).encode(), marks, str(file))


def _filled_with(values: dict[str, object]) -> dict[str, str]:
    """The padding of a ``tokenizer.json``, where it names one."""
    padding = values.get("padding")
    token = padding.get("pad_token") if isinstance(padding, dict) else None
    return {"pad_token": token} if isinstance(token, str) else {}


def _marks(settings: dict[str, object]) -> dict[str, str]:
    """The marks that settings name, as text or as an object with text."""
    found = {}
    for name in MARK_NAMES:
        value = settings.get(name)
        token = value.get("content") if isinstance(value, dict) else value
        if isinstance(token, str):
            found[name] = token
    return found


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


def check_padding(tokenizer: CheckpointTokenizer, folder: Path) -> None:
    """See that token 0, which encoders take for padding, is no word.

    Raises:
        DataError: otherwise.
    """
    if tokenizer.padding is None:
        word = tokenizer.symbols[0]
        raise DataError(
            f"token 0 of {folder} is {word!r}, and networks that read whole texts take 0 for "
            "padding: give a tokenizer whose pad_token has the number 0"
        )
