"""Files of text: lines as users write them, and rows of token numbers as they are kept.

Text is plain or gzip and read line by line, with errors that name file and line. Row i of
``NAME.tokens.bin`` (uint16, or int32 for more than 65,536 tokens) lies between the offsets i and
i + 1 of ``NAME.offsets.bin`` (int64); both are memory-mapped, little-endian and have no header.
"""

from __future__ import annotations

import gzip
import itertools
import shlex
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, Literal, cast

import numpy as np
from numpy.typing import NDArray

from search_spaces.errors import DataError

GZIP_MARK = b"\x1f\x8b"
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
LONGEST_PAIR = 256  # tokens of a side that nas data prepare keeps by itself
UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")

# What is being done, how much of it is done, and how much there is (0: not known).
Report = Callable[[str, int, int], None]

TokenDtype = Literal["uint16", "int32"]
_ON_DISK = {"uint16": "<u2", "int32": "<i4"}


class WrongEncoding(str):
    """What shows in a line that its file is not UTF-8; it is told once for all lines of a file."""

    one: ClassVar[str]
    several: ClassVar[str]
    likely: ClassVar[str]  # what the file is then
    charset: ClassVar[str]  # and what iconv calls it

    def advice(self, path: Path) -> str:
        """What to do with a file in which it shows."""
        return f"if it is {self.likely}, convert it with {conversion(path, self.charset)}"

    def of_file(self, path: Path, line: int, count: int) -> str:
        """The finding of a file.

        Args:
            path: the file.
            line: the first one, from 1, of which this was told.
            count: of the lines in which such a thing shows.
        """
        if count == 1:
            return f"{path}:{line}: {self}; {self.advice(path)}"
        example = self.removeprefix(self.one)
        return (
            f"{path}: {count:,} lines {self.several}, the first is line {line}{example}; "
            f"{self.advice(path)}"
        )


class NotUtf8(WrongEncoding):
    """A byte of the line is no part of a character."""

    one, several = "not UTF-8", "are not UTF-8"
    likely, charset = "Latin-1", "LATIN1"


class HoldsNul(WrongEncoding):
    """The line holds the character NUL, which no text does."""

    one, several = "holds the character NUL", "hold the character NUL"
    likely, charset = "UTF-16", "UTF-16"


def conversion(path: Path, charset: str) -> str:
    """What to type so that a file in another character set becomes one in UTF-8, beside it."""
    return _rewriting(path, f"iconv -f {charset} -t UTF-8", "utf8", "")


def _rewriting(path: Path, command: str, added: str, read: str) -> str:
    """What to type so that a command makes another file of one, beside it.

    Args:
        path: the file, plain or gzip.
        command: what reads it and writes the other.
        added: to the name of the other.
        read: what stands between the command and the file, such as ``<``.
    """
    packed = path.suffix == ".gz"
    plain = path.with_suffix("") if packed else path
    old, new = (shlex.quote(str(one)) for one in (path, plain.with_stem(f"{plain.stem}.{added}")))
    if packed:
        return f"gunzip -c {old} | {command} > {new}"
    return f"{command} {read}{old} > {new}"


def read_lines(path: Path) -> Iterator[str]:
    """The lines of a UTF-8 file, plain or gzip, without their ends.

    Only a line feed ends a line (a carriage return before it goes too), so that a source and its
    target never fall out of step over a rare character that other readers break lines at.

    Raises:
        DataError: naming the file, and the line where there is one, when it cannot be read.
    """
    for number, (line, problem) in enumerate(numbered_lines(path), start=1):
        if isinstance(problem, WrongEncoding):
            raise DataError(problem.of_file(path, number, 1))
        yield line


def numbered_lines(path: Path) -> Iterator[tuple[str, str]]:
    """The lines of `read_lines`, each with what is wrong with it; empty where nothing is.

    What is wrong with a line is a `WrongEncoding`. What of a line is no UTF-8 has other
    characters in its place.

    Raises:
        DataError: when the file as a whole cannot be read.
    """
    with _opened(path) as file:
        for number, raw in enumerate(file):
            if not number and raw.startswith(UTF16_MARKS) and b"\0" in raw:
                raise DataError(f"{path} is UTF-16; convert it with {conversion(path, 'UTF-16')}")
            if not number and b"\r" in raw.rstrip(b"\r") and b"\n" not in raw:
                convert = _rewriting(path, r"tr '\r' '\n'", "lines", "< ")
                raise DataError(
                    f"the lines of {path} end with carriage returns alone, and not with line "
                    f"feeds; convert it with {convert}"
                )
            line = raw.removeprefix(BYTE_ORDER_MARK) if not number else raw
            try:
                text = _text(line.decode("utf-8"))
            except UnicodeDecodeError as error:
                byte, column = line[error.start], error.start + 1
                wrong: WrongEncoding = HoldsNul(HoldsNul.one)
                if b"\0" not in line:
                    wrong = NotUtf8(f"{NotUtf8.one} (byte 0x{byte:02x} at column {column})")
                yield _text(line.decode("utf-8", "replace")), wrong
                continue
            yield text, HoldsNul(HoldsNul.one) if "\0" in text else ""


def _text(line: str) -> str:
    return line.removesuffix("\n").removesuffix("\r")


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    """The bytes of a file, unpacked if they are packed, whatever the file is called."""
    try:
        with path.open("rb") as file:
            packed = file.read(2) == GZIP_MARK
            file.seek(0)
            yield cast(BinaryIO, gzip.GzipFile(fileobj=file)) if packed else file
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"the gzip file {path} is damaged: {error}") from error
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from error


@dataclass(frozen=True, eq=False, slots=True)
class TokenRows:
    """Rows of different lengths.

    Attributes:
        tokens: all rows one after the other, integers ``(total,)``; usually memory-mapped.
        offsets: int64 ``(rows + 1,)``, from 0 to the total.
        gap: how many of the last tokens of each row are not taken for a part of it: files of other
            programs have an end mark there.
    """

    tokens: NDArray[Any]
    offsets: NDArray[np.int64]
    gap: int = 0

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, row: int) -> NDArray[Any]:
        return np.asarray(self.tokens[self.offsets[row] : self.offsets[row + 1] - self.gap])

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Tokens of each row, int64 ``(rows,)``."""
        return np.diff(self.offsets) - self.gap

    @property
    def num_tokens(self) -> int:
        """Tokens of all rows."""
        return int(self.offsets[-1]) - self.gap * len(self)

    def taken(self, numbers: NDArray[np.int64]) -> TokenRows:
        """Rows of these numbers, in memory."""
        begins, ends = self.offsets[numbers], self.offsets[numbers + 1]
        offsets = np.concatenate([[0], np.cumsum(ends - begins)])
        places = np.arange(offsets[-1]) + np.repeat(begins - offsets[:-1], ends - begins)
        return TokenRows(np.asarray(self.tokens[places]), offsets, self.gap)

    @classmethod
    def of(cls, rows: Sequence[Sequence[int]]) -> TokenRows:
        """Rows in memory."""
        offsets = np.zeros(len(rows) + 1, dtype=np.int64)
        np.cumsum([len(row) for row in rows], out=offsets[1:])
        return cls(_flat(rows, int(offsets[-1]), "<i4"), offsets)

    def padded(self, longest: int | None = None) -> NDArray[np.int64]:
        """All rows as one int64 matrix ``(rows, longest)``, filled up with 0 at the end."""
        lengths = self.lengths
        width = int(lengths.max(initial=0)) if longest is None else longest
        matrix = np.zeros((len(self), width), dtype=np.int64)
        matrix[np.arange(width) < lengths[:, None]] = self.joined()
        return matrix

    def joined(self) -> NDArray[Any]:
        """The tokens of all rows, ``(num_tokens,)``; a copy where there are gaps."""
        if not self.gap:
            return self.tokens[: self.offsets[-1]]
        kept = np.ones(int(self.offsets[-1]), dtype=np.bool_)
        for back in range(1, self.gap + 1):
            kept[self.offsets[1:] - back] = False
        return np.asarray(self.tokens[: self.offsets[-1]][kept])


class RowWriter:
    """Appends rows to the two files of `writing_rows`."""

    def __init__(self, tokens: BinaryIO, offsets: BinaryIO, dtype: TokenDtype) -> None:
        self._tokens, self._offsets, self._dtype = tokens, offsets, _ON_DISK[dtype]
        self.rows = self.total = self.longest = 0
        self._counts: Counter[int] = Counter()
        offsets.write(np.zeros(1, dtype="<i8").tobytes())

    def append(self, rows: Sequence[Sequence[int]]) -> None:
        """Write some rows."""
        lengths = np.fromiter((len(row) for row in rows), dtype="<i8", count=len(rows))
        ends = self.total + np.cumsum(lengths, dtype="<i8")
        self._offsets.write(ends.tobytes())
        self._tokens.write(_flat(rows, int(lengths.sum()), self._dtype).tobytes())
        self.rows += len(rows)
        self.total += int(lengths.sum())
        self.longest = max(self.longest, int(lengths.max(initial=0)))
        self._counts.update(lengths.tolist())

    @property
    def median(self) -> int:
        """Tokens of the row in the middle, were they sorted by length; 0 without rows."""
        seen = 0
        for length in sorted(self._counts):
            seen += self._counts[length]
            if 2 * seen >= self.rows:
                return length
        return 0


def token_dtype(vocab_size: int) -> TokenDtype:
    """The smallest type that holds every token."""
    return "uint16" if vocab_size <= 2**16 else "int32"


@contextmanager
def writing_rows(folder: Path, name: str, dtype: TokenDtype) -> Iterator[RowWriter]:
    """Write the two files of `name` into a folder."""
    tokens_path, offsets_path = _paths(folder, name)
    with tokens_path.open("wb") as tokens, offsets_path.open("wb") as offsets:
        yield RowWriter(tokens, offsets, dtype)


def read_rows(
    folder: Path, name: str, dtype: TokenDtype, vocab_size: int, least: int = 1
) -> TokenRows:
    """Map the two files of `name`; nothing is read before it is used, except the offsets.

    Args:
        folder: where they are.
        name: see the module.
        dtype: of the tokens.
        vocab_size: one more than the highest token number.
        least: the lowest token number: 0 where that is no padding.

    Raises:
        DataError: when they do not fit each other or hold a token that the vocabulary lacks.
    """
    tokens_path, offsets_path = _paths(folder, name)
    offsets = np.fromfile(offsets_path, dtype="<i8")
    tokens = map_array(tokens_path, _ON_DISK[dtype])
    fits = len(offsets) and offsets[0] == 0 and offsets[-1] == len(tokens)
    if not fits or (np.diff(offsets) < 0).any():
        raise DataError(f"{offsets_path} does not fit {tokens_path}; prepare the data anew")
    if len(tokens) and not least <= int(tokens.min()) <= int(tokens.max()) < vocab_size:
        raise DataError(
            f"{tokens_path} holds tokens outside of the vocabulary, {least} to {vocab_size - 1}; "
            "prepare the data anew"
        )
    return TokenRows(tokens, offsets.astype(np.int64, copy=False))


def map_array(path: Path, dtype: str, shape: tuple[int, ...] = (-1,)) -> NDArray[Any]:
    """A file without header as an array that is read where it is used; not writable."""
    if path.stat().st_size == 0:  # which cannot be mapped
        return np.empty(0, dtype=dtype)
    return np.memmap(path, dtype=dtype, mode="r").reshape(shape)


def _paths(folder: Path, name: str) -> tuple[Path, Path]:
    return folder / f"{name}.tokens.bin", folder / f"{name}.offsets.bin"


def _flat(rows: Sequence[Sequence[int]], total: int, dtype: str) -> NDArray[Any]:
    return np.fromiter(itertools.chain.from_iterable(rows), dtype=dtype, count=total)
