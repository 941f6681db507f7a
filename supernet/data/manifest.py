"""The manifest of a folder of prepared data: what is in it, made from what, and how.

`manifest.json` is the last file to be written, so a folder without one was never finished.
"""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal, get_args

from pydantic import BaseModel, ConfigDict, ValidationError

from search_spaces.errors import DataError
from search_spaces.files import write_atomically
from search_spaces.tasks import TaskName

FORMAT = 1
FILE_NAME = "manifest.json"
TEST_PREFIX = "test."
# Raised whenever equal requests would give other files than before.
RECIPE = 3

# Before the role in the settings of a manifest that name a column.
COLUMN = "column_"
# What columns of a table hold.
ColumnRole = Literal["text", "label", "image", "source", "target", "query", "passage"]
ROLES: tuple[ColumnRole, ...] = get_args(ColumnRole)


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class FileRecord(_Frozen):
    """Size in bytes and sha256 of a file."""

    size: int
    sha256: str


class InputFile(_Frozen):
    """A file that was read: its role, such as ``train.source``, its name, and what it held."""

    role: str
    name: str
    sha256: str


class TokenizerRecord(_Frozen):
    """How text became token numbers.

    Attributes:
        kind: ``bpe`` and ``unigram`` are sentencepiece models; ``bytes`` is one token a byte;
            ``tokenizer_json`` is the tokenizer of a checkpoint, in ``tokenizer.json``, with what
            its marks are called in ``tokenizer_config.json``.
        joint: one vocabulary for source and target.
        vocab_size: of the source, or the only one; padding and the other marks included.
        target_vocab_size: of the target; None where there is one vocabulary.
    """

    kind: Literal["bpe", "unigram", "bytes", "tokenizer_json"]
    joint: bool = True
    vocab_size: int
    target_vocab_size: int | None = None


class SplitRecord(_Frozen):
    """What a split holds.

    Attributes:
        examples: pairs, lines or labelled examples.
        counts: further totals, such as ``source_tokens`` and ``words``.
        longest: tokens of the longest row of each side, end mark included.
        median: tokens of a row of each side that is longer than half of them.
        classes: label → examples that have it; classification only.
        dropped: examples that were left out, by reason.
        truncated: examples that were cut to the maximum length.
        overlap: examples that a split before this one has too: ``train`` or ``valid`` → how many;
            of pairs also ``train.source`` and so on, the lines of one side. Blank lines do not
            count.
    """

    examples: int
    counts: dict[str, int] = {}
    longest: dict[str, int] = {}
    median: dict[str, int] = {}
    classes: dict[str, int] = {}
    dropped: dict[str, int] = {}
    truncated: int = 0
    overlap: dict[str, int] = {}


class Manifest(_Frozen):
    """What a folder of prepared data holds.

    Attributes:
        format: version of the folder's layout.
        task: what the data are for.
        content: ``pairs`` of lines, a ``stream`` of lines, ``images`` or ``texts`` with labels, or
            texts with ``embeddings``.
        settings: the options that decided the content.
        request: digest of the settings and of all that was read: equal requests, equal folders.
        inputs: the files that were read.
        tokenizer: None for images.
        token_dtype: of the token files: ``uint16`` or ``int32``; None for images.
        image_shape: height, width and channels; None for text.
        label_names: classification only.
        width: of the embeddings; None for other data.
        splits: by name: ``train``, ``valid``, ``test``.
        files: every other file of the folder.
    """

    format: Literal[1] = 1
    task: TaskName
    content: Literal["pairs", "stream", "images", "texts", "embeddings"]
    settings: dict[str, str | int | float | bool | None]
    request: str
    inputs: list[InputFile]
    tokenizer: TokenizerRecord | None = None
    token_dtype: Literal["uint16", "int32"] | None = None
    image_shape: tuple[int, int, int] | None = None
    label_names: list[str] = []
    width: int | None = None
    splits: dict[str, SplitRecord]
    files: dict[str, FileRecord]

    @property
    def columns(self) -> dict[str, str]:
        """Role → column that was read, where that was told when the data were prepared."""
        named = {name: str(value) for name, value in self.settings.items()}
        return {n.removeprefix(COLUMN): name for n, name in named.items() if n.startswith(COLUMN)}

    @property
    def search_digest(self) -> str:
        """sha256 over what a search may read: all files but those of the test split."""
        seen = {name: file.sha256 for name, file in self.files.items() if not is_test(name)}
        return _sha256_of(json.dumps(seen, sort_keys=True))


def is_test(name: str) -> bool:
    """Whether a file of the folder belongs to the test split."""
    return name.startswith(TEST_PREFIX)


def tokenizer_file(side: str | None) -> str:
    """Name of the model file of a side; None for the one vocabulary of all sides."""
    return f"tokenizer.{side}.model" if side else "tokenizer.model"


def request_digest(
    task: str,
    settings: Mapping[str, str | int | float | bool | None],
    inputs: Iterable[InputFile],
) -> str:
    """What two preparations share exactly if they give the same folder."""
    read = [(file.role, file.sha256) for file in inputs]
    return _sha256_of(json.dumps([RECIPE, task, dict(settings), read], sort_keys=True))


def file_sha256(path: Path) -> str:
    """sha256 of a file's bytes, as hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def written_name(path: Path) -> str:
    """The name of a file or folder as a manifest has it: bytes that are not UTF-8 escaped."""
    return path.name.encode("utf-8", "backslashreplace").decode()


def record_files(folder: Path) -> dict[str, FileRecord]:
    """Records of all files of a folder, by name."""
    paths = sorted(path for path in folder.iterdir() if path.name != FILE_NAME)
    return {p.name: FileRecord(size=p.stat().st_size, sha256=file_sha256(p)) for p in paths}


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write `manifest.json`, in full or not at all."""
    write_atomically(folder / FILE_NAME, manifest.model_dump_json(indent=2) + "\n")


def read_manifest(folder: Path) -> Manifest:
    """Read and check `manifest.json`.

    Raises:
        DataError: when the folder or the file is missing, or the file is damaged or of another
            version.
    """
    path = folder / FILE_NAME
    command = f"nas data prepare --task TASK --source {shlex.quote(str(folder))} --out DIR"
    if folder.is_file():
        raise DataError(
            f"{folder} is a file, and data are read from a folder: {command} makes one of it"
        )
    if not folder.is_dir():
        raise DataError(f"there is no folder {folder} of prepared data; nas data prepare makes one")
    if not path.is_file():
        raise DataError(
            f"{folder} has no {FILE_NAME}, so it holds no data made by nas data prepare; {command} "
            "makes a folder of what is in it"
        )
    try:
        found = json.loads(path.read_text("utf-8"))
        version = found.get("format") if isinstance(found, dict) else None
        if version != FORMAT:
            raise DataError(
                f"{path} is of format {version}, and this version reads format {FORMAT}; "
                "prepare the data anew"
            )
        return Manifest.model_validate(found)
    except (OSError, UnicodeDecodeError, json.JSONDecodeError, ValidationError) as error:
        reason = str(error).splitlines()[0]
        raise DataError(f"{path} is damaged ({reason}); prepare the data anew") from error


def check_files(folder: Path, manifest: Manifest, names: Iterable[str]) -> None:
    """Compare files with their records.

    Raises:
        DataError: naming the first file that is missing or was changed.
    """
    for name in names:
        record, path = manifest.files.get(name), folder / name
        if record is None or not path.is_file():
            raise DataError(f"{path} is missing; prepare the data anew")
        if path.stat().st_size != record.size:
            raise DataError(
                f"{path} has {path.stat().st_size} bytes instead of {record.size}; "
                "prepare the data anew"
            )
        if file_sha256(path) != record.sha256:
            raise DataError(f"{path} was changed: its checksum differs; prepare the data anew")


def _sha256_of(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
