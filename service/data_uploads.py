"""Data sets that owners upload: one file, in parts, prepared as `nas data prepare` does.

A file is announced like those of a checkpoint (`service.uploads`) and counts against the owner's
quota. Its bytes come in order and are kept as they come, so that whoever lost the connection goes
on behind the last one. When all are there a process of its own (`service.data_preparing`) checks
and prepares them within limits, and the prepared folder takes the data set's name in one step.
What is wrong with the file is told for a day, unless somebody dismisses it, announces one in its
place, or has had `MOST_FAILED` others since that could not be used either.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any, ClassVar

from filelock import FileLock, Timeout

from nas.run.folder import LOOKING_S
from search_spaces.errors import DataError
from search_spaces.files import write_json
from service.auth import Token
from service.children import Child, LostError, NoHelperError
from service.settings import Settings
from service.uploads import (
    ASIDE,
    COMING,
    DATA_IDLE_S,
    DATA_LONGEST_S,
    FACTS_FILE,
    LOCK_FILE,
    Upload,
    Uploaded,
    UploadError,
    Uploads,
    disk_full,
    read_facts,
)

MODULE = "service.data_preparing"
ENDINGS = (".npz", ".parquet", ".arrow", ".csv", ".tsv", ".jsonl", ".feather", ".txt", ".gz")
REQUEST_FILE, PROBLEM_FILE = "request.json", "problem.json"
PREPARED = "prepared"
LONGEST_NAME = 200  # bytes of a file's; file systems take 255
MOST_FAILED = 4  # of one owner, of which is told what is wrong with them
AT_ONCE = 2  # that are prepared; others wait
CHECKING = "data check"  # how the names of threads begin that prepare one
WALL_S = 2 * 3600.0
AGAIN = "upload the same file under that name again, with the options that it had"
TOO_MUCH = "preparing these data took more than the service gives it: use nas data prepare"


@dataclass(frozen=True, slots=True)
class DataUpload:
    """A data set on its way.

    Attributes:
        id: of the upload.
        name: that the data set will have.
        file: what the file is called.
        bytes: of the file.
        received: of them, that have come.
        state: ``coming``, ``checking``, ``failed`` or ``lost``, when the service ended meanwhile.
        note: what is being done, or what is wrong; with marks of `search_spaces.wording`.
        options: how it is prepared, as `service.data_preparing` takes it.
    """

    id: str
    name: str
    file: str
    bytes: int
    received: int
    state: str
    note: str
    options: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Findings:
    """What a data set does not hold of the file that was uploaded, and what was guessed of it.

    Attributes:
        left_out: what could not be used, each with file and line.
        ignored: what was not read, such as columns that nothing needs; the first of it.
        num_ignored: all of it.
        guessed: which columns were taken for source and target though no name says so.
    """

    left_out: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    num_ignored: int = 0
    guessed: str = ""

    def told(self, worded: Callable[[str], str]) -> Findings:
        """The same in the words of whoever reads it."""
        left_out = tuple(worded(line) for line in self.left_out)
        ignored = tuple(worded(line) for line in self.ignored)
        return Findings(left_out, ignored, self.num_ignored, self.guessed)


class DataUploads(Uploads):
    """The data sets that were uploaded to a service, and those on their way.

    Args:
        settings: of the service.
    """

    what: ClassVar[str] = "data set"
    idle_s: ClassVar[float] = DATA_IDLE_S
    longest_s: ClassVar[float] = DATA_LONGEST_S

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self._settings, self._root = settings, settings.uploaded_data
        self._file_bytes = settings.upload_data_bytes
        self._notes: dict[str, str] = {}
        self._places = threading.BoundedSemaphore(AT_ONCE)

    def announce(
        self, owner: str, name: str, file: str, size: int, request: Mapping[str, Any]
    ) -> Upload:
        """Announce a file of data, also in the place of one that could not be used.

        Args:
            owner: who uploads.
            name: for the data set.
            file: its name, which says what is in it.
            size: its bytes.
            request: what `service.data_preparing` is to make of it.

        Raises:
            UploadError: for a name that is taken or is none, a file of another kind, and without
                room for it.
        """
        failed = [one for one in self._unfinished(owner, (ASIDE,)) if self._failed(one)]
        same = [one.id for one in failed if one.name == name]
        upload = self.begin(owner, name, {file: size}, instead=same)
        write_json(self._coming(upload) / REQUEST_FILE, dict(request))
        self._forget(owner, same)
        return upload

    def _forget(self, owner: str, identities: Iterable[str]) -> None:
        """Forget uploads that could not be used."""
        for identity in identities:
            with suppress(UploadError):  # it was dismissed meanwhile, or is checked again
                self.dismiss(owner, identity)

    def _forget_oldest(self, owner: str) -> None:
        """Keep those of an owner that were the last not to be usable."""
        failed = []
        for one in self._unfinished(owner, (ASIDE,)):
            with suppress(FileNotFoundError):
                told_at = (self._aside(one) / PROBLEM_FILE).stat().st_mtime_ns
                failed.append((told_at, one.id))
        self._forget(owner, [identity for _, identity in sorted(failed)[:-MOST_FAILED]])

    def _open(self, owner: str) -> Iterator[Upload]:
        """See `Uploads._open`; one that could not be used is not on its way any more."""
        return (one for one in self._unfinished(owner) if not self._failed(one))

    def _failed(self, upload: Upload) -> bool:
        return (self._aside(upload) / PROBLEM_FILE).is_file()

    def _check_files(self, files: Mapping[str, int]) -> None:
        ((name, size),) = files.items()
        if PurePath(name).name != name or name.startswith("."):
            raise UploadError(422, "a file's name has no folders and begins with no dot", "file")
        if len(os.fsencode(name)) > LONGEST_NAME:
            raise UploadError(
                422,
                f"the file's name has more than {LONGEST_NAME} bytes: give it a shorter one",
                "file",
            )
        if not name.lower().endswith(ENDINGS):
            raise UploadError(
                422, f"{name[:100]} is no file of data: give one of {', '.join(ENDINGS)}", "file"
            )
        if not size:
            raise UploadError(422, f"{name[:100]} is empty: choose a file with examples", "bytes")
        if size > self._file_bytes:
            raise UploadError(
                413,
                f"{name[:100]} is too large: it has {size:,} bytes, and {self._file_bytes:,} are "
                "the most",
                "bytes",
            )

    # -- bytes ------------------------------------------------------------------------------------

    def part(self, owner: str, identity: str, offset: int, length: int = 0) -> Writing:
        """Go on with a file.

        Args:
            owner: who uploads.
            identity: of the upload.
            offset: of the first byte that comes: at most as many as have come.
            length: bytes that are going to come, where that is told.

        Raises:
            UploadError: when there is no such upload, more bytes come than announced, bytes
                between are missing, or others are just coming.
        """
        upload = self.get(owner, identity)
        ((name, size),) = upload.files.items()
        if offset + length > size:
            raise _too_many(name, size)
        try:
            return Writing(self._coming(upload) / name, size, offset)
        except FileNotFoundError:
            raise self.gone(identity) from None

    # -- what becomes of it -----------------------------------------------------------------------

    def on_their_way(self, owner: str) -> list[DataUpload]:
        """An owner's data sets that are coming, being checked, or could not be used."""
        found = []
        for upload in self._unfinished(owner, (COMING, ASIDE)):
            ((file, size),) = upload.files.items()
            coming, aside = self._coming(upload), self._aside(upload)
            folder = coming if coming.is_dir() else aside
            received = 0
            with suppress(FileNotFoundError):
                received = (folder / file).stat().st_size
            known = self._state(upload, folder, coming)
            if known is None:  # it became a data set a moment ago
                continue
            state, note = known
            options = read_facts(folder / REQUEST_FILE)
            found.append(
                DataUpload(upload.id, upload.name, file, size, received, state, note, options)
            )
        return sorted(found, key=lambda one: one.id)

    def _state(self, upload: Upload, folder: Path, coming: Path) -> tuple[str, str] | None:
        if folder == coming:
            return "coming", ""
        try:
            with (folder / LOCK_FILE).open("a+b") as lock:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)  # so that others may look as well
                if not (folder / next(iter(upload.files))).exists():
                    return None
                problem = read_facts(folder / PROBLEM_FILE).get("problem")
        except FileNotFoundError:
            return None
        except OSError:
            return "checking", self._notes.get(upload.id, "it is being checked")
        if problem is not None:
            return "failed", str(problem)
        return "lost", "the service ended while it was checked: finish it again"

    def _aside(self, upload: Upload) -> Path:
        return self._root / upload.owner / f"{ASIDE}{upload.id}"

    def start(self, owner: str, identity: str, request: Mapping[str, Any] | None = None) -> None:
        """Have a file that has come as a whole checked and prepared, which goes on meanwhile.

        Args:
            owner: who uploads.
            identity: of the upload.
            request: what is made of it instead of what was announced; also of a file that could
                not be used as that.

        Raises:
            UploadError: when it is not whole, or there is no such upload.
        """
        every = {one.id: one for one in self.on_their_way(owner)}
        found = every.get(identity)
        if found is None:
            raise self.gone(identity)
        if found.state == "coming":
            if found.received != found.bytes:
                raise UploadError(
                    409, f"{found.received:,} of {found.bytes:,} bytes have come: send the others"
                )
            upload = self.get(owner, identity)
            with suppress(FileNotFoundError):  # somebody else was faster
                self._coming(upload).rename(self._aside(upload))
        elif found.state != "lost" and not (found.state == "failed" and request is not None):
            raise UploadError(409, f"it is {found.state} already")
        upload = next(one for one in self._unfinished(owner, (ASIDE,)) if one.id == identity)
        folder = self._aside(upload)
        lock = FileLock(folder / LOCK_FILE, timeout=LOOKING_S, thread_local=False)
        try:
            lock.acquire()
        except Timeout:
            raise UploadError(409, "it is being checked already") from None
        except FileNotFoundError:  # its check has ended while this one waited
            raise self.gone(identity) from None
        if request is not None:
            write_json(folder / REQUEST_FILE, dict(request))
            (folder / PROBLEM_FILE).unlink(missing_ok=True)
        work, name = (upload, lock), f"{CHECKING} {identity}"
        threading.Thread(target=self._work, args=work, name=name, daemon=True).start()

    def _work(self, upload: Upload, lock: FileLock) -> None:
        folder, identity = self._aside(upload), upload.id
        try:
            with self._places:
                found = self._prepared(folder, upload)
                if found is None:
                    return
                with self._alone(upload.owner):
                    self._check_prepared(upload)
                    target = folder.with_name(upload.name)
                    if target.exists():
                        raise self._taken(upload.name)
                    write_json(folder / PREPARED / FACTS_FILE, found)
                    (folder / PREPARED).rename(target)
            self._discard(folder)  # in one step, so that it looks broken off to nobody
        except (UploadError, NoHelperError, OSError) as error:
            _tell(folder, str(error))
        finally:
            self._notes.pop(identity, None)
            lock.release()
            self._forget_oldest(upload.owner)

    def _prepared(self, folder: Path, upload: Upload) -> dict[str, Any] | None:
        """Prepare an uploaded file in a process of its own.

        Returns:
            What is to be known of the data set; None when it cannot be used, which is told then.

        Raises:
            NoHelperError: where there is nobody to begin that process, or its helper is lost.
        """
        ((file, size),) = upload.files.items()
        _clear(folder)
        order = {**read_facts(folder / REQUEST_FILE), "source": str(folder / file), "bytes": size}
        order["out"] = str(folder / PREPARED)
        process, last = Child(self._settings, MODULE), dict[str, Any]()
        deadline = time.monotonic() + WALL_S
        try:
            process.send(json.dumps(order).encode())
            while not last.keys() & {"found", "problem"}:
                last = json.loads(process.read(deadline - time.monotonic()))
                if "note" in last:
                    self._look(upload, str(last["note"]))
        except (LostError, ValueError):
            last = {}
        finally:
            process.end()
        if "found" in last:
            return dict(last["found"])
        _tell(folder, str(last.get("problem", TOO_MUCH)))
        return None

    def _look(self, upload: Upload, note: str) -> None:
        self._notes.update({upload.id: note})
        self._check_prepared(upload)

    def _check_prepared(self, upload: Upload) -> None:
        """See that there is room for what is made of a file, which may be much more than it."""
        folder, size = self._aside(upload), 0
        for place, _, names in os.walk(folder):  # also what has not got its own name yet
            for name in names if place != str(folder) else ():
                with suppress(FileNotFoundError):  # it has just got it
                    size += Path(place, name).stat().st_size
        self._check_room(upload, size, there=size)

    def dismiss(self, owner: str, identity: str) -> None:
        """Give an upload up, or forget one that could not be used.

        Raises:
            UploadError: when there is none, or while it is checked.
        """
        found = {one.id: one for one in self.on_their_way(owner)}.get(identity)
        if found is None:
            raise self.gone(identity)
        if found.state == "checking":
            raise UploadError(409, "it is just being checked: wait for its end")
        for prefix in (COMING, ASIDE):
            self._discard(self._root / owner / f"{prefix}{identity}")

    def findings(self, one: Uploaded) -> Findings:
        """What a data set does not hold of its file, with marks of `search_spaces.wording`."""
        facts = read_facts(one.folder / FACTS_FILE)
        left_out, ignored = (
            tuple(map(str, facts.get(name, ()))) for name in ("left_out", "ignored")
        )
        guessed = str(facts.get("guessed", ""))
        return Findings(left_out, ignored, int(facts.get("num_ignored", 0)), guessed)

    def names(self, viewer: Token) -> dict[str, Path]:
        """The data sets that somebody has uploaded, by name."""
        return {one.name: one.folder for one in self._of(viewer.name)}


def name_of(data: str | None, root: Path) -> str | None:
    """The name of the uploaded data set that a run was made with; None for other data.

    Args:
        data: where the run's data are, as its spec has it.
        root: of all uploaded data.
    """
    if data is None or Path(data).parent.parent not in (root, root.resolve()):
        return None
    return Path(data).name


def check_not_deleted(data: str | None, root: Path) -> None:
    """See that the data set of a run was not deleted since, where it is one that was uploaded.

    Args:
        data: where the run's data are, as its spec has it.
        root: of all uploaded data.

    Raises:
        DataError: when it was.
    """
    name = name_of(data, root)
    if name is not None and not Path(str(data)).exists():
        raise DataError(f"the data set {name} was deleted: {AGAIN}")


def other_data(name: str) -> DataError:
    """What is told when a run cannot read what goes by the name of its data set."""
    return DataError(
        f"the data set {name} is not the one that this run was made with, and its networks cannot "
        f"read it: delete it, and {AGAIN}"
    )


def _tell(folder: Path, problem: str) -> None:
    """Keep what is wrong with a file beside it, until it is dismissed or prepared otherwise."""
    with suppress(OSError):
        write_json(folder / PROBLEM_FILE, {"problem": problem})
    _clear(folder)


def _clear(folder: Path) -> None:
    """Delete what was made of a file, also what a killed process has left of it."""
    _, folders, _ = next(os.walk(folder), ("", [], []))
    for name in folders:
        shutil.rmtree(folder / name, ignore_errors=True)


def _too_many(name: str, size: int) -> UploadError:
    return UploadError(413, f"more than the {size:,} bytes came that were announced of {name}")


class Writing:
    """A file of data while its bytes come; those that have come are kept.

    From the first byte that is written on those behind it are forgotten, which may be another
    file's.

    Args:
        path: of the file.
        size: its bytes, as announced.
        offset: of the first byte that comes.

    Raises:
        FileNotFoundError: when the upload was given up meanwhile.
        UploadError: 409 when bytes between are missing, or others are just coming.
    """

    def __init__(self, path: Path, size: int, offset: int) -> None:
        self._size, self._name = size, path.name
        self._file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "r+b")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.close()
            raise UploadError(409, "other bytes of this file are just coming") from None
        there = os.fstat(self._file.fileno()).st_size
        if offset > there:
            self._file.close()
            raise UploadError(409, f"{there:,} bytes have come: go on there, not at {offset:,}")
        self._file.seek(offset)
        self.received = offset

    def write(self, data: bytes) -> None:
        """Add bytes.

        Raises:
            UploadError: when there are more than announced, or no room for them.
        """
        if self.received + len(data) > self._size:
            raise _too_many(self._name, self._size)
        if not data:
            return
        try:
            self._file.truncate()
            self._file.write(data)
            self._file.flush()
        except OSError as error:
            raise disk_full(error) from error
        self.received += len(data)

    def close(self) -> None:
        """Let others go on."""
        with suppress(OSError):  # what a full disk did not take of the last bytes
            self._file.close()
