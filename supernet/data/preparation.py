"""What is asked of a preparation, and what each kind of data answers with."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

from search_spaces.settings import Task
from supernet.data.manifest import InputFile, SplitRecord, TokenizerRecord
from supernet.data.text import Report
from supernet.data.tokenizer import ModelType

SPLITS = ("train", "valid", "test")
Settings = dict[str, str | int | float | bool | None]


@dataclass(frozen=True, slots=True)
class PrepareRequest:
    """Which files to prepare, and how.

    Attributes:
        task: what the data are for.
        source: files of the training split; several are read one after the other. For
            classification one file or folder.
        out: the folder to make.
        target: translation only: as many files as `source`, line by line its translations.
        valid: the validation split. Translation: a prefix to which the endings of source and
            target are added, or a source and a target file. Classification may leave it out:
            one in ten training examples is held out then.
        test: the test split, in the same forms.
        vocab_size: tokens of a vocabulary, marks included.
        joint: translation only: one vocabulary for both sides.
        tokenizer: how the vocabulary is learnt.
        max_length: tokens of a row at most, end mark included; None for the task's default.
        max_ratio: translation only: training pairs whose one side has more than so many times
            the tokens of the other are left out; 0 leaves in all.
        image_size: images are cut square and scaled to this side; None keeps them as they are,
            and then they all have to be square and of one size.
        allow_overlap: take a file that is given for two splits.
    """

    task: Task
    source: tuple[Path, ...]
    out: Path
    target: tuple[Path, ...] = ()
    valid: tuple[Path, ...] = ()
    test: tuple[Path, ...] = ()
    vocab_size: int = 32_000
    joint: bool = True
    tokenizer: ModelType = "bpe"
    max_length: int | None = None
    max_ratio: float = 3.0
    image_size: int | None = None
    allow_overlap: bool = False


@dataclass(frozen=True, slots=True)
class Content:
    """What was written: the fields of the manifest that only the writer knows."""

    content: Literal["pairs", "stream", "images", "texts"]
    splits: dict[str, SplitRecord]
    tokenizer: TokenizerRecord | None = None
    token_dtype: Literal["uint16", "int32"] | None = None
    image_shape: tuple[int, int, int] | None = None
    label_names: list[str] = field(default_factory=list)


class Plan(Protocol):
    """A request whose input was read once and found good."""

    @property
    def settings(self) -> Settings:
        """The options that decide the content."""
        ...

    @property
    def inputs(self) -> list[InputFile]:
        """Everything that is read."""
        ...

    @property
    def contents(self) -> dict[str, tuple[str, str]]:
        """What was given for each split: role → name, and a digest of what it holds."""
        ...

    def build(self, folder: Path, report: Report) -> Content:
        """Write all files but the manifest into an empty folder."""
        ...
