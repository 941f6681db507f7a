"""The files of a checkpoint: which belong to it, and whether its tokenizer fits the network."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from search_spaces.errors import DataError
from search_spaces.toml.source import shown
from supernet.pretrained.json_files import read_object, refuse_code
from supernet.pretrained.padding import TOKENIZER_FILE
from supernet.pretrained.sentences import (
    LENGTH_FILE,
    MODULES_FILE,
    PROMPTS_FILE,
    TOKENIZER_SETTINGS,
)

WRITING_FILES = ("chat_template.jinja", "generation_config.json")
TOKENIZER_FILES = (
    TOKENIZER_FILE,
    TOKENIZER_SETTINGS,
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "vocab.txt",
    "tokenizer.model",
    *WRITING_FILES,
)
IMAGE_FILES = ("preprocessor_config.json",)
VOCABULARY = "vocabulary"
VOCABULARY_MODEL = f"{VOCABULARY}.model"
"""Of sentencepiece, in exports: the one vocabulary of all sides, made here."""


def tokenizer_files(folder: Path, vocab_size: int | None) -> tuple[str, ...]:
    """Names of the files with which a checkpoint's inputs are made; none where there are none.

    Args:
        folder: of the checkpoint.
        vocab_size: rows of its embeddings; None for images.

    Raises:
        DataError: for a token number that has no embedding, a damaged file, or one that asks for
            code.
    """
    names = IMAGE_FILES if vocab_size is None else TOKENIZER_FILES
    found = tuple(name for name in names if (folder / name).is_file())
    if vocab_size is not None:
        templates = sorted(path.relative_to(folder).as_posix() for path in folder.glob("*/*.jinja"))
        found += tuple(name for name in templates if _TEMPLATE.fullmatch(name))
    for name in (TOKENIZER_SETTINGS, "generation_config.json", *IMAGE_FILES):
        if name in found:
            refuse_code(folder / name, read_object(folder / name))
    if vocab_size is not None:
        for name in found:
            _check(folder / name, vocab_size)
    return found


def _check(file: Path, vocab_size: int) -> None:
    highest = _highest(file)
    if highest is not None and highest >= vocab_size:
        raise DataError(
            f"{file} has token numbers up to {highest:,}, but the network embeds {vocab_size:,} "
            f"tokens, 0 to {vocab_size - 1:,}: it is the tokenizer of another checkpoint, or one "
            "that tokens were added to, for which the embeddings have to be made larger"
        )


def _highest(file: Path) -> int | None:
    """The highest token number that a file knows; None where it knows none."""
    match file.name:
        case "tokenizer.json":
            values = read_object(file)
            model = values.get("model")
            vocabulary = model.get("vocab") if isinstance(model, dict) else None
            added = values.get("added_tokens") or []
            if not isinstance(added, list):
                raise DataError(
                    f"{file}: added_tokens is {shown(added)}; right is a list: fetch it anew"
                )
            numbers = [one.get("id") for one in added if isinstance(one, dict)]
            if isinstance(vocabulary, list):  # unigram: pieces and scores, in their order
                return _most([*numbers, len(vocabulary) - 1])
            if not isinstance(vocabulary, Mapping):
                raise DataError(f"{file} has no vocabulary (model.vocab): fetch it anew")
            return _most([*numbers, *vocabulary.values()])
        case "vocab.json" | "added_tokens.json":
            return _most(read_object(file).values())
        case "vocab.txt":
            return len(file.read_bytes().splitlines()) - 1
        case "tokenizer.model":
            return _pieces(file) - 1
    return None


def _most(numbers: Iterable[Any]) -> int | None:
    return max((one for one in numbers if isinstance(one, int)), default=None)


def _pieces(file: Path) -> int:
    from sentencepiece import SentencePieceProcessor

    pieces: Any = SentencePieceProcessor()
    try:
        pieces.LoadFromSerializedProto(file.read_bytes())
    except RuntimeError as error:
        raise DataError(f"{file} is no sentencepiece model: fetch it anew") from error
    return int(pieces.get_piece_size())


WEIGHTS_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
PLAIN_FILES = (
    "config.json",
    INDEX_FILE,
    MODULES_FILE,
    PROMPTS_FILE,
    LENGTH_FILE,
    VOCABULARY_MODEL,
    *TOKENIZER_FILES,
    *IMAGE_FILES,
)
# Weights in one file or in shards, the pooling of a folder of sentence-transformers, and templates
# beside the first one. Browsers read these expressions too.
WEIGHTS_NAME = r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}\.safetensors"
POOLING_NAME = r"[0-9]{1,2}_[A-Za-z]{1,30}/config\.json"
TEMPLATE_NAME = r"additional_chat_templates/[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}\.jinja"
CHECKPOINT_FILES = "|".join(
    [*map(re.escape, PLAIN_FILES), WEIGHTS_NAME, POOLING_NAME, TEMPLATE_NAME]
)
"""A regular expression for the whole name, relative to the folder."""

_KNOWN = re.compile(CHECKPOINT_FILES, re.ASCII)
_WEIGHTS = re.compile(WEIGHTS_NAME, re.ASCII)
_TEMPLATE = re.compile(TEMPLATE_NAME, re.ASCII)


def is_checkpoint_file(name: str) -> bool:
    """Whether that is the name of weights, settings or a tokenizer; never of a pickle or of code.

    Args:
        name: relative to the folder, with ``/``.
    """
    return _KNOWN.fullmatch(name) is not None


def says_how_to_write(name: str) -> bool:
    """Whether a file says how a language model writes, and nothing of its outputs."""
    return name in WRITING_FILES or _TEMPLATE.fullmatch(name) is not None


def unread_weights(names: Collection[str]) -> list[str]:
    """Weights of a folder that are beside the whole network in one file, and are not read."""
    return [
        name
        for name in names
        if WEIGHTS_FILE in names and is_weights_file(name) and name != WEIGHTS_FILE
    ]


def is_weights_file(name: str) -> bool:
    """Whether that is the name of a safetensors file."""
    return _WEIGHTS.fullmatch(name) is not None
