"""Files that are there in full or not at all, and journals, of which whole lines are there.

A journal grows line by line. A last line without its end was cut off when a process was killed, or
is just being written: nobody reads it, and the next line that is added takes its place.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path` to write to; it takes the name only if all went well.

    The content is on disk before the name changes, so that a crash leaves the old file or the new
    one. Two processes that write at once do not mix: each has a temporary file of its own, whose
    name is drawn, since processes of two hosts may have the same number.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    try:
        yield temporary
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        _name(error, temporary, path)
        raise
    finally:
        with suppress(OSError):  # a disk that only may be read also refuses this
            temporary.unlink(missing_ok=True)


def write_atomically(path: Path, text: str) -> None:
    """Write a text file in UTF-8, in full or not at all."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(file: Path, value: Mapping[str, Any]) -> None:
    """Write a JSON object for people and programs."""
    text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)
    write_atomically(file, text + "\n")


def append_lines(path: Path, lines: Iterable[str], *, sync: bool = True) -> None:
    """Add lines to a journal, in one write.

    Args:
        path: the file, made with its folder where it is not there.
        lines: without their ends.
        sync: whether they are on the disk before this returns.
    """
    data = "".join(f"{line}\n" for line in lines).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab+") as stream:
        size = stream.seek(0, os.SEEK_END)
        if size and stream.seek(size - 1) >= 0 and stream.read(1) != b"\n":
            stream.seek(0)
            stream.truncate(len(whole_lines(stream.read())))
        stream.write(data)
        if sync:
            stream.flush()
            os.fsync(stream.fileno())


def read_lines(path: Path) -> list[bytes]:
    """The whole lines of a journal, without their ends; none where there is no file."""
    return whole_lines(path.read_bytes()).split(b"\n")[:-1] if path.exists() else []


def whole_lines(data: bytes) -> bytes:
    """What is read of a part of a journal: everything up to the end of its last whole line."""
    return data[: data.rfind(b"\n") + 1]


@contextmanager
def building_folder(path: Path) -> Iterator[Path]:
    """Yield an empty folder beside `path` to fill; it takes the name only if all went well.

    Its content is on disk before that. What stood at `path` gives way in the same moment, and
    stays as it was when something goes wrong. What killed processes left behind is cleared away.
    """
    path = path.resolve()
    path.parent.mkdir(parents=True, exist_ok=True)
    _clear_leftovers(path)
    folder = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    old = path.with_name(f".{path.name}.{os.getpid()}.old.tmp")
    try:
        folder.mkdir()
        yield folder
        _to_disk(folder)
        if path.exists():
            path.rename(old)
        folder.rename(path)
    except BaseException as error:
        if old.exists() and not path.exists():
            old.rename(path)
        if isinstance(error, OSError):
            _name(error, folder, path)
        raise
    finally:
        for leftover in (folder, old):
            shutil.rmtree(leftover, ignore_errors=True)


def _name(error: OSError, temporary: Path, path: Path) -> None:
    """Let an error name what was to be written, not the temporary place of it."""
    if isinstance(error.filename, str | os.PathLike):
        named = Path(error.filename)
        if named.is_relative_to(temporary):
            error.filename = str(path / named.relative_to(temporary))


def _to_disk(folder: Path) -> None:
    for file in folder.rglob("*"):
        if file.is_file():
            with file.open("rb+") as stream:
                os.fsync(stream.fileno())


def _clear_leftovers(path: Path) -> None:
    """Remove folders that processes began beside `path` and did not live to finish.

    What such a process had only moved aside goes back to its place.
    """
    pattern = re.compile(rf"\.{re.escape(path.name)}\.(\d+)(\.old)?\.tmp")
    for leftover in path.parent.iterdir():
        found = pattern.fullmatch(leftover.name)
        if not found or not leftover.is_dir() or _alive(int(found[1])):
            continue
        if found[2] and not path.exists():
            leftover.rename(path)
        else:
            shutil.rmtree(leftover, ignore_errors=True)


def _alive(process: int) -> bool:
    """Whether another process of that number runs; one of ours would be a leftover too."""
    if process == os.getpid():
        return False
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True
