"""What is asked of a preparation, and what each kind of data answers with.

Two splits should share nothing: equal files are refused, and examples that occur in both are
counted. Examples are told apart by 64 bits of a hash, which wait in files until all splits are
written: in memory there are 8 bytes an example of a held-out split, and nothing of the training
split.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Literal, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from search_spaces.errors import UsageError
from search_spaces.tasks import TaskName
from search_spaces.wording import mark
from supernet.data.manifest import COLUMN, InputFile, SplitRecord, TokenizerRecord
from supernet.data.text_files import Report
from supernet.data.tokenizer import ModelType

SPLITS = ("train", "valid", "test")
Settings = dict[str, str | int | float | bool | None]

HASH_BYTES = 8
HASHES_PER_CHUNK = 1 << 20
USUAL_RATIO = 3.0

Hashes = NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class PrepareRequest:
    """Which files to prepare, and how.

    Attributes:
        task: what the data are for.
        source: files of the training split; several are read one after the other. Of pictures
            one file or folder.
        out: the folder to make.
        target: translation only: as many files as `source`, line by line its translations.
        valid: the validation split. Translation: a prefix to which the endings of source and
            target are added, or a source and a target file. What is left out is held out of the
            training examples, see `supernet.data.prepare.held_out`.
        test: the test split, in the same forms.
        vocab_size: tokens of a vocabulary, marks included; None for as many as the text teaches.
        joint: translation only: one vocabulary for both sides.
        tokenizer: how the vocabulary is learnt; or the folder of a checkpoint, whose vocabulary is
            taken as it is; or ``bytes`` for labelled texts, where each is a token.
        max_length: tokens of a row at most, end mark included; None for the task's default.
        max_ratio: translation only: training pairs whose one side has more than so many times
            the tokens of the other are left out; 0 leaves in all.
        image_size: images are cut square and scaled to this side; None keeps them as they are,
            and then they all have to be square and of one size.
        allow_overlap: take a file that is given for two splits.
        columns: role (text, label, image, source, target, query, passage) and name of the column
            that holds it, where it has no usual name.
        group_by: column of groups that are held out whole.
        skip_bad: leave out examples that cannot be used.
        bfloat16: embedding only: what the checkpoint says of the training texts is computed in
            products of bfloat16.
        pictures_by_path: whether a table may name pictures by the paths of their files; not where
            it comes from a stranger.
    """

    task: TaskName
    source: tuple[Path, ...]
    out: Path
    target: tuple[Path, ...] = ()
    valid: tuple[Path, ...] = ()
    test: tuple[Path, ...] = ()
    vocab_size: int | None = None
    joint: bool = True
    tokenizer: ModelType | Literal["bytes"] | Path = "bpe"
    max_length: int | None = None
    max_ratio: float = USUAL_RATIO
    image_size: int | None = None
    allow_overlap: bool = False
    columns: tuple[tuple[str, str], ...] = ()
    group_by: str | None = None
    skip_bad: bool = False
    bfloat16: bool = False
    pictures_by_path: bool = True

    @property
    def column_settings(self) -> Settings:
        """The options about columns, where they are given."""
        named: Settings = {f"{COLUMN}{role}": name for role, name in self.columns}
        return named | ({} if self.group_by is None else {"group_by": self.group_by})


@dataclass(frozen=True, slots=True)
class Content:
    """What was written: the fields of the manifest that only the writer knows."""

    content: Literal["pairs", "stream", "images", "texts", "embeddings"]
    splits: dict[str, SplitRecord]
    tokenizer: TokenizerRecord | None = None
    token_dtype: Literal["uint16", "int32"] | None = None
    image_shape: tuple[int, int, int] | None = None
    label_names: list[str] = field(default_factory=list)
    width: int | None = None


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
    def skipped(self) -> Mapping[str, int]:
        """Split → examples that were left out because they cannot be used."""
        ...

    @property
    def contents(self) -> dict[str, tuple[str, str]]:
        """What was given for each split: role → name, and a digest of what it holds."""
        ...

    def build(self, folder: Path, report: Report) -> Content:
        """Write all files but the manifest into an empty folder."""
        ...


def refuse_vocabulary(request: PrepareRequest, instead: str) -> None:
    """See that nothing is asked for that only a vocabulary has which is learnt.

    Args:
        request: for data without such a one.
        instead: what it is instead, for people.

    Raises:
        UsageError: naming what is asked for.
    """
    given = f"{mark('tokenizer')} unigram" if request.tokenizer == "unigram" else ""
    given = given if request.vocab_size is None else mark("vocab_size")
    if given:
        raise UsageError(
            f"{given} is for vocabularies that are learnt, and {instead}: leave it out"
        )


def refuse_pair_options(request: PrepareRequest) -> None:
    """See that nothing is asked for that only pairs have.

    Raises:
        UsageError: naming it.
    """
    given = "" if request.joint else mark("joint", "--separate")
    given = given if request.max_ratio == USUAL_RATIO else mark("max_ratio")
    if given:
        raise UsageError(f"{given} is for translation; leave it out")


def refuse_equal_files(files: Mapping[str, tuple[str, str]]) -> None:
    """See that no file is given for two splits.

    Args:
        files: role, such as ``valid.source`` or ``train`` → name and digest of the content.

    Raises:
        UsageError: naming both; copies, packed or not, are equal.
    """
    seen: dict[str, tuple[str, str]] = {}
    for role, (name, digest) in files.items():
        split = role.partition(".")[0]
        other, known = seen.setdefault(digest, (split, name))
        if other != split:
            raise UsageError(
                f"{known} of the {other} split and {name} of the {split} split hold the same: what "
                "was learnt by heart would be taken for skill. Give each split data of its own, or "
                f"{mark('allow_overlap')} if that is meant"
            )


class Overlaps:
    """Counts examples of held-out splits that other splits have too.

    Args:
        folder: where hashes wait, in files without a name.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: dict[tuple[str, str], IO[bytes]] = {}
        self._open = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def add(self, split: str, examples: Iterable[bytes], what: str = "") -> None:
        """Take note of examples; empty ones are not counted.

        Args:
            split: where they are.
            examples: their content.
            what: which part of an example this is, such as ``source``; empty for all of it.
        """
        if (split, what) not in self._files:
            made = tempfile.TemporaryFile(dir=self._folder)  # noqa: SIM115 (closed with the rest)
            file = self._open.enter_context(made)
            self._files[split, what] = file
        hashes = (
            hashlib.blake2b(example, digest_size=HASH_BYTES).digest()
            for example in examples
            if example
        )
        self._files[split, what].write(b"".join(hashes))

    def of(self, split: str, others: Iterable[str]) -> dict[str, int]:
        """How many examples of a split are in the others too.

        Returns:
            ``train`` or ``train.source`` → the number, where it is not 0.
        """
        found = {}
        for (mine, what), file in list(self._files.items()):
            if mine != split:
                continue
            hashes, counts = np.unique(_joined(file), return_counts=True)
            for other in others:
                met = np.zeros(len(hashes), dtype=bool)
                for part in _chunks(self._files.get((other, what))):
                    met |= np.isin(hashes, part)
                if count := int(counts[met].sum()):
                    found[f"{other}.{what}" if what else other] = count
        return found


def _joined(file: IO[bytes]) -> Hashes:
    return np.concatenate([np.zeros(0, dtype=np.uint64), *_chunks(file)])


def _chunks(file: IO[bytes] | None) -> Iterator[Hashes]:
    if file is not None:
        file.seek(0)
        while data := file.read(HASH_BYTES * HASHES_PER_CHUNK):
            yield np.frombuffer(data, dtype=np.uint64)
