"""Checkpoints that owners have uploaded, below ``HOME/uploads/OWNER``.

An upload is announced with the names and sizes of its files, which count against the owner's quota
from then on. The files come one by one into a hidden folder. When all are there, that folder is put
aside, so that nobody changes it any more, is read as every checkpoint is, and takes its name in one
step. So what has a name is whole and was accepted; what a killed process leaves has none, and is
deleted when nobody goes on with it.

Names are those of an allow-list (`supernet.pretrained.folder_files`): there is no way to upload a
pickle, a program, or a path.
"""

from __future__ import annotations

import glob
import hashlib
import math
import os
import re
import secrets
import shutil
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

from filelock import FileLock, Timeout

from search_spaces.errors import NasError
from search_spaces.files import write_json
from search_spaces.json_text import parse_json
from service.auth import Token, is_owner
from service.settings import GIB, MIB, Settings
from supernet.pretrained.folder_files import INDEX_FILE, is_checkpoint_file, is_weights_file

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}", re.ASCII)
FACTS_FILE = "upload.json"  # of ours; the allow-list has no such name
COMING, ASIDE = ".coming-", ".aside-"  # before the id of an upload
PART = ".part-"
LOCK_FILE = ".preparing"  # of data, held while they are checked

LARGEST_SMALL = 64 * MIB  # of a file without weights: the largest tokenizers have half of that
MOST_FILES = 200  # of an upload
MOST_OPEN = 4  # uploads of one owner that are not finished
MOST_KEPT = 100  # checkpoints of one owner
IDLE_S = 900.0  # after which nobody goes on with an upload
DATA_IDLE_S = 24 * 3600.0  # of data, which come in parts and may go on the next day
LONGEST_S = 6 * 3600.0  # for all of a checkpoint
DATA_LONGEST_S = math.inf  # as long as somebody goes on with them
LEFT_FREE = GIB  # of the disk, for others
LOCK, LOCK_S = ".lock", 10.0  # of who announces an upload or gives one its name
FINISHING = ".finishing"  # of who has a checkpoint read
FINISH_S = 300.0  # for another checkpoint of the owner to be read


class UploadError(NasError):
    """An upload is refused; `status` is HTTP's word for why."""

    def __init__(self, status: int, text: str, field: str | None = None) -> None:
        super().__init__(text)
        self.status = status
        self.field = field


class UnreadError(UploadError):
    """An upload could not be read just now; nothing is wrong with it."""

    def __init__(self, text: str) -> None:
        super().__init__(503, text)


@dataclass(frozen=True, slots=True)
class Upload:
    """Files of a checkpoint that are on their way.

    Attributes:
        id: of the upload.
        owner: whose it is.
        name: that the checkpoint will have.
        files: name of each → its bytes.
        began: seconds since 1970.
    """

    id: str
    owner: str
    name: str
    files: Mapping[str, int]
    began: float

    @property
    def bytes(self) -> int:
        """Of all files."""
        return sum(self.files.values())


@dataclass(frozen=True, slots=True)
class Uploaded:
    """A checkpoint that was uploaded as a whole.

    Attributes:
        owner: whose it is.
        name: of the checkpoint, for its owner.
        family: as its reader found it.
        task: of its network.
        bytes: of its files.
        folder: where it is.
        upload: id of the upload that it came by; None where that was not kept.
    """

    owner: str
    name: str
    family: str
    task: str
    bytes: int
    folder: Path
    upload: str | None

    @property
    def address(self) -> str:
        """How others than its owner name it."""
        return f"{self.owner}/{self.name}"


class Uploads:
    """The checkpoints that were uploaded to a service, and those on their way.

    Args:
        settings: of the service.
    """

    what: ClassVar[str] = "checkpoint"
    idle_s: ClassVar[float] = IDLE_S
    longest_s: ClassVar[float] = LONGEST_S

    def __init__(self, settings: Settings) -> None:
        self._root = settings.uploads
        self._trash = settings.trash
        self._file_bytes = settings.upload_file_bytes
        self._owner_bytes = settings.upload_owner_bytes

    # -- what is there ----------------------------------------------------------------------------

    def seen_by(self, viewer: Token) -> list[Uploaded]:
        """The checkpoints that somebody may see: his own ones, or all; by owner and name."""
        found = []
        for owner in sorted(self._root.iterdir()) if self._root.is_dir() else ():
            if viewer.may_see(owner.name) and owner.is_dir():
                found += self._of(owner.name)
        return found

    def find(self, viewer: Token, name: str) -> Uploaded | None:
        """The viewer's own checkpoint of that name, or ``OWNER/NAME`` that he may see."""
        given, _, last = name.rpartition("/")
        owner = given or viewer.name
        if not viewer.may_see(owner):
            return None
        return next((one for one in self._of(owner) if one.name == last), None)

    def _of(self, owner: str) -> list[Uploaded]:
        found = []
        for folder in self._folders(owner):
            facts = read_facts(folder / FACTS_FILE)
            with suppress(KeyError, TypeError, ValueError):  # what we wrote has them all
                found.append(
                    Uploaded(
                        owner,
                        folder.name,
                        str(facts["family"]),
                        str(facts["task"]),
                        int(facts["bytes"]),
                        folder,
                        facts.get("upload"),
                    )
                )
        return found

    def _folders(self, owner: str) -> list[Path]:
        """The whole checkpoints of an owner; none for what is no name of one."""
        place = self._root / owner
        if not is_owner(owner) or not place.is_dir():
            return []
        return sorted(one for one in place.iterdir() if NAME.fullmatch(one.name) and one.is_dir())

    # -- from the announcement to the checkpoint --------------------------------------------------

    def begin(
        self, owner: str, name: str, files: Mapping[str, int], instead: Collection[str] = ()
    ) -> Upload:
        """Announce an upload.

        Args:
            owner: who uploads.
            name: for the checkpoint.
            files: name of each, relative to the folder → its bytes.
            instead: ids of the owner's uploads that it replaces, which do not count beside it.

        Raises:
            UploadError: for a name that is taken or is none, for what is no file of a checkpoint,
                and without room for it.
        """
        if NAME.fullmatch(name) is None:
            raise UploadError(
                422,
                f"a {self.what}'s name is up to 100 letters, digits and . _ -, beginning with a "
                f"letter or digit; given {name[:100]!r}",
                "name",
            )
        self._check_files(files)
        upload = Upload(secrets.token_hex(10), owner, name, dict(files), time.time())
        with self._alone(owner):
            drop_unfinished(self._root, owner, self.idle_s, self.longest_s)
            self._check_free(owner, name, instead)
            self._check_room(upload, upload.bytes, instead)
            folder = self._coming(upload)
            folder.mkdir(mode=0o700)
            write_json(folder / FACTS_FILE, asdict(upload))
        return upload

    def _check_files(self, files: Mapping[str, int]) -> None:
        if len(files) > MOST_FILES:
            raise UploadError(
                422, f"{len(files)} files are too many for a checkpoint; {MOST_FILES} are the most"
            )
        for name, size in files.items():
            if not is_checkpoint_file(name):
                raise UploadError(
                    422,
                    f"{name[:100]!r} is no file of a checkpoint: give config.json, weights as "
                    f"safetensors (with {INDEX_FILE} where they are in shards) and the tokenizer's "
                    "files, and nothing else; pickles and programs are never taken",
                    "files",
                )
            most = self._file_bytes if is_weights_file(name) else LARGEST_SMALL
            if not 0 <= size <= most:
                raise UploadError(
                    413, f"{name} has {size:,} bytes; such a file may have {most:,}", "files"
                )
        if "config.json" not in files or not any(map(is_weights_file, files)):
            raise UploadError(
                422,
                "a checkpoint has a config.json and weights as safetensors; given are "
                + (", ".join(sorted(files)[:10]) or "no files"),
                "files",
            )

    def _check_free(self, owner: str, name: str, instead: Collection[str]) -> None:
        kept = self._folders(owner)
        if any(one.name == name for one in kept):
            raise self._taken(name)
        if len(kept) >= MOST_KEPT:
            raise UploadError(
                507, f"{owner} has {len(kept)} {self.what}s, which are the most: delete one"
            )
        if sum(one.id not in instead for one in self._open(owner)) >= MOST_OPEN:
            raise UploadError(
                429,
                f"{MOST_OPEN} uploads of {owner} are not finished, which are the most: finish or "
                f"delete one, or wait {_span(self.idle_s)}",
            )

    def _open(self, owner: str) -> Iterator[Upload]:
        """Those that are on their way, of which an owner has `MOST_OPEN` at most."""
        return self._unfinished(owner)

    def _taken(self, name: str) -> UploadError:
        return UploadError(
            409,
            f"there is a {self.what} named {name} already: delete it, or choose another name",
            "name",
        )

    def _check_room(
        self, upload: Upload, size: int, instead: Collection[str] = (), there: int = 0
    ) -> None:
        """See that there is room for `size` bytes of an upload, which replaces others.

        Args:
            upload: whose they are.
            size: all of them.
            instead: ids of the uploads that it replaces.
            there: of the bytes, those that are on the disk already.

        Raises:
            UploadError: when its owner has no more, or the disk.
        """
        kept = sum(one.bytes for one in self._of(upload.owner))
        unfinished = self._unfinished(upload.owner)
        coming = sum(one.bytes for one in unfinished if one.id not in (upload.id, *instead))
        if kept + coming + size > self._owner_bytes:
            raise UploadError(
                507,
                f"the {self.what} has {size:,} bytes; those of {upload.owner} take "
                f"{kept:,}, uploads that are not finished {coming:,}, and {self._owner_bytes:,} "
                "are the most: delete one, or ask an administrator for a larger quota",
            )
        if shutil.disk_usage(self._root).free < size - there + LEFT_FREE:
            raise UploadError(507, f"the server's disk has no room for this {self.what}")

    def receive(self, owner: str, identity: str, name: str) -> Part:
        """Begin to write one of the announced files.

        Raises:
            UploadError: when there is no such upload, or no such file in it.
        """
        upload = self.get(owner, identity)
        if name not in upload.files:
            raise UploadError(404, f"{name[:100]!r} is not among the files of this upload")
        try:
            return Part(self._coming(upload), name, upload.files[name])
        except FileNotFoundError:
            raise self.gone(identity) from None

    def get(self, owner: str, identity: str) -> Upload:
        """An owner's upload that is not finished.

        Raises:
            UploadError: when there is none.
        """
        coming = self._unfinished(owner, (COMING,))
        found = next((one for one in coming if one.id == identity), None)
        if found is None or time.time() - found.began > self.longest_s:
            raise self.gone(identity)
        return found

    @classmethod
    def gone(cls, identity: str) -> UploadError:
        """What is told of an upload that is not there, or no longer."""
        ends = f"{_span(cls.idle_s)} in which nothing came"
        if math.isfinite(cls.longest_s):
            ends += f", or {_span(cls.longest_s)} in all"
        return UploadError(
            404,
            f"there is no upload {identity[:40]}: it was finished, or given up after {ends}; begin "
            "anew",
        )

    def finish(
        self, owner: str, identity: str, read: Callable[[Path, int], tuple[str, str]]
    ) -> Uploaded:
        """Give a checkpoint its name if all of it is there and it can be read.

        Who has lost the answer may ask again: what the upload became is found once more.

        Args:
            owner: who uploads.
            identity: of the upload; it ends here, whatever comes of it, unless files are missing
                or it cannot be read just now.
            read: folder and bytes → family and task; raises what is wrong with the checkpoint, or
                `UnreadError`.

        Raises:
            UnreadError: as `read` does; the same may be asked again.
            UploadError: when files are missing, the name was taken meanwhile, or there is no such
                upload.
        """
        with self._alone(owner, FINISHING, FINISH_S):
            made = next((one for one in self._of(owner) if one.upload == identity), None)
            return made or self._finished(self.get(owner, identity), read)

    def _finished(self, upload: Upload, read: Callable[[Path, int], tuple[str, str]]) -> Uploaded:
        owner, identity, coming = upload.owner, upload.id, self._coming(upload)
        lost = [name for name in upload.files if not (coming / name).is_file()]
        if lost:
            raise UploadError(
                409, f"{len(lost)} of {len(upload.files)} files have not come yet: {lost[0]}"
            )
        aside = coming.with_name(f"{ASIDE}{identity}")
        try:
            coming.rename(aside)  # nobody finds it under its old name, to change what was read
        except FileNotFoundError:
            raise self.gone(identity) from None
        try:
            for part in aside.glob(f"{PART}*"):
                part.unlink()
            family, task = read(aside, upload.bytes)
            facts = {"family": family, "task": task, "bytes": upload.bytes, "upload": identity}
            folder = coming.with_name(upload.name)
            with self._alone(owner):
                if folder.exists():
                    raise self._taken(upload.name)
                write_json(aside / FACTS_FILE, {**facts, "finished": time.time()})
                aside.rename(folder)
        except UnreadError:
            aside.rename(coming)
            raise
        finally:
            shutil.rmtree(aside, ignore_errors=True)
        return Uploaded(owner, upload.name, family, task, upload.bytes, folder, identity)

    def drop(self, owner: str, identity: str) -> None:
        """Give an upload up.

        Raises:
            UploadError: when there is none.
        """
        self._discard(self._coming(self.get(owner, identity)))

    def delete(self, one: Uploaded) -> None:
        """Delete a checkpoint."""
        self._discard(one.folder)

    def _discard(self, folder: Path) -> None:
        """Take a folder away in one step; its files are deleted where nobody looks for them."""
        self._trash.mkdir(mode=0o700, parents=True, exist_ok=True)
        target = self._trash / f"upload-{secrets.token_hex(8)}"
        with suppress(FileNotFoundError):  # somebody else was faster
            folder.rename(target)
            shutil.rmtree(target, ignore_errors=True)

    def _coming(self, upload: Upload) -> Path:
        return self._root / upload.owner / f"{COMING}{upload.id}"

    def _unfinished(
        self, owner: str, prefixes: tuple[str, ...] = (COMING, ASIDE)
    ) -> Iterator[Upload]:
        """Those that are announced, and those that are being read."""
        for folder in _unfinished_folders(self._root, owner, prefixes):
            facts = read_facts(folder / FACTS_FILE)
            identity = folder.name.rpartition("-")[2]
            with suppress(KeyError, TypeError, ValueError):
                files = {str(name): int(size) for name, size in facts["files"].items()}
                name, began = str(facts["name"]), float(facts["began"])
                yield Upload(identity, owner, name, files, began)

    @contextmanager
    def _alone(self, owner: str, file: str = LOCK, wait_s: float = LOCK_S) -> Iterator[None]:
        """Keep others from doing the same with uploads of that owner: announcing or finishing."""
        place = self._root / owner
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = FileLock(place / file, timeout=wait_s)
        try:
            lock.acquire()
        except Timeout:
            raise UploadError(503, "other uploads are just being worked on; try again") from None
        try:
            yield
        finally:
            lock.release()


class Part:
    """A file of an upload while it comes; it has its name when it is whole.

    Args:
        folder: of the upload.
        name: of the file.
        size: its bytes, as announced.

    Attributes:
        written: bytes so far.

    Raises:
        FileNotFoundError: when the upload was given up meanwhile.
    """

    def __init__(self, folder: Path, name: str, size: int) -> None:
        self._folder, self._name, self._size = folder, name, size
        self._path = folder / f"{PART}{secrets.token_hex(8)}"
        self._file = self._path.open("xb")
        self._digest = hashlib.sha256()
        self.written = 0

    def close(self) -> None:
        """Leave nothing behind unless it was kept."""
        with suppress(OSError):  # what a full disk did not take of the last bytes
            self._file.close()
        self._path.unlink(missing_ok=True)

    def write(self, data: bytes) -> None:
        """Add bytes.

        Raises:
            UploadError: when there are more than announced, or no room for them.
        """
        self.written += len(data)
        if self.written > self._size:
            raise UploadError(
                413, f"more than the {self._size:,} bytes came that were announced of {self._name}"
            )
        try:
            self._file.write(data)
        except OSError as error:
            raise disk_full(error) from error
        self._digest.update(data)

    def keep(self) -> str:
        """Give the file its name.

        Returns:
            Its sha256.

        Raises:
            UploadError: when it is not whole, or the upload was given up or finished meanwhile.
        """
        if self.written != self._size:
            raise UploadError(
                422, f"{self.written:,} bytes came of {self._name}, announced are {self._size:,}"
            )
        try:
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise disk_full(error) from error
        self._file.close()
        target = self._folder / self._name
        try:
            if target.parent != self._folder:
                target.parent.mkdir(mode=0o700, exist_ok=True)
            self._path.replace(target)
        except FileNotFoundError:
            raise Uploads.gone(self._folder.name.removeprefix(COMING)) from None
        return self._digest.hexdigest()


def drop_unfinished(
    root: Path, owner: str | None = None, idle_s: float = IDLE_S, longest_s: float = LONGEST_S
) -> None:
    """Delete uploads that nobody goes on with, unless they are just being checked.

    Args:
        root: of all uploads.
        owner: whose; None for all.
        idle_s: seconds after which nobody goes on with one.
        longest_s: seconds after which one ends that somebody goes on with.
    """
    now = time.time()
    for folder in _unfinished_folders(root, owner):
        began = read_facts(folder / FACTS_FILE).get("began")
        late = isinstance(began, int | float) and now - began > longest_s
        if late or now - _last_change(folder) > idle_s:
            with suppress(OSError), FileLock(folder / LOCK_FILE, timeout=0):  # Timeout is one
                shutil.rmtree(folder, ignore_errors=True)


def _unfinished_folders(
    root: Path, owner: str | None, prefixes: tuple[str, ...] = (COMING, ASIDE)
) -> Iterator[Path]:
    whose = "*" if owner is None else glob.escape(owner)
    for prefix in prefixes:
        yield from root.glob(f"{whose}/{prefix}*")


def _last_change(folder: Path) -> float:
    found = 0.0
    for place, _, files in os.walk(folder):  # which passes over what goes meanwhile
        for path in (Path(place), *(Path(place, name) for name in files)):
            with suppress(FileNotFoundError):
                found = max(found, path.stat().st_mtime)
    return found


def read_facts(file: Path) -> dict[str, Any]:
    """A file of ours; empty where a killed process did not come to write it."""
    try:
        found = parse_json(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _span(seconds: float) -> str:
    """In words, of a quarter of an hour and more."""
    return f"{seconds / 60:.0f} minutes" if seconds < 3600 else f"{seconds / 3600:.0f} hours"


def disk_full(error: OSError) -> UploadError:
    """What is told when bytes cannot be written."""
    return UploadError(507, f"the server cannot write the file: {error.strerror}")
