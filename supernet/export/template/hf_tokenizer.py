"""The tokenizer of the network: text to token numbers and back."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, ClassVar

from transformers import PreTrainedTokenizer

from supernet.export.template.hf_pieces import Vocabulary


class NasTokenizer(PreTrainedTokenizer):
    """Text is encoded as a source, and token numbers are decoded as a target."""

    vocab_files_names: ClassVar[dict[str, str]] = {}  # its own ones follow below
    model_input_names: ClassVar = ["input_ids", "attention_mask"]

    def __init__(
        self, source_file: str | None = None, target_file: str | None = None, **kwargs: Any
    ) -> None:
        self.files = [file for file in (source_file, target_file) if file is not None]
        self.source = Vocabulary(source_file)
        self.target = self.source if target_file is None else Vocabulary(target_file)
        self.current = self.source
        super().__init__(**kwargs)
        # What is saved; transformers leaves it out, and with it the marks of texts.
        self.init_kwargs["special_tokens_pattern"] = self.special_tokens_pattern

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

    def _switch_to_input_mode(self) -> None:
        self.current = self.source

    def _switch_to_target_mode(self) -> None:
        self.current = self.target

    def save_vocabulary(
        self, save_directory: str, filename_prefix: str | None = None
    ) -> tuple[str, ...]:
        """Copy the vocabularies; what is saved where it was read stays as it is."""
        prefix = f"{filename_prefix}-" if filename_prefix else ""
        saved = [Path(save_directory, prefix + name) for name in self.vocab_files_names.values()]
        for file, copy in zip(self.files, saved, strict=True):
            if copy.resolve() != Path(file).resolve():
                shutil.copy(file, copy)
        return tuple(map(str, saved))
