"""The files of a run: which may be looked at, and how they are sent.

A file is sent as it was when it was asked for, however it changes meanwhile.
"""

from __future__ import annotations

import base64
import hashlib
import logging
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO
from urllib.parse import quote

from fastapi import Request, Response
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from nas.results.export import CHECKSUMS_FILE
from nas.run.layout import WORKERS_FOLDER, export_folder, record_file
from search_spaces.json_text import parse_json
from service.api.problems import ProblemError
from service.api.schemas import ArtifactOut

CHUNK = 64 * 1024
LONGEST_PATH = 300
LONGEST_NAME = 255  # bytes; longer ones make file systems fail
_RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})")

log = logging.getLogger("service.api.files")


@dataclass(frozen=True)
class Snapshot:
    """An open file and how many bytes it had when it was opened.

    What is written over it by name is another file; what is appended is not of the snapshot.
    """

    file: BinaryIO = field(compare=False, repr=False)
    device: int
    inode: int
    changed_ns: int
    size: int

    @classmethod
    def open(cls, path: Path) -> Snapshot:
        """Open a file.

        Raises:
            ProblemError: 404 when it has gone meanwhile.
        """
        try:
            file = path.open("rb")
        except FileNotFoundError as error:
            raise ProblemError(404, "this file was deleted just now") from error
        status = os.fstat(file.fileno())
        return cls(file, status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size)

    def digest(self) -> bytes:
        """sha256 of its bytes."""
        return _sha256(self)

    def part(self, first: int, count: int) -> Iterator[bytes]:
        """So many of its bytes from `first` on.

        Raises:
            _CutShortError: when it has lost some of them.
        """
        self.file.seek(first)
        while count:
            chunk = self.file.read(min(CHUNK, count))
            if not chunk:
                raise _CutShortError
            count -= len(chunk)
            yield chunk


class _CutShortError(Exception):
    """A file has lost bytes that were promised."""


@lru_cache(maxsize=1024)
def _sha256(snapshot: Snapshot) -> bytes:
    found = hashlib.sha256()
    try:
        for chunk in snapshot.part(0, snapshot.size):
            found.update(chunk)
    except _CutShortError:
        pass  # sending it breaks off as well
    return found.digest()


class Download(StreamingResponse):
    """A file, or the range of it that was asked for.

    The connection breaks off where the file was cut meanwhile, so that nobody takes a part for the
    whole. A request for several ranges at once gets the whole file.

    Args:
        request: it answers.
        path: of the file.
        media_type: of the file.
        name: under which it is kept; None to show it.
        headers: further ones.

    Raises:
        ProblemError: 404 when the file has gone, 416 for a range that it does not have.
    """

    def __init__(
        self,
        request: Request,
        path: Path,
        media_type: str,
        name: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self._name = path.name
        self._snapshot = snapshot = Snapshot.open(path)
        try:
            digest = base64.b64encode(snapshot.digest()).decode()  # RFC 9530
            etag = f'"{digest}"'
            given = {"ETag": etag, "Repr-Digest": f"sha-256=:{digest}:", "Accept-Ranges": "bytes"}
            if name is not None:
                given["Content-Disposition"] = f"attachment; filename*=utf-8''{quote(name)}"
            first, end = _wanted(request, snapshot.size, etag)
        except BaseException:
            snapshot.file.close()
            raise
        partial = (first, end) != (0, snapshot.size)
        if partial:
            given["Content-Range"] = f"bytes {first}-{end - 1}/{snapshot.size}"
        given["Content-Length"] = str(end - first)
        super().__init__(
            snapshot.part(first, end - first),
            206 if partial else 200,
            {**given, **(headers or {})},
            media_type,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it."""
        try:
            await super().__call__(scope, receive, send)
        except _CutShortError:  # without its end the server closes the connection
            log.warning("a file was cut while it was sent", extra={"file": self._name})
        finally:
            self._snapshot.file.close()


def _wanted(request: Request, size: int, etag: str) -> tuple[int, int]:
    """The first byte that is asked for, and the one after the last."""
    found = _RANGE.fullmatch(request.headers.get("range", ""))
    if not found or not any(found.groups()) or request.headers.get("if-range", etag) != etag:
        return 0, size
    first, last = found.groups()
    if not first:
        begin, end = max(0, size - int(last)), size
    else:
        begin, end = int(first), min(int(last) + 1 if last else size, size)
    if last and first and int(last) < int(first):
        return 0, size  # no range at all
    if begin >= end:
        headers = {"Content-Range": f"bytes */{size}"}
        raise ProblemError(416, f"the file has {size} bytes", "Range", headers)
    return begin, end


def list_artifacts(folder: Path) -> list[ArtifactOut]:
    """All files of a run, by path, with the checksums that its stages have recorded."""
    recorded = _recorded(folder)
    found = []
    for path in sorted(_files(folder)):
        name = path.relative_to(folder).as_posix()
        stage, sha256 = recorded.get(name, (None, None))
        with suppress(FileNotFoundError):  # it has gone meanwhile
            size = path.stat().st_size
            found.append(ArtifactOut(path=name, size=size, sha256=sha256, stage=stage))
    return found


def find_artifact(folder: Path, name: str) -> Path | None:
    """The file of that name, if it is a plain file of the run.

    Hidden files, links of any kind on the way, and names that lead elsewhere are not there; nor is
    what workers of a cluster have logged, which tells of machines.
    """
    parts = name.split("/")
    if len(name) > LONGEST_PATH or "\\" in name or "\0" in name:
        return None
    if not name.isascii() and name != name.encode("utf-8", "replace").decode():
        return None  # no answer could tell a name that is no text
    if any(part in ("", ".", "..") or part.startswith(".") for part in parts):
        return None
    if parts[0] == WORKERS_FOLDER or any(len(part.encode()) > LONGEST_NAME for part in parts):
        return None
    path = folder
    for part in parts:
        path = path / part
        if path.is_symlink():
            return None
    inside = path.resolve().is_relative_to(folder.resolve())
    return path if inside and path.is_file() else None


def _files(folder: Path) -> Iterator[Path]:
    for place, _, names in os.walk(folder):  # which passes over folders that go meanwhile
        for name in names:
            path = Path(place, name)
            if find_artifact(folder, path.relative_to(folder).as_posix()):
                yield path


def _recorded(folder: Path) -> dict[str, tuple[str, str]]:
    """File → the stage that wrote it and its checksum."""
    found: dict[str, tuple[str, str]] = {}
    for record in sorted(folder.glob(record_file("*"))):
        try:
            outputs = parse_json(record.read_text(encoding="utf-8"))["outputs"]
            found |= {str(name): (record.stem, str(sha256)) for name, sha256 in outputs.items()}
        except (OSError, ValueError, LookupError, TypeError, AttributeError):
            continue  # a damaged record records nothing
    for sums in sorted(folder.glob(f"{export_folder('*', '*')}/{CHECKSUMS_FILE}")):
        found |= _exported(sums, folder)
    return found


def _exported(sums: Path, folder: Path) -> dict[str, tuple[str, str]]:
    """The checksums that an export has brought along."""
    where = sums.parent.relative_to(folder).as_posix()
    try:
        files = parse_json(sums.read_text(encoding="utf-8"))["sha256"]
        return {f"{where}/{name}": ("export", str(sha256)) for name, sha256 in files.items()}
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return {}  # as above


def tagged(request: Request, body: bytes, media_type: str, keep: str) -> Response:
    """An answer with the tag of its content, or 304 where the client has it.

    Args:
        request: it answers.
        body: the content.
        media_type: of the content.
        keep: the header ``Cache-Control``.
    """
    tag = base64.urlsafe_b64encode(hashlib.sha256(body).digest()[:18]).decode()
    headers = {"ETag": f'"{tag}"', "Cache-Control": keep}
    known = request.headers.get("if-none-match", "")[:1000]
    if any(one.strip().removeprefix("W/") == headers["ETag"] for one in known.split(",")):
        return Response(status_code=304, headers=headers)
    return Response(body, media_type=media_type, headers=headers)
