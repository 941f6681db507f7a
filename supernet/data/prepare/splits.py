"""The files of each split, read once: what they hold, what is wrong, and what is held out.

A folder stands for the files in it, each for the split that is a word of its name or of its
folder's; files without such a name are for training where no other file is called so.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from array import array
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from search_spaces.errors import DataError, UsageError
from search_spaces.wording import mark
from supernet.data.checkpoint_tokenizer import CheckpointTokenizer
from supernet.data.manifest import InputFile, written_name
from supernet.data.prepare.checkpoint_folder import input_file
from supernet.data.prepare.doctor import Doctor
from supernet.data.prepare.held_out import Codes
from supernet.data.prepare.plan import HASH_BYTES, SPLITS, PrepareRequest
from supernet.data.prepare.records import (
    JSON_ENDINGS,
    SPLITS_FILE,
    TABLE_ENDINGS,
    Columns,
    Record,
    has_columns,
    input_sha256,
    is_table,
    place_of,
    read_records,
    unused_columns,
)
from supernet.data.text_files import Report, WrongEncoding

TEXT_ENDINGS = (".txt", ".gz", *JSON_ENDINGS, *TABLE_ENDINGS)
# Words of the names of files and folders, also with "set" or "data" behind → their split.
SPLIT_NAMES = {
    "train": "train",
    "training": "train",
    "trn": "train",
    "valid": "valid",
    "validation": "valid",
    "validate": "valid",
    "val": "valid",
    "dev": "valid",
    "devel": "valid",
    "development": "valid",
    "eval": "valid",
    "evaluation": "valid",
    "test": "test",
    "testing": "test",
    "tst": "test",
}
# Words are between what are no letters, and between a small letter and a capital.
_WORDS = re.compile(r"[^\W\d_]+")
_CAPITAL = re.compile(r"(?<=[a-z])(?=[A-Z])")
# Words that count where they begin a name even if no name says train: others are of any text.
BEGINNINGS = ("train", "training", "valid", "validation", "val", "dev", "test")
RECORDS_PER_REPORT = 4096
# Of a vocabulary whose size is not given.
CHARACTERS_PER_TOKEN, FEWEST_TOKENS, MOST_TOKENS = 1000, 500, 32_000

Given = Mapping[str, Sequence[tuple[Path, ...]]]  # split → its files; of pairs two that go together


def splits_called(name: str) -> set[str]:
    """The splits that a file or folder is called by; more than one where it cannot be known."""
    words = _WORDS.findall(_CAPITAL.sub(" ", name).lower())
    plain = (word.removesuffix("set").removesuffix("data") for word in words)
    return {SPLIT_NAMES[word] for word in plain if word in SPLIT_NAMES}


def split_called(name: str) -> str | None:
    """The split that a file or folder is for, by its name; None where it tells none, or several."""
    found = splits_called(name)
    return found.pop() if len(found) == 1 else None


def splits_of(paths: Sequence[Path], root: Path) -> list[str | None]:
    """The split that each of some files or folders is for, by its name or the outermost above it.

    Words anywhere in a name count where one of them is called by the training split, so that they
    are no words of titles; else the `BEGINNINGS` of names do.

    Args:
        paths: in a folder.
        root: that folder, whose own name tells nothing.

    Raises:
        DataError: for one that is called by two splits, or by none beside others that are called
            by that of training: without these it would be for training itself.
    """
    names = [path.relative_to(root) for path in paths]
    found = [_outermost(name, splits_called) for name in names]
    if not any("train" in splits for splits in found):
        return [next(iter(_outermost(name, _begun)), None) for name in names]
    give = f"{mark('source')}, {mark('valid')} and {mark('test')}"
    for path, splits in zip(paths, found, strict=True):
        if len(splits) > 1:
            several = " and ".join(split for split in SPLITS if split in splits)
            raise DataError(
                f"{path} is called by several splits, {several}: rename it so that one is left, or "
                f"give the data of each split with {give}"
            )
    known = next((n for n, splits in zip(names, found, strict=True) if "train" in splits), None)
    other = next((path for path, splits in zip(paths, found, strict=True) if not splits), None)
    if known is not None and other is not None:
        raise DataError(
            f"{other} is called by no split, unlike {known} beside it: put train, valid or test "
            f"into its name, move it elsewhere, or give the data of each split with {give}"
        )
    return [next(iter(splits), None) for splits in found]


def _outermost(name: Path, called: Callable[[str], set[str]]) -> set[str]:
    """What the first part of a relative path that is called by a split is called by."""
    return next((found for part in name.parts if (found := called(part))), set())


def _begun(part: str) -> set[str]:
    word = re.split(r"[^a-z]", part.lower(), maxsplit=1)[0]
    return {SPLIT_NAMES[word]} if word in BEGINNINGS else set()


def is_text(file: Path) -> bool:
    """Whether a file is one of texts, by its name."""
    return file.name.lower().endswith(TEXT_ENDINGS)


def files_of(given: Mapping[str, Sequence[Path]], doctor: Doctor) -> dict[str, list[Path]]:
    """The files of each split, those of folders in their places, sorted by their paths.

    A folder that is given for training may hold the other splits too; what is given for these by
    itself takes their place, and holds no other. Of a folder with data in columns plain texts do
    not count; hidden files never do.

    Raises:
        DataError: for a folder without any, with files whose split cannot be known, or with several
            splits that was not given for training.
    """
    found: dict[str, list[Path]] = {}
    for split, paths in given.items():
        for path in paths:
            refuse_pipe(path)
            inside = {"train": [path]}
            if path.is_dir() and not is_table(path):
                inside = _inside(path, doctor)
                check_one_split(path, split, inside)
            for name, files in inside.items():
                if split == "train" and name != "train" and given.get(name):
                    doctor.ignored.append(f"{path}: what it holds of {name}, which is given")
                else:
                    found.setdefault(name if split == "train" else split, []).extend(files)
    if "train" not in found:
        named, others = ", ".join(map(str, given["train"])), " and ".join(found)
        raise DataError(f"{named} has no texts to learn from beside those called {others}")
    return {split: found[split] for split in SPLITS if found.get(split)}


def refuse_pipe(path: Path) -> None:
    """See that what is to be read is a file or a folder, which can be read twice.

    Raises:
        DataError: for a pipe or a device.
    """
    if path.exists() and not path.is_file() and not path.is_dir():
        raise DataError(
            f"{path} is a pipe or a device, which can be read only once: write what comes out of "
            "it into a file and give that"
        )


def check_one_split(path: Path, split: str, inside: Collection[str]) -> None:
    """See that what was given for a held-out split does not hold several.

    Args:
        path: what was given.
        split: that it was given for.
        inside: the splits in it, or its parts that are called by them.

    Raises:
        DataError: when it does: which of them is meant cannot be known.
    """
    if split != "train" and len(inside) > 1:
        raise DataError(
            f"{path} holds {', '.join(inside)} and was given for {split}: give what is meant of it "
            f"with {mark(split)}, or all of it as {mark('source')} alone"
        )


def _inside(folder: Path, doctor: Doctor) -> dict[str, list[Path]]:
    if (folder / SPLITS_FILE).is_file():
        return _saved_splits(folder, doctor)
    files = sorted(
        file
        for file in folder.rglob("*")
        if file.is_file()
        and not any(part.startswith(".") for part in file.relative_to(folder).parts)
    )
    texts = [file for file in files if is_text(file)]
    if any(map(is_table, texts)):  # what lies beside tables tells about them
        texts = [file for file in texts if has_columns(file)]
    if not texts:
        endings = f"{', '.join(TEXT_ENDINGS[:-1])} or {TEXT_ENDINGS[-1]}"
        raise DataError(
            f"{folder} has no texts: put files that end in {endings} there, with a text in each "
            "line, or name another folder"
        )
    doctor.ignored += [f"{file}: no text by its name" for file in files if file not in texts]
    found: dict[str, list[Path]] = {}
    for file, split in zip(texts, splits_of(texts, folder), strict=True):
        found.setdefault(split or "train", []).append(file)
    return found


def _saved_splits(folder: Path, doctor: Doctor) -> dict[str, list[Path]]:
    """The splits of a folder that `datasets` saved."""
    try:
        names = json.loads((folder / SPLITS_FILE).read_text("utf-8"))["splits"]
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise DataError(f"{folder / SPLITS_FILE} does not name the splits of the data") from error
    found: dict[str, list[Path]] = {}
    for name in map(str, names):
        split = split_called(name)
        if split is None:
            doctor.ignored.append(f"{folder / name}: a split that is called by no usual name")
        else:
            found.setdefault(split, []).append(folder / name)
    return found


@dataclass(frozen=True, slots=True)
class RecordFile:
    """A file of records that was read from end to end once.

    Attributes:
        paths: the file, or two whose lines go together.
        columns: what was looked for in it.
        count: records that can be used.
        left_out: numbers of records that cannot be used although they have the right form.
        sha256: of each path.
        contents: of each role, a digest of all its values.
    """

    paths: tuple[Path, ...]
    columns: Columns
    count: int
    left_out: frozenset[int]
    sha256: tuple[str, ...]
    contents: tuple[str, ...]

    def records(self) -> Iterator[Record]:
        """Those that can be used."""
        for record in read_records(self.paths, self.columns):
            if not record.problem and record.line not in self.left_out:
                yield record

    def without(self, lines: set[int]) -> RecordFile:
        """The file with some more records left out."""
        return dataclasses.replace(
            self, count=self.count - len(lines), left_out=self.left_out | lines
        )


@dataclass(frozen=True, eq=False, slots=True)
class Sources:
    """The files of all splits.

    Attributes:
        files: by the split that they were given for.
        labels: last value of each record, by that split; only where records have labels.
        keys: of the training records, hashes of each role; empty when nothing is to be held out.
        groups: of the training records, hashes of what they are grouped by.
        characters: of all texts of the training records.
        alphabet: different ones of these.
        codes: for each training record the split it goes to, as a place in `SPLITS`.
    """

    files: dict[str, list[RecordFile]]
    labels: dict[str, list[Any]]
    keys: tuple[NDArray[np.uint64], ...]
    groups: NDArray[np.uint64]
    characters: int
    alphabet: int
    codes: Codes

    @property
    def learnable_tokens(self) -> int:
        """Tokens of a vocabulary: a thousand characters for each, so that all are seen often."""
        return max(FEWEST_TOKENS, min(MOST_TOKENS, self.characters // CHARACTERS_PER_TOKEN))

    @property
    def missing(self) -> list[str]:
        """Splits that no file was given for."""
        return [split for split in SPLITS if split not in self.files]

    @property
    def counts(self) -> dict[str, int]:
        """Records that can be used, by the split that their files were given for."""
        return {split: sum(file.count for file in files) for split, files in self.files.items()}

    @property
    def inputs(self) -> list[InputFile]:
        """Everything that was read; of pairs of files each side."""
        return [
            InputFile(role=_role(split, file, side), name=written_name(path), sha256=digest)
            for split, files in self.files.items()
            for file in files
            for side, (path, digest) in enumerate(zip(file.paths, file.sha256, strict=True))
        ]

    @property
    def contents(self) -> dict[str, tuple[str, str]]:
        """See `Plan.contents`; labels do not count."""
        found = {}
        for split, files in self.files.items():
            for number, file in enumerate(files):
                for side, digest in enumerate(file.contents):
                    path = file.paths[min(side, len(file.paths) - 1)]
                    found[f"{split}.{side}.{number}"] = (str(path), f"{side} {digest}")
        return found

    def train_names(self, sides: Sequence[int] = (0,)) -> str:
        """The files of the training texts, for messages; of pairs those of these sides."""
        train = self.files["train"]
        paths = [file.paths[min(side, len(file.paths) - 1)] for side in sides for file in train]
        return " and ".join(dict.fromkeys(path.name for path in paths))

    def count(self, split: str) -> int:
        """Records of a split."""
        if split in self.files and split != "train":
            return self.counts[split]
        return int((self.codes == SPLITS.index(split)).sum())

    def records(self, split: str) -> Iterator[Record]:
        """The records of a split, in the order of its files."""
        if split in self.files and split != "train":
            for file in self.files[split]:
                yield from file.records()
            return
        number, wanted = 0, SPLITS.index(split)
        for file in self.files["train"]:
            for record in file.records():
                if self.codes[number] == wanted:
                    yield record
                number += 1


@dataclass(frozen=True, slots=True)
class SourcesPlan:
    """Texts that were read once, and the tokenizer of a checkpoint where they are to be its tokens.

    The other plans of texts add what they make of them, see `Plan`.
    """

    request: PrepareRequest
    sources: Sources
    skipped: Mapping[str, int]
    tokenizer: CheckpointTokenizer | None

    @property
    def inputs(self) -> list[InputFile]:
        """Everything that is read."""
        read = [] if self.tokenizer is None else [input_file(self.tokenizer)]
        return read + self.sources.inputs

    @property
    def contents(self) -> dict[str, tuple[str, str]]:
        """See `Plan.contents`."""
        return self.sources.contents


def _role(split: str, file: RecordFile, side: int) -> str:
    return f"{split}.{('source', 'target')[side]}" if len(file.paths) > 1 else split


def read_sources(
    given: Given,
    columns: Columns,
    doctor: Doctor,
    report: Report,
    problem: Callable[[Record], str] = lambda _: "",
) -> Sources:
    """Read all files once.

    Args:
        given: the files of each split.
        columns: what to look for.
        doctor: learns what is wrong with them.
        report: is told how many records were read.
        problem: what else can be wrong with a record; empty where nothing is.

    Returns:
        The files, with nothing held out yet; those that cannot be read at all are not among them.
    """
    reading = _Reading(columns, doctor, report, problem, tuple(given))
    for split, named in given.items():
        for paths in named:
            with doctor.going_on():
                reading.add(split, paths)
        with doctor.going_on():
            reading.check_some(split)
    return reading.sources()


class _Reading:
    """The first reading of all files."""

    def __init__(
        self,
        columns: Columns,
        doctor: Doctor,
        report: Report,
        problem: Callable[[Record], str],
        splits: Sequence[str],
    ) -> None:
        self._columns, self._doctor, self._problem = columns, doctor, problem
        self._report = report
        self._files: dict[str, list[RecordFile]] = {split: [] for split in splits}
        self._empty: dict[str, list[Path]] = {split: [] for split in splits}
        self._labels: dict[str, list[Any]] = {split: [] for split in splits}
        self._keys: list[array[int]] = []
        self._groups = array("Q")
        self._done = self._characters = 0
        self._alphabet = set[str]()
        self._keyed = len(splits) < len(SPLITS)
        self._labelled = any("label" in form for form in columns.forms)
        report("Reading", 0, 0)

    def add(self, split: str, paths: tuple[Path, ...]) -> None:
        for path in paths:
            if not path.exists():
                raise DataError(f"there is no file {path}")
            if path.is_dir() and not is_table(path):
                raise DataError(f"{path} is a folder; name a text file, plain or .gz")
            refuse_pipe(path)
        if is_table(paths[0]):
            unused = unused_columns(paths[0], self._columns)
            if unused:
                self._doctor.ignored.append(f"{paths[0]}: the columns {', '.join(unused)}")
        lines, count, left_out = 0, 0, set[int]()
        digests: list[Any] = []
        for record in read_records(paths, self._columns):
            lines += 1
            reason = record.problem or self._problem(record)
            if reason:
                self._leave_out(split, paths, record, reason)
                left_out |= set() if record.problem else {record.line}
            else:
                count += 1
                self._note(split, record, digests)
            if (self._done + lines) % RECORDS_PER_REPORT == 0:
                self._report("Reading", self._done + lines, 0)
        self._done += lines
        self._doctor.guessed = self._columns.guess
        if not lines:
            self._empty[split].append(paths[0])
            return
        sums = tuple(input_sha256(path) for path in paths)
        contents = tuple(digest.hexdigest() for digest in digests)
        self._files[split].append(
            RecordFile(paths, self._columns, count, frozenset(left_out), sums, contents)
        )

    def check_some(self, split: str) -> None:
        """See that not all files of a split are empty; of others, those that are are ignored."""
        empty = self._empty[split]
        if empty and not self._files[split]:
            raise DataError(f"{empty[0]} holds no example; it should have one a line")
        self._doctor.ignored += [f"{path}: it holds no example" for path in empty]

    def _leave_out(self, split: str, paths: tuple[Path, ...], record: Record, reason: str) -> None:
        if isinstance(reason, WrongEncoding):
            self._doctor.leave_out_line(split, paths[record.side], record.line, reason)
        else:
            self._doctor.leave_out(split, place_of(paths, record), reason)

    def _note(self, split: str, record: Record, digests: list[Any]) -> None:
        values = record.values
        if self._labelled:
            self._labels[split].append(values[-1])
            values = values[:-1]
        raw = [value if isinstance(value, bytes) else str(value).encode() for value in values]
        while len(digests) < len(raw):
            digests.append(hashlib.sha256())
        for digest, value in zip(digests, raw, strict=False):
            digest.update(value + b"\n")
        if split != "train":
            return
        for text in (value for value in values if isinstance(value, str)):
            self._characters += len(text)
            self._alphabet.update(text)
        if self._columns.group_by is not None:
            self._groups.append(_hashed(record.group.encode()))
        if self._keyed:
            while len(self._keys) < len(raw):
                self._keys.append(array("Q"))
            for keys, value in zip(self._keys, raw, strict=False):
                keys.append(_hashed(value.strip()))

    def sources(self) -> Sources:
        self._report("Reading", self._done, self._done)
        files = {split: found for split, found in self._files.items() if found}
        count = sum(file.count for file in files.get("train", ()))
        return Sources(
            files,
            self._labels,
            tuple(np.array(keys, dtype=np.uint64) for keys in self._keys),
            np.array(self._groups, dtype=np.uint64),
            self._characters,
            len(self._alphabet),
            np.zeros(count, dtype=np.int8),
        )


def columns_of(request: PrepareRequest, *forms: tuple[str, ...], by_line: bool = False) -> Columns:
    """What to look for in files with named columns, see `Columns`."""
    given = dict(request.columns)
    return Columns(forms, given, request.group_by, by_line, request.pictures_by_path)


def refuse_columns(request: PrepareRequest) -> None:
    """See that no columns are named of files that have none.

    Raises:
        UsageError: when some are.
    """
    if request.columns or request.group_by:
        named = mark("columns" if request.columns else "group_by")
        raise UsageError(
            f"{named} is for data with named columns (.csv, .tsv, .jsonl, .parquet, .arrow, or a "
            "folder that datasets saved); lines of text and folders of pictures have none"
        )


def _hashed(value: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(value, digest_size=HASH_BYTES).digest())
