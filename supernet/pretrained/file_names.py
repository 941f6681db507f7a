"""Which files of a folder belong to a checkpoint, by their names alone."""

from __future__ import annotations

import re

from supernet.pretrained.sentences import LENGTH_FILE, MODULES_FILE, PROMPTS_FILE
from supernet.pretrained.tokenizer_files import IMAGE_FILES, TOKENIZER_FILES

INDEX_FILE = "model.safetensors.index.json"
PLAIN_FILES = (
    "config.json",
    INDEX_FILE,
    MODULES_FILE,
    PROMPTS_FILE,
    LENGTH_FILE,
    *TOKENIZER_FILES,
    *IMAGE_FILES,
)
# Weights in one file or in shards, and the pooling of a folder of sentence-transformers. Browsers
# read these expressions too.
WEIGHTS_NAME = r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}\.safetensors"
POOLING_NAME = r"[0-9]{1,2}_[A-Za-z]{1,30}/config\.json"
CHECKPOINT_FILES = "|".join([*map(re.escape, PLAIN_FILES), WEIGHTS_NAME, POOLING_NAME])
"""A regular expression for the whole name, relative to the folder."""

_KNOWN = re.compile(CHECKPOINT_FILES, re.ASCII)
_WEIGHTS = re.compile(WEIGHTS_NAME, re.ASCII)


def is_checkpoint_file(name: str) -> bool:
    """Whether that is the name of weights, settings or a tokenizer; never of a pickle or of code.

    Args:
        name: relative to the folder, with ``/``.
    """
    return _KNOWN.fullmatch(name) is not None


def is_weights_file(name: str) -> bool:
    """Whether that is the name of a safetensors file."""
    return _WEIGHTS.fullmatch(name) is not None
