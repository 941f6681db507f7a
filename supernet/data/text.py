"""Text files, plain or gzip, read line by line with errors that name file and line."""

from __future__ import annotations

import gzip
import hashlib
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

from search_spaces.errors import DataError
from supernet.data.manifest import file_sha256

GZIP_MARK = b"\x1f\x8b"
BYTE_ORDER_MARK = b"\xef\xbb\xbf"

# What is being done, how much of it is done, and how much there is (0: not known).
Report = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class TextFile:
    """A text file that was read from end to end once and found good.

    Attributes:
        path: where it is.
        lines: number of lines, at least 1.
        sha256: of its bytes as they are, packed or not.
        content: sha256 of its lines.
    """

    path: Path
    lines: int
    sha256: str
    content: str


def read_lines(path: Path) -> Iterator[str]:
    """The lines of a UTF-8 file, plain or gzip, without their ends.

    Only a line feed ends a line (a carriage return before it goes too), so that a source and its
    target never fall out of step over a rare character that other readers break lines at.

    Raises:
        DataError: naming the file, and the line where there is one, when it cannot be read.
    """
    with _opened(path) as file:
        for number, raw in enumerate(file, start=1):
            line = raw.removeprefix(BYTE_ORDER_MARK) if number == 1 else raw
            try:
                yield line.decode("utf-8").removesuffix("\n").removesuffix("\r")
            except UnicodeDecodeError as error:
                byte = line[error.start]
                raise DataError(
                    f"{path}:{number}: not UTF-8 (byte 0x{byte:02x} at column {error.start + 1}); "
                    "convert the file with iconv -t UTF-8"
                ) from error


def scan(path: Path) -> TextFile:
    """Read a file once, to count its lines and to find what is wrong with it before work begins.

    Raises:
        DataError: when it is missing, empty, no UTF-8 or damaged.
    """
    if not path.exists():
        raise DataError(f"there is no file {path}")
    if path.is_dir():
        raise DataError(f"{path} is a folder; name a text file, plain or .gz")
    lines, content = 0, hashlib.sha256()
    for line in read_lines(path):
        lines += 1
        content.update(f"{line}\n".encode())
    if not lines:
        raise DataError(f"{path} is empty; it should have one sentence a line")
    return TextFile(path, lines, file_sha256(path), content.hexdigest())


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
