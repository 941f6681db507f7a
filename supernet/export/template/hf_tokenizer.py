"""The tokenizer of the network: text to token numbers and back."""

from __future__ import annotations

from typing import Any, ClassVar

from transformers import PreTrainedTokenizer

from supernet.export.template.sizes import (
    HAS_FILE,
    SENTENCEPIECE,
    SOURCE_FILE,
    SYMBOLS,
    TARGET_FILE,
    TWO_SIDES,
    WORDS,
)

if SENTENCEPIECE:
    import sentencepiece
elif WORDS or SYMBOLS:
    import json
    from pathlib import Path
if HAS_FILE:
    import shutil

if SENTENCEPIECE:

    class Side:
        """One vocabulary: a sentencepiece model."""

        def __init__(self, file: str) -> None:
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

elif WORDS or SYMBOLS:

    class Side:
        """One vocabulary: a list of words."""

        def __init__(self, file: str) -> None:
            self.words = json.loads(Path(file).read_text(encoding="utf-8"))
            self.numbers = {word: number for number, word in enumerate(self.words)}
            self.size = len(self.words)

        def split(self, text: str) -> list[str]:
            """The words of a text."""
            return text.split()

        def number(self, piece: str) -> int:
            """The number of a word."""
            if SYMBOLS:
                if piece not in self.numbers:
                    raise ValueError(f"{piece!r} is no symbol; there are {' '.join(self.words)}")
                return self.numbers[piece]
            else:
                return self.numbers.get(piece, 3)  # 3 stands for unknown words

        def piece(self, number: int) -> str:
            """The word of a number."""
            return self.words[number]

        def join(self, pieces: list[str]) -> str:
            """The text of words."""
            return " ".join(pieces)

else:

    class Side:
        """The 256 bytes behind padding."""

        size = 257

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


class NasTokenizer(PreTrainedTokenizer):
    """Text is encoded as a source, and token numbers are decoded as a target."""

    if TWO_SIDES:
        vocab_files_names: ClassVar = {"source_file": SOURCE_FILE, "target_file": TARGET_FILE}
    elif HAS_FILE:
        vocab_files_names: ClassVar = {"source_file": SOURCE_FILE}
    model_input_names: ClassVar = ["input_ids", "attention_mask"]

    if TWO_SIDES:

        def __init__(self, source_file: str, target_file: str, **kwargs: Any) -> None:
            self.files = [source_file, target_file]
            self.source, self.target = Side(source_file), Side(target_file)
            self.current = self.source
            super().__init__(**kwargs)

    elif HAS_FILE:

        def __init__(self, source_file: str, **kwargs: Any) -> None:
            self.files = [source_file]
            self.source = self.target = self.current = Side(source_file)
            super().__init__(**kwargs)

    else:

        def __init__(self, **kwargs: Any) -> None:
            self.source = self.target = self.current = Side()
            super().__init__(**kwargs)

    @property
    def vocab_size(self) -> int:
        """Number of tokens, marks included."""
        return self.source.size

    def get_vocab(self) -> dict[str, int]:
        """Token -> number."""
        return {self.source.piece(number): number for number in range(self.source.size)}

    def _tokenize(self, text: str, **_: Any) -> list[str]:
        return self.current.split(text)

    def _convert_token_to_id(self, token: str) -> int:
        return self.current.number(token)

    def _convert_id_to_token(self, index: int) -> str:
        return self.target.piece(index)

    def convert_tokens_to_string(self, tokens: list[str]) -> str:
        """The text of tokens."""
        return self.target.join(tokens)

    if TWO_SIDES:

        def _switch_to_input_mode(self) -> None:
            self.current = self.source

        def _switch_to_target_mode(self) -> None:
            self.current = self.target

    def save_vocabulary(
        self, save_directory: str, filename_prefix: str | None = None
    ) -> tuple[str, ...]:
        """Copy the vocabularies."""
        if HAS_FILE:
            names = list(self.vocab_files_names.values())
            return tuple(
                shutil.copy(file, f"{save_directory}/{name}")
                for file, name in zip(self.files, names, strict=True)
            )
        else:
            return ()
