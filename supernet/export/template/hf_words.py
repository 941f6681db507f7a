"""A vocabulary of words."""

from __future__ import annotations

import json
from pathlib import Path


class Vocabulary:
    """A list of words; others are unknown, or refused where none stands for them."""

    def __init__(self, file: str) -> None:
        self.words = json.loads(Path(file).read_text(encoding="utf-8"))
        self.numbers = {word: number for number, word in enumerate(self.words)}
        self.size = len(self.words)

    def split(self, text: str) -> list[str]:
        """The words of a text."""
        return text.split()

    def number(self, piece: str) -> int:
        """The number of a word."""
        known = piece if piece in self.numbers else "<unk>"
        if known not in self.numbers:
            raise ValueError(f"{piece!r} is no symbol; there are {' '.join(self.words)}")
        return self.numbers[known]

    def piece(self, number: int) -> str:
        """The word of a number."""
        return self.words[number]

    def join(self, pieces: list[str]) -> str:
        """The text of words."""
        return " ".join(pieces)
