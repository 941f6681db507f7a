"""A run is a folder of files that anyone can read.

Every file has one stage that writes it. A stage that ended leaves ``stages/<name>.json`` with the
digest of what it read and the checksum of everything it wrote; a stage whose record fits is
skipped, which is all there is to resuming. Journals (``*.jsonl``) grow line by line, see
`search_spaces.files`.
"""

from __future__ import annotations

import hashlib
import json
import shlex
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from nas.request.protected_choices import ProtectedChoices, checked_protected
from nas.request.spec import SearchSpec, build_spec
from nas.run.events import Event, event_from_json, event_to_json
from nas.run.layout import (
    DEVICE_PROFILE_FILE,
    EVENTS_FILE,
    LOCK_FILE,
    PROTECTED_FILE,
    SPEC_FILE,
    begun_file,
    record_file,
)
from search_spaces.errors import DamagedRunError, RunConflictError, UsageError
from search_spaces.files import append_lines, read_lines, write_atomically
from search_spaces.json_text import UNREADABLE, finite_number, parse_json
from search_spaces.wording import RESUME, mark

# So long whoever takes a run, or an upload, waits for one who may only be looking at it.
LOOKING_S = 0.5


@dataclass(frozen=True, slots=True)
class StageRecord:
    """A finished stage: what it read (digest), what it wrote (path → sha256), how long it took."""

    stage: str
    digest: str
    outputs: Mapping[str, str]
    seconds: float


class RunFolder:
    """One run's folder; use `create` or `open`."""

    def __init__(self, path: Path, spec: SearchSpec) -> None:
        self.path = path
        self.spec = spec

    @classmethod
    def create(
        cls, path: Path, spec: SearchSpec, attached: Mapping[str, str] | None = None
    ) -> RunFolder:
        """Make the folder, or take it up again when it holds the same spec.

        Args:
            path: the folder.
            spec: the request.
            attached: file → text that the request needs besides; there before the spec is.

        Raises:
            RunConflictError: when it holds another run, or files that are no run.
        """
        if (path / SPEC_FILE).exists():
            folder = cls.open(path)
            if folder.spec.digest != spec.digest:
                raise RunConflictError(
                    f"{path} holds a run of another request ({_difference(folder.spec, spec)}); "
                    f"choose another folder with {mark('out')}, or go on with it: {resuming(path)}"
                )
            return folder
        if path.exists() and (not path.is_dir() or any(map(_is_foreign, path.iterdir()))):
            raise RunConflictError(
                f"{path} exists and is no run folder; choose another one with {mark('out')}"
            )
        path.mkdir(parents=True, exist_ok=True)
        for name, text in (attached or {}).items():
            write_atomically(path / name, text)
        values = spec.model_dump(mode="json")
        content = {**values, "sha256": _digest_of(values)}
        write_atomically(path / SPEC_FILE, json.dumps(content, indent=2))
        return cls(path, spec)

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """Open an existing run.

        Raises:
            UsageError: when there is none.
            DamagedRunError: when its spec cannot be read.
        """
        file = path / SPEC_FILE
        if not file.is_file():
            raise UsageError(f"{path} is no run folder: it has no {SPEC_FILE}; see nas runs")
        try:
            values = parse_json(file.read_text(encoding="utf-8"))
            if values.pop("sha256", None) != _digest_of(values):
                raise ValueError("its content does not fit its sha256")
            return cls(path, build_spec(**values))
        except (ValueError, TypeError, AttributeError, OSError, UsageError) as error:
            raise DamagedRunError(
                f"{file} is damaged ({error}); start the search anew in another folder"
            ) from error

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the run for this process.

        Raises:
            RunConflictError: when another process works on it.
        """
        with locked(self.path):
            yield

    # -- protected -------------------------------------------------------------------------------

    @property
    def protected(self) -> ProtectedChoices:
        """The choices in force: those of `protect` if it was ever called, else of the request.

        Raises:
            DamagedRunError: when their file cannot be read.
        """
        if not self.has(PROTECTED_FILE):
            return self.spec.keep
        try:
            return checked_protected(self.spec.space, self.read_json(PROTECTED_FILE)["keep"])
        except (LookupError, TypeError, AttributeError, UsageError, DamagedRunError) as error:
            raise DamagedRunError(
                f"{self.path / PROTECTED_FILE} is damaged ({error}); nas resume "
                f"{shlex.quote(str(self.path))} --keep writes it anew, --keep none without any"
            ) from error

    def protect(self, protected: ProtectedChoices) -> None:
        """Put these protected in force in place of all others; pruning reads them as an input.

        Raises:
            RunConflictError: when another process works on the run.
        """
        with self.locked():
            if dict(protected) == self.spec.keep:
                (self.path / PROTECTED_FILE).unlink(missing_ok=True)
            else:
                kept = {name: list(choices) for name, choices in protected.items()}
                self.write_json(PROTECTED_FILE, {"keep": kept})

    # -- stages -------------------------------------------------------------------------------

    def record(self, stage: str) -> StageRecord | None:
        """The record of a finished stage, or None.

        Raises:
            DamagedRunError: when the record itself cannot be read.
        """
        file = self.path / record_file(stage)
        if not file.exists():
            return None
        try:
            record = StageRecord(**parse_json(file.read_text(encoding="utf-8")))
            if record.stage != stage or not isinstance(record.outputs, dict):
                raise ValueError("it is not the record of that stage")
            if finite_number(record.seconds) < 0:
                raise ValueError("it took less than no time")
            return record
        except (ValueError, TypeError, OSError) as error:
            raise DamagedRunError(
                f"{file} is damaged ({error}); {resuming(self.path)} makes it anew"
            ) from error

    def finish(self, stage: str, digest: str, outputs: Iterable[str], seconds: float) -> None:
        """Record that a stage ended and what it wrote."""
        self.check()
        sums = {name: checksum(self.path / name) for name in outputs}
        values = {"stage": stage, "digest": digest, "outputs": sums, "seconds": round(seconds, 3)}
        write_atomically(self.path / record_file(stage), json.dumps(values, indent=2))

    def refresh(self, record: StageRecord, name: str) -> None:
        """Record one file of a finished stage as it is now; of the others nothing is said."""
        self.check()
        sums = {**record.outputs, name: checksum(self.path / name)}
        values = {**asdict(record), "outputs": sums}
        write_atomically(self.path / record_file(record.stage), json.dumps(values, indent=2))

    def forget(self, stage: str, outputs: Iterable[str]) -> None:
        """Make a stage start anew: its files and folders go, and last of all its record.

        In this order, so that a kill in between does not leave files without the record that
        tells what is wrong with them.
        """
        self.check()
        for name in outputs:
            path = self.path / name
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        (self.path / record_file(stage)).unlink(missing_ok=True)

    def begin(self, stage: str, digest: str) -> None:
        """Note what a stage reads before it writes anything."""
        self.check()
        write_atomically(self.path / begun_file(stage), digest)

    def begun_otherwise(self, stage: str, *digests: str) -> bool:
        """Whether a stage was begun with other inputs, to which the files it left belong."""
        file = self.path / begun_file(stage)
        return file.exists() and file.read_bytes() not in [one.encode() for one in digests]

    def damage(self, record: StageRecord) -> str | None:
        """The first file of a finished stage that is missing or changed, in words; else None."""
        for name, expected in record.outputs.items():
            file = self.path / name
            if not file.is_file():
                return f"{file} is missing"
            if checksum(file) != expected:
                return f"{file} is damaged: its checksum is not the recorded one"
        return None

    def finished(self, stages: str = "*") -> list[str]:
        """Names of the stages that have a record, sorted.

        Args:
            stages: a pattern, for example ``retrain-*``.
        """
        return sorted(file.stem for file in self.path.glob(record_file(stages)))

    # -- files --------------------------------------------------------------------------------

    def has(self, name: str) -> bool:
        """Whether a file is there."""
        return (self.path / name).exists()

    def found(self, pattern: str) -> list[str]:
        """Names of the files that fit a pattern, sorted."""
        return [f.relative_to(self.path).as_posix() for f in sorted(self.path.glob(pattern))]

    def check(self) -> None:
        """See that this process may write here; any may, unless something fences the folder."""

    def write_json(self, name: str, value: Any) -> None:
        """Write a JSON file atomically."""
        self.check()
        write_atomically(self.path / name, json.dumps(value, indent=2, allow_nan=False) + "\n")

    def read_json(self, name: str) -> Any:
        """Read a JSON file.

        Raises:
            DamagedRunError: when it is missing or not JSON.
        """
        try:
            return parse_json((self.path / name).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise DamagedRunError(
                f"{self.path / name} cannot be read ({error}); {resuming(self.path)} makes it anew"
            ) from error

    def append(self, name: str, values: Iterable[Mapping[str, Any]]) -> None:
        """Append lines to a journal and see them to the disk."""
        self.check()
        lines = (json.dumps(value, allow_nan=False) for value in values)
        append_lines(self.path / name, lines)

    def write_journal(self, name: str, values: Iterable[Mapping[str, Any]]) -> None:
        """Replace a journal, in full or not at all."""
        self.check()
        lines = (json.dumps(value, allow_nan=False) + "\n" for value in values)
        write_atomically(self.path / name, "".join(lines))

    def read_journal(self, name: str) -> list[Any]:
        """All whole lines of a journal.

        Raises:
            DamagedRunError: for one that cannot be read, naming it.
        """
        file = self.path / name
        try:
            lines = read_lines(file)
        except OSError as error:
            raise DamagedRunError(f"{file} cannot be read ({error.strerror})") from error
        rows = []
        for number, line in enumerate(lines, start=1):
            try:
                rows.append(parse_json(line.decode()))
            except ValueError as error:
                raise DamagedRunError(
                    f"{file}, line {number} is not JSON; {resuming(self.path)} makes it anew"
                ) from error
        return rows

    def log(self, event: Event) -> None:
        """Keep an event, with the time, in ``events.jsonl``."""
        self.check()
        line = json.dumps({"time": round(time.time(), 3), **event_to_json(event)})
        append_lines(self.path / EVENTS_FILE, [line], sync=False)

    def events(self, stage: str = "") -> Iterator[tuple[float, Event]]:
        """The events that were kept, each behind its time in seconds since 1970.

        Lines that cannot be read are passed over, and so is what other versions told.

        Args:
            stage: whose they are; empty for all.
        """
        for line in read_lines(self.path / EVENTS_FILE):
            if stage.encode() not in line:  # there may be tens of thousands of others
                continue
            try:
                data = parse_json(line.decode())
                told_at, event = finite_number(data["time"]), event_from_json(data)
            except UNREADABLE:
                continue  # it was cut off, by a crash of a version that went on behind it
            if event is not None and stage in ("", event.stage):
                yield told_at, event


@contextmanager
def locked(path: Path, wait_s: float = LOOKING_S) -> Iterator[None]:
    """Hold a run's folder for this process, whatever is in it.

    Args:
        path: of the run.
        wait_s: seconds to wait for another process, which may only be looking whether it is held.

    Raises:
        RunConflictError: when another process works on it.
    """
    lock = FileLock(path / LOCK_FILE)
    try:
        lock.acquire(timeout=wait_s)
    except Timeout as error:
        raise RunConflictError(
            f"another process is working on {path}; wait for it, or follow it with nas show "
            f"{shlex.quote(str(path))}"
        ) from error
    try:
        yield
    finally:
        lock.release()


def checksum(file: Path) -> str:
    """sha256 of a file."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _digest_of(values: Any) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def resume_command(path: Path) -> str:
    """What to type to go on with the run of a folder."""
    return f"nas resume {shlex.quote(str(path))}"


def resuming(path: Path) -> str:
    """What goes on with the run of a folder, as a message names it."""
    return mark(RESUME, resume_command(path))


def supernet_gone(path: Path) -> str:
    """That a run's supernet was trained and is there no more, and what to do about it."""
    return (
        f"the trained supernet of {path} is gone, which a service deletes to make room: networks "
        f"that were trained are used as ever, for others {resuming(path)} trains it again"
    )


def _is_foreign(file: Path) -> bool:
    """Whether a file is not what a process killed while it made the folder leaves behind."""
    ours = file.name.startswith(tuple(f".{name}." for name in (SPEC_FILE, DEVICE_PROFILE_FILE)))
    return file.name not in (DEVICE_PROFILE_FILE, LOCK_FILE) and not (
        ours and file.name.endswith(".tmp")
    )


def _difference(old: SearchSpec, new: SearchSpec) -> str:
    """The first field two specs differ in, with both values where they are short."""
    before, after = old.model_dump(mode="json"), new.model_dump(mode="json")
    for name, value in before.items():
        if value != after[name]:
            if len(str(value)) + len(str(after[name])) < 80:
                return f"{name} is {value!r} there and {after[name]!r} here"
            return f"{name} differs"
    return "a field differs"
