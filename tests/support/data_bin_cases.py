"""Folders as fairseq-preprocess writes them, made the slow way: byte by byte, row by row."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

CODES = {"<u2": 8, "<i4": 4, "<u4": 9, "<i8": 5}
WORDS = [f"w{number}" for number in range(20)]
Lines = Sequence[str]


def write_rows(prefix: Path, rows: Sequence[Sequence[int]], dtype: str = "<u2") -> None:
    """``PREFIX.bin`` and ``PREFIX.idx`` of rows that have their end marks already."""
    width = np.dtype(dtype).itemsize
    tokens, lengths, begins, at = b"", b"", b"", 0
    for row in rows:
        tokens += np.array(row, dtype=dtype).tobytes()
        lengths += struct.pack("<i", len(row))
        begins += struct.pack("<q", at)
        at += width * len(row)
    Path(f"{prefix}.bin").write_bytes(tokens)
    head = b"MMIDIDX\x00\x00" + struct.pack("<Q", 1) + struct.pack("<B", CODES[dtype])
    Path(f"{prefix}.idx").write_bytes(head + struct.pack("<Q", len(rows)) + lengths + begins)


def numbered(line: str, words: Sequence[str]) -> list[int]:
    """fairseq's numbers of a line, the end mark last."""
    return [words.index(word) + 4 if word in words else 3 for word in line.split()] + [2]


def write_data_bin(
    folder: Path,
    splits: Mapping[str, tuple[Lines, Lines]],
    words: Sequence[str] = WORDS,
    target_words: Sequence[str] | None = None,
    languages: tuple[str, str] = ("en", "de"),
) -> Path:
    """A folder with the given lines, source and target of each split."""
    folder.mkdir(parents=True, exist_ok=True)
    vocabularies = (words, words if target_words is None else target_words)
    for language, known in zip(languages, vocabularies, strict=True):
        text = "".join(f"{word} {10 * (50 - n)}\n" for n, word in enumerate(known))
        (folder / f"dict.{language}.txt").write_text(text, "utf-8")
    for split, sides in splits.items():
        for language, known, lines in zip(languages, vocabularies, sides, strict=True):
            prefix = folder / f"{split}.{'-'.join(languages)}.{language}"
            write_rows(prefix, [numbered(line, known) for line in lines])
    return folder


def random_lines(seed: int, count: int, words: Sequence[str] = WORDS) -> list[str]:
    """Lines of one to six words."""
    rng = np.random.default_rng(seed)
    return [" ".join(rng.choice(words, size=rng.integers(1, 7))) for _ in range(count)]


def small_splits(count: int = 12) -> dict[str, tuple[Lines, Lines]]:
    """Random lines for every split."""
    names = ("train", "valid", "test")
    return {
        name: (random_lines(2 * n, count), random_lines(2 * n + 1, count))
        for n, name in enumerate(names)
    }
