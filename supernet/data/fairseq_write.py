"""Writes pairs as `fairseq-preprocess` would: dictionaries and memory-mapped rows."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from search_spaces.files import write_atomically
from supernet.data.fairseq_dictionary import dictionary_text
from supernet.data.fairseq_files import write_indexed
from supernet.data.prepared import PairSplit
from supernet.data.token_files import TokenRows
from supernet.data.tokenizer import Tokenizer


def write_data_bin(
    folder: Path,
    splits: Mapping[str, PairSplit],
    tokenizers: tuple[Tokenizer, Tokenizer],
    languages: tuple[str, str],
) -> None:
    """Write a folder for fairseq's commands.

    Rows keep their token numbers, which from the end mark on are fairseq's too.

    Args:
        folder: exists and is empty.
        splits: by name, among them ``train``.
        tokenizers: of source and target; one object where the vocabulary is joint.
        languages: what files and dictionaries are called by; different names.
    """
    pair = "-".join(languages)
    source, target = tokenizers
    for split, content in splits.items():
        for language, rows, tokenizer in (
            (languages[0], content.source, source),
            (languages[1], content.target, target),
        ):
            write_indexed(folder / f"{split}.{pair}.{language}", rows, tokenizer.vocab_size)
    train = splits["train"]
    counts = [_counts(train.source, source.vocab_size), _counts(train.target, target.vocab_size)]
    if source is target:  # fairseq takes dictionaries for one if they are equal
        counts = [counts[0] + counts[1]] * 2
    for language, tokenizer, count in zip(languages, tokenizers, counts, strict=True):
        text = dictionary_text(tokenizer.symbols, count.tolist())
        write_atomically(folder / f"dict.{language}.txt", text)


def _counts(rows: TokenRows, vocab_size: int) -> NDArray[np.int64]:
    """How often each token occurs."""
    counts = np.zeros(vocab_size, dtype=np.int64)
    for start in range(0, len(rows.tokens), 1 << 24):
        counts += np.bincount(rows.tokens[start : start + (1 << 24)], minlength=vocab_size)
    return counts
