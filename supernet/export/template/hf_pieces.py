"""A vocabulary of sentencepiece."""

from __future__ import annotations

import sentencepiece


class Vocabulary:
    """A sentencepiece model."""

    def __init__(self, file: str | None) -> None:
        self.pieces = sentencepiece.SentencePieceProcessor(model_file=file)
        self.size = self.pieces.get_piece_size()

    def split(self, text: str) -> list[str]:
        """The pieces of a text."""
        return self.pieces.encode(text, out_type=str)

    def number(self, piece: str) -> int:
        """The number of a piece."""
        return self.pieces.piece_to_id(piece)

    def piece(self, number: int) -> str:
        """The piece of a number."""
        return self.pieces.id_to_piece(number)

    def join(self, pieces: list[str]) -> str:
        """The text of pieces."""
        return self.pieces.decode(pieces)
