"""The tokenizer of a checkpoint, as its ``tokenizer.json`` describes it.

Read with the package `tokenizers`; nothing in the file is run. Its token numbers are the
checkpoint's own: 0 may be a word like others, and begin and end marks are those, if any, that its
post-processor puts around a text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from search_spaces.errors import DataError
from supernet.data.tokenizer import PAD
from supernet.pretrained.padding import TOKENIZER_FILE
from supernet.pretrained.sentences import TOKENIZER_SETTINGS

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Pipeline

KIND: Final = "tokenizer_json"
LINE_FEED = "\n"


class CheckpointTokenizer:
    """Text to the token numbers of a checkpoint, and back.

    Texts are neither cut nor filled up, whatever the file says about it.

    Args:
        content: of ``tokenizer.json``.
        marks: `MARK_NAMES` → tokens, as ``tokenizer_config.json`` has them; those that the
            vocabulary lacks are left out.
        name: what to call it in messages.

    Attributes:
        begin: token numbers that stand before every text, of its post-processor.
        end: those that stand behind.
        vocab_size: the highest token number and one.

    Raises:
        DataError: when the content is no tokenizer, or none that writes text.
        UsageError: where the package `tokenizers` is not installed.
    """

    def __init__(self, content: bytes, marks: Mapping[str, str], name: str) -> None:
        self._pipeline = _pipeline(content, name)
        numbers = self._pipeline.get_vocab(with_added_tokens=True)
        if not numbers:
            raise DataError(f"{name} has no vocabulary: fetch it anew")
        self.vocab_size = max(numbers.values()) + 1
        self._marks = {mark: token for mark, token in marks.items() if token in numbers}
        self._pad = numbers.get(self._marks.get("pad_token", ""))
        self.begin, self.end = self._around(name)
        self._content = content

    @property
    def content(self) -> bytes:
        """``tokenizer.json``, without cutting and filling up."""
        return unbounded(self._content)

    @property
    def marks(self) -> dict[str, str]:
        """What its marks are called → the token."""
        return dict(self._marks)

    @property
    def padding(self) -> int | None:
        """0, where that number is padding and no word; None where it is a token like others."""
        return PAD if self._pad == PAD else None

    @property
    def facts(self) -> dict[str, Any]:
        """What ``reading.json`` of an export says about it."""
        numbers = {mark: self._pipeline.token_to_id(token) for mark, token in self._marks.items()}
        return {
            "kind": KIND,
            "source": TOKENIZER_FILE,
            "marks": self.marks,
            "mark_numbers": numbers,
            "begin": list(self.begin),
            "padding": self.padding,
        }

    @property
    def symbols(self) -> tuple[str, ...]:
        """How each token is written, by number; empty for a number that is not used."""
        return tuple(self._pipeline.id_to_token(n) or "" for n in range(self.vocab_size))

    @property
    def joins(self) -> bool:
        """Whether lines can be told apart when they are joined: by a mark, or by line feeds."""
        return bool(self._num_marks) or bool(self.encode([LINE_FEED])[0])

    @property
    def _num_marks(self) -> int:
        return len(self.begin) + len(self.end)

    def encode(self, lines: Sequence[str]) -> list[list[int]]:
        """Token numbers of each line, without marks around it."""
        found = self._pipeline.encode_batch(list(lines), add_special_tokens=False)
        return [one.ids for one in found]

    def encode_texts(self, lines: Sequence[str]) -> list[list[int]]:
        """Token numbers of lines that are going to be joined.

        Each has the marks around it that the post-processor adds; where it adds none, the line
        feed that ends a line is a part of it.
        """
        texts = list(lines) if self._num_marks else [f"{line}{LINE_FEED}" for line in lines]
        rows = self.encode(texts)
        return [[*self.begin, *row, *self.end] for row in rows]

    def encode_cut(self, text: str, most: int) -> tuple[list[int], bool]:
        """Token numbers of a text with its marks, at most so many, and whether it was cut for it.

        Args:
            text: any.
            most: tokens, more than there are marks.
        """
        (found,) = self.encode_all_cut([text], most)
        return found

    def encode_all_cut(self, texts: Sequence[str], most: int) -> list[tuple[list[int], bool]]:
        """`encode_cut` of several texts."""
        room = most - self._num_marks
        return [
            ([*self.begin, *row[:room], *self.end], len(row) > room) for row in self.encode(texts)
        ]

    def decode(self, rows: Sequence[Sequence[int]]) -> list[str]:
        """The text of each row; marks in it, and the line feed at its end, are left out."""
        texts = [self._pipeline.decode([int(token) for token in row]) for row in rows]
        return texts if self._num_marks else [text.removesuffix(LINE_FEED) for text in texts]

    def write(self, folder: Path) -> None:
        """Write the files that `load` reads."""
        (folder / TOKENIZER_FILE).write_bytes(self.content)
        (folder / TOKENIZER_SETTINGS).write_text(json.dumps(self.marks) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, folder: Path) -> CheckpointTokenizer:
        """Read what `write` wrote.

        Raises:
            DataError: when a file is missing or damaged.
        """
        try:
            marks = json.loads((folder / TOKENIZER_SETTINGS).read_text(encoding="utf-8"))
            content = (folder / TOKENIZER_FILE).read_bytes()
        except (OSError, ValueError) as error:
            raise DataError(
                f"the tokenizer of {folder} cannot be read ({error}); prepare the data anew"
            ) from error
        return cls(content, marks, str(folder / TOKENIZER_FILE))

    def _around(self, name: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The marks before and behind a text, as one is seen to get them."""
        for number in range(self.vocab_size):
            found = self._pipeline.encode(self._pipeline.decode([number]))
            added = found.special_tokens_mask
            if 0 in added:
                before = sum(takewhile(bool, added))
                behind = sum(takewhile(bool, reversed(added)))
                return tuple(found.ids[:before]), tuple(found.ids[len(added) - behind :])
        raise DataError(f"{name} makes no token of any text: fetch it anew")


def unbounded(content: bytes) -> bytes:
    """A ``tokenizer.json`` that neither cuts texts nor fills them up."""
    values = json.loads(content) | {"truncation": None, "padding": None}
    return (json.dumps(values, ensure_ascii=False, indent=1) + "\n").encode()


def _pipeline(content: bytes, name: str) -> Pipeline:
    from tokenizers import Tokenizer

    try:
        pipeline = Tokenizer.from_str(content.decode())
    except Exception as error:  # the package raises no narrower class
        raise DataError(f"{name} is no tokenizer ({error}): fetch it anew") from error
    pipeline.no_truncation()
    pipeline.no_padding()
    return pipeline
