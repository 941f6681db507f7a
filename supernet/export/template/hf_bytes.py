"""A vocabulary of bytes."""

from __future__ import annotations


class Vocabulary:
    """The 256 bytes behind padding; it needs no file."""

    size = 257

    def __init__(self, file: None) -> None:
        pass

    def split(self, text: str) -> list[str]:
        """The bytes of a text, as decimal numbers."""
        return [str(byte) for byte in text.encode()]

    def number(self, piece: str) -> int:
        """The number of a byte."""
        return 0 if piece == "<pad>" else int(piece) + 1

    def piece(self, number: int) -> str:
        """The byte of a number."""
        return "<pad>" if number == 0 else str(number - 1)

    def join(self, pieces: list[str]) -> str:
        """The text of bytes."""
        return bytes(int(piece) for piece in pieces).decode(errors="replace")
