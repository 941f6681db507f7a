"""Files that are there in full or not at all, and journals, of which whole lines are there.

A journal grows line by line. A last line without its end was cut off when a process was killed, or
is just being written: nobody reads it, and the next line that is added takes its place.
"""

from __future__ import annotations

import errno
import json
import os
import platform
import re
import secrets
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from search_spaces.errors import UsageError

# Of a folder that is being built, or that a killed process left behind.
BUILDING = re.compile(
    r"\.(?P<name>.+)\.(?:(?P<host>[A-Za-z0-9-]*)-)?(?P<process>\d+)(?P<old>\.old)?\.tmp"
)


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
def building_folder(path: Path, *, replace: bool = True) -> Iterator[Path]:
    """Yield an empty folder beside `path` to fill; it takes the name only if all went well.

    Its content is on disk before that. What killed processes of this host left behind is cleared
    away.

    Args:
        path: the folder to make.
        replace: whether what stands at `path` gives way in the same moment, to stay as it was when
            something goes wrong; otherwise only an empty folder does.

    Raises:
        UsageError: when another process has made the folder meanwhile, and where none can be made.
    """
    path = path.resolve()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except (FileNotFoundError, FileExistsError, NotADirectoryError) as error:
        raise UsageError(f"no folder can be made at {path}; name another place") from error
    _clear_leftovers(path)
    builder = f"{_host()}-{os.getpid()}"
    folder, old = (path.with_name(f".{path.name}.{builder}{end}") for end in (".tmp", ".old.tmp"))
    try:
        folder.mkdir()
        yield folder
        _to_disk(folder)
        if replace and path.exists():
            path.rename(old)
        _rename(folder, path)
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


def _rename(folder: Path, path: Path) -> None:
    try:
        folder.rename(path)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        raise UsageError(
            f"{path} was made by another process meanwhile, and stays as that one made it: look "
            "whether it is what you want, or name another folder"
        ) from error


def _host() -> str:
    """This host's name as it stands in names of files: processes of two may have one number."""
    return re.sub(r"[^A-Za-z0-9]+", "-", platform.node())


def unfinished_folder(name: str) -> str | None:
    """What the folder will be called that `building_folder` fills under a name; None for others."""
    found = BUILDING.fullmatch(name)
    return found["name"] if found else None


def _clear_leftovers(path: Path) -> None:
    """Remove folders that processes began beside `path` and did not live to finish.

    Those of other hosts, which cannot be asked, stay. What such a process had only moved aside
    goes back to its place.
    """
    for leftover in path.parent.iterdir():
        found = BUILDING.fullmatch(leftover.name)
        host = _host()  # leftovers of older versions name none
        if not found or (found["name"], found["host"] or host) != (path.name, host):
            continue
        if not leftover.is_dir() or _alive(int(found["process"])):
            continue
        if found["old"] and not path.exists():
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


def room_for_copies(free_bytes: int, most: int) -> int:
    """Bytes that may be kept of what can be made anew: at most a quarter of a disk's free ones.

    Args:
        free_bytes: of the disk.
        most: that are kept on any disk.
    """
    return min(most, free_bytes // 4)
