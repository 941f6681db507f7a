"""Preparing labelled examples for classification: images, or texts as bytes or tokens."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from search_spaces.errors import DataError, UsageError
from supernet.data.checkpoint_tokenizer import KIND, CheckpointTokenizer
from supernet.data.images import Labels
from supernet.data.manifest import InputFile, SplitRecord, TokenizerRecord
from supernet.data.prepare.checkpoint_folder import (
    check_padding,
    input_file,
    read_folder,
    record,
)
from supernet.data.prepare.image_files import ImageSource, open_images
from supernet.data.prepare.plan import SPLITS, Content, Overlaps, Plan, PrepareRequest, Settings
from supernet.data.sources import VALID_MOST, VALID_SHARE, holdout
from supernet.data.text_files import (
    Report,
    TextFile,
    TokenDtype,
    read_lines,
    scan,
    token_dtype,
    writing_rows,
)
from supernet.data.tokenizer import BYTE_VOCAB_SIZE

LONGEST_BYTES = 4000  # of the text task of the Long Range Arena
LONGEST_TOKENS = 512  # that encoders of checkpoints usually read
TEXT_ENDINGS = (".jsonl", ".jsonl.gz")
ROWS_PER_CHUNK = 1024

# split → (which source, which examples of it)
Parts = dict[str, tuple[str, NDArray[np.intp]]]


@dataclass(frozen=True, slots=True)
class ImagePlan:
    """Images whose labels are known; `sources` by the split they were given for."""

    request: PrepareRequest
    sources: dict[str, ImageSource]
    names: dict[str, str]

    @property
    def settings(self) -> Settings:
        """The options that decide the content."""
        return {"image_size": self.request.image_size}

    @property
    def inputs(self) -> list[InputFile]:
        """Everything that is read."""
        return [
            InputFile(role=role, name=self.names[role], sha256=source.digest)
            for role, source in self.sources.items()
        ]

    @property
    def contents(self) -> dict[str, tuple[str, str]]:
        """See `Plan.contents`; a test part of the training file itself was not given."""
        return {
            role: (self.names[role], source.digest)
            for role, source in self.sources.items()
            if role == "train" or getattr(self.request, role)
        }

    def build(self, folder: Path, report: Report) -> Content:
        """Write pixels and labels of every split."""
        labels = {role: source.labels for role, source in self.sources.items()}
        names = self._label_names()
        shapes: list[tuple[int, ...]] = []
        records: dict[str, SplitRecord] = {}
        with Overlaps(folder) as overlaps:
            for split, (role, chosen) in split_examples(labels).items():
                shapes.append(self._write(split, role, chosen, folder, report, overlaps))
                if shapes[-1] != shapes[0]:
                    raise DataError(
                        f"the images of {split} have the shape {shapes[-1]}, those of train "
                        f"{shapes[0]}; give --image-size to make them equal"
                    )
                write_labels(folder, split, labels[role][chosen])
                shared = overlaps.of(split, records)
                records[split] = SplitRecord(examples=len(chosen), overlap=shared)
        height, width, channels = shapes[0]
        return Content(
            "images", records, image_shape=(height, width, channels), label_names=list(names)
        )

    def _label_names(self) -> tuple[str, ...]:
        names = self.sources["train"].label_names
        for role, source in self.sources.items():
            numbered = all(name.isdigit() for name in source.label_names)
            if source.label_names != names and not (
                numbered and len(source.label_names) <= len(names)
            ):
                raise DataError(
                    f"the classes of {role} are {', '.join(source.label_names[:5])} …, those of "
                    f"train {', '.join(names[:5])} …; they should be the same"
                )
        return names

    def _write(
        self,
        split: str,
        role: str,
        chosen: NDArray[np.intp],
        folder: Path,
        report: Report,
        overlaps: Overlaps,
    ) -> tuple[int, ...]:
        done, shape = 0, tuple[int, ...]()
        with (folder / f"{split}.images.bin").open("wb") as file:
            for pixels in self.sources[role].read(chosen, self.request.image_size):
                shape = shape or pixels.shape[1:]
                if pixels.shape[1:] != shape or shape[0] != shape[1]:
                    raise DataError(
                        f"the images of {self.names[role]} have {pixels.shape[2]} x "
                        f"{pixels.shape[1]} pixels; they should be square and of one size: give "
                        "--image-size to cut and scale them"
                    )
                file.write(np.ascontiguousarray(pixels).data)
                overlaps.add(split, (image.tobytes() for image in pixels))
                done += len(pixels)
                report(f"Writing {split}", done, len(chosen))
        return shape


class _Example(NamedTuple):
    text: str
    label: str | int


@dataclass(frozen=True, slots=True)
class LabelledTextPlan:
    """Texts with labels, one JSON object a line.

    `tokenizer` is that of a checkpoint; None where every byte is a token.
    """

    request: PrepareRequest
    files: dict[str, TextFile]
    labels: dict[str, Labels]
    label_names: tuple[str, ...]
    tokenizer: CheckpointTokenizer | None = None

    @property
    def max_length(self) -> int:
        """Bytes or tokens of a text at most, marks included; longer ones are cut."""
        usual = LONGEST_BYTES if self.tokenizer is None else LONGEST_TOKENS
        return self.request.max_length or usual

    @property
    def settings(self) -> Settings:
        """The options that decide the content."""
        kind: Settings = {} if self.tokenizer is None else {"tokenizer": KIND}
        return kind | {"max_length": self.max_length}

    @property
    def inputs(self) -> list[InputFile]:
        """Everything that is read."""
        read = [] if self.tokenizer is None else [input_file(self.tokenizer)]
        return read + [
            InputFile(role=role, name=file.path.name, sha256=file.sha256)
            for role, file in self.files.items()
        ]

    @property
    def contents(self) -> dict[str, tuple[str, str]]:
        """See `Plan.contents`."""
        return {role: (str(file.path), file.content) for role, file in self.files.items()}

    def build(self, folder: Path, report: Report) -> Content:
        """Write the tokens and labels of every split."""
        tokenizer = TokenizerRecord(kind="bytes", vocab_size=BYTE_VOCAB_SIZE)
        if self.tokenizer is not None:
            tokenizer = record(self.tokenizer)
            self.tokenizer.write(folder)
        dtype = token_dtype(tokenizer.vocab_size)
        parts = split_examples(self.labels)
        records: dict[str, SplitRecord] = {}
        with Overlaps(folder) as overlaps:
            for split, (role, chosen) in parts.items():
                made = self._write(split, role, chosen, folder, dtype, report, overlaps)
                shared = overlaps.of(split, records)
                records[split] = made.model_copy(update={"overlap": shared})
                write_labels(folder, split, self.labels[role][chosen])
        return Content("texts", records, tokenizer, dtype, label_names=list(self.label_names))

    def _write(
        self,
        split: str,
        role: str,
        chosen: NDArray[np.intp],
        folder: Path,
        dtype: TokenDtype,
        report: Report,
        overlaps: Overlaps,
    ) -> SplitRecord:
        wanted, truncated = set(chosen.tolist()), 0
        with ExitStack() as stack:
            writer = stack.enter_context(writing_rows(folder, split, dtype))
            for number, example in enumerate(_examples(self.files[role].path)):
                if number not in wanted:
                    continue
                overlaps.add(split, [example.text.strip().encode("utf-8", "replace")])
                row, cut = self._row(example.text)
                if not row:
                    raise DataError(
                        f"{self.files[role].path}:{number + 1}: the tokenizer makes no token of "
                        "this text: leave it out"
                    )
                truncated += cut
                writer.append([row])
                if writer.rows % ROWS_PER_CHUNK == 0 or writer.rows == len(wanted):
                    report(f"Writing {split}", writer.rows, len(wanted))
        return SplitRecord(
            examples=writer.rows,
            counts={"tokens": writer.total},
            longest={"source": writer.longest},
            truncated=truncated,
        )

    def _row(self, text: str) -> tuple[list[int], bool]:
        """The token numbers of a text, and whether it was cut for them."""
        if self.tokenizer is not None:
            return self.tokenizer.encode_cut(text, self.max_length)
        row = [byte + 1 for byte in text.encode("utf-8", "replace")]
        return row[: self.max_length], len(row) > self.max_length


def plan_classification(request: PrepareRequest, report: Report) -> Plan:
    """Find and read the files of a classification task.

    Raises:
        UsageError: on options of other tasks.
        DataError: when a file is missing, damaged or of no known form.
    """
    if request.target:
        raise UsageError("classification has labels, no translations: leave out --target")
    given = {"train": request.source, "valid": request.valid, "test": request.test}
    for split, named in given.items():
        if len(named) > 1:
            option = "source" if split == "train" else split
            raise UsageError(f"--{option} is given {len(named)} times; classification reads one")
    paths = {split: named[0] for split, named in given.items() if named}
    if any(paths["train"].name.endswith(ending) for ending in TEXT_ENDINGS):
        return _plan_texts(request, paths, report)
    if request.image_size is not None and request.image_size < 1:
        raise UsageError(f"--image-size must be at least 1; given {request.image_size}")
    if request.max_length is not None:
        raise UsageError("--max-length is for text; leave it out")
    if isinstance(request.tokenizer, Path):
        raise UsageError("--tokenizer DIR is for text; leave it out")
    report("Reading", 0, len(paths))
    train, test = open_images(paths["train"])
    sources = {"train": train}
    sources |= {split: open_images(path)[0] for split, path in paths.items() if split != "train"}
    names = {split: path.name for split, path in paths.items()}
    if test is not None and "test" not in sources:
        sources["test"], names["test"] = test, paths["train"].name
    report("Reading", len(paths), len(paths))
    return ImagePlan(request, sources, names)


def split_examples(labels: dict[str, Labels]) -> Parts:
    """Which examples of which source form the splits.

    A validation or test split that was not given is held out of the training examples, each class
    in its share: one in ten, at most 5,000, first for test and then for validation.

    Raises:
        DataError: when there are too few examples to hold any out.
    """
    rest = np.arange(len(labels["train"]))
    parts: Parts = {}
    for split in ("test", "valid"):
        if split in labels:
            parts[split] = (split, np.arange(len(labels[split])))
            continue
        count = min(len(rest) // VALID_SHARE, VALID_MOST)
        if not count:
            raise DataError(
                f"{len(rest)} training examples are too few to hold some out for the {split} "
                f"split; give --{split}"
            )
        kept, held = holdout(labels["train"][rest], count)
        parts[split], rest = ("train", rest[held]), rest[kept]
    parts["train"] = ("train", rest)
    return {split: parts[split] for split in SPLITS}


def write_labels(folder: Path, split: str, labels: Labels) -> None:
    """Write the class numbers of a split, int64 and little-endian."""
    (folder / f"{split}.labels.bin").write_bytes(labels.astype("<i8").tobytes())


def _plan_texts(
    request: PrepareRequest, paths: dict[str, Path], report: Report
) -> LabelledTextPlan:
    if request.image_size is not None:
        raise UsageError("--image-size is for images; leave it out")
    if request.max_length is not None and request.max_length < 1:
        raise UsageError(f"--max-length must be at least 1; given {request.max_length}")
    tokenizer = None
    if isinstance(request.tokenizer, Path):
        tokenizer = read_folder(request.tokenizer)
        check_padding(tokenizer, request.tokenizer)
        least = len(tokenizer.begin) + len(tokenizer.end) + 1
        if request.max_length is not None and request.max_length < least:
            raise UsageError(
                f"--max-length must be at least {least}, marks included; given {request.max_length}"
            )
    files, found = {}, {}
    for done, (split, path) in enumerate(paths.items(), start=1):
        files[split] = scan(path)
        found[split] = [example.label for example in _examples(path)]
        report("Reading", done, len(paths))
    kinds = {type(label) for label in found["train"]}
    names = sorted(set(found["train"]), key=lambda label: str(label) if len(kinds) > 1 else label)
    numbers = {label: number for number, label in enumerate(names)}
    labels = {}
    for split, given in found.items():
        unknown = next((line for line, label in enumerate(given, 1) if label not in numbers), None)
        if unknown is not None:
            raise DataError(
                f"{paths[split]}:{unknown}: the label {given[unknown - 1]!r} does not occur in "
                f"{paths['train']}"
            )
        labels[split] = np.asarray([numbers[label] for label in given], dtype=np.int64)
    if len(names) < 2:
        raise DataError(f"{paths['train']} has one label only, {names[0]!r}; there should be two")
    return LabelledTextPlan(request, files, labels, tuple(map(str, names)), tokenizer)


def _examples(path: Path) -> Iterator[_Example]:
    """The examples of a file, one a line.

    Raises:
        DataError: naming the line that is no object with ``text`` and ``label``.
    """
    for number, line in enumerate(read_lines(path), start=1):
        try:
            found: Any = json.loads(line)
        except (json.JSONDecodeError, RecursionError) as error:
            raise DataError(f"{path}:{number}: not JSON: {error}") from error
        text, label = (found.get(k) if isinstance(found, dict) else None for k in ("text", "label"))
        fits = isinstance(label, str | int) and not isinstance(label, bool)
        if not isinstance(text, str) or not text or not fits:
            raise DataError(
                f"{path}:{number}: a line is a JSON object with a text that is not empty and a "
                'label, {"text": "…", "label": 0}'
            )
        yield _Example(text, cast(str | int, label))
