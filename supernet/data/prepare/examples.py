"""Preparing labelled examples for classification: images, or texts as tokens."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from search_spaces.errors import DataError, UsageError
from search_spaces.wording import mark
from supernet.data.byte_pairs import learn_byte_pairs
from supernet.data.checkpoint_tokenizer import KIND, CheckpointTokenizer
from supernet.data.images import Labels
from supernet.data.manifest import (
    InputFile,
    SplitRecord,
    TokenizerRecord,
    file_sha256,
    written_name,
)
from supernet.data.prepare.checkpoint_folder import (
    LONGEST_TOKENS,
    read_folder,
    tokenizer_record,
)
from supernet.data.prepare.doctor import Doctor
from supernet.data.prepare.held_out import hold_out, joined_groups
from supernet.data.prepare.image_files import (
    EncodedImages,
    ImageSource,
    is_picture,
    open_images,
)
from supernet.data.prepare.plan import (
    SPLITS,
    Content,
    Overlaps,
    Plan,
    PrepareRequest,
    Settings,
    refuse_pair_options,
    refuse_vocabulary,
)
from supernet.data.prepare.records import (
    SPLITS_FILE,
    USUAL_NAMES,
    Record,
    column_names,
    has_columns,
    place_of,
)
from supernet.data.prepare.splits import (
    RecordFile,
    Sources,
    SourcesPlan,
    columns_of,
    files_of,
    read_sources,
    refuse_columns,
)
from supernet.data.text_files import Report, TokenDtype, token_dtype, writing_rows
from supernet.data.tokenizer import BYTE_VOCAB_SIZE, BYTES, MOST_TRAINING_LINES

LEARNT = "bpe"  # what a vocabulary of labelled texts is
LONGEST_BYTES = 4000  # of the text task of the Long Range Arena
FEWEST_LABELS = 20  # of which it is not asked whether they are classes
ROWS_PER_CHUNK = 1024
NAMES_SHOWN = 5  # of classes

# split → (which source, which examples of it)
Parts = dict[str, tuple[str, NDArray[np.intp]]]


@dataclass(frozen=True, slots=True)
class ImagePlan:
    """Images whose labels are known; `sources` by the split they were given for."""

    request: PrepareRequest
    sources: dict[str, ImageSource]
    names: dict[str, str]
    parts: Parts
    skipped: Mapping[str, int]

    @property
    def settings(self) -> Settings:
        """The options that decide the content."""
        return {"image_size": self.request.image_size} | self.request.column_settings

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
        names = self._label_names()
        shapes: list[tuple[int, ...]] = []
        records: dict[str, SplitRecord] = {}
        with Overlaps(folder) as overlaps:
            for split, (role, chosen) in self.parts.items():
                shapes.append(self._write(split, role, chosen, folder, report, overlaps))
                if shapes[-1] != shapes[0]:
                    raise DataError(
                        f"the images of {split} have the shape {shapes[-1]}, those of train "
                        f"{shapes[0]}; give {mark('image_size')} to make them equal"
                    )
                labels = self.sources[role].labels[chosen]
                write_labels(folder, split, labels)
                shared = overlaps.of(split, records)
                records[split] = SplitRecord(
                    examples=len(chosen), overlap=shared, classes=_class_counts(labels, names)
                )
        height, width, channels = shapes[0]
        return Content(
            "images", records, image_shape=(height, width, channels), label_names=list(names)
        )

    def _label_names(self) -> tuple[str, ...]:
        names = self.sources["train"].label_names
        for role, source in self.sources.items():
            # Of numbered classes a split may lack the last; a label is the place among the names.
            numbered = all(name.isdigit() for name in source.label_names)
            known = names[: len(source.label_names)] if numbered else names
            if source.label_names != known:
                raise DataError(
                    f"the classes of {role} are not those of train: "
                    f"{_difference(source.label_names, names, role)}; they should be the same"
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
                shape = pixels.shape[1:]
                file.write(np.ascontiguousarray(pixels).data)
                overlaps.add(split, (image.tobytes() for image in pixels))
                done += len(pixels)
                report(f"Writing {split}", done, len(chosen))
        return shape


def _difference(names: Sequence[str], known: Sequence[str], role: str) -> str:
    parts = []
    for mine, others, split in ((names, known, role), (known, names, "train")):
        alone = [name for name in mine if name not in others]
        more = ", …" if len(alone) > NAMES_SHOWN else ""
        parts += [f"{', '.join(alone[:NAMES_SHOWN])}{more} only in {split}"] if alone else []
    return " and ".join(parts) or "they have another order"


@dataclass(frozen=True, slots=True)
class LabelledTextPlan(SourcesPlan):
    """Texts with labels; byte pairs are learnt, unless each byte is a token or one is given."""

    label_names: tuple[str, ...]

    @property
    def vocab_size(self) -> int:
        """Tokens of a vocabulary that is learnt."""
        return self.request.vocab_size or self.sources.learnable_tokens

    @property
    def max_length(self) -> int:
        """Bytes or tokens of a text at most, marks included; longer ones are cut."""
        usual = LONGEST_BYTES if self.request.tokenizer == BYTES else LONGEST_TOKENS
        return self.request.max_length or usual

    @property
    def settings(self) -> Settings:
        """The options that decide the content."""
        kind: Settings = {} if self.tokenizer is None else {"tokenizer": KIND}
        if self.request.tokenizer == LEARNT:
            kind = {"tokenizer": LEARNT, "vocab_size": self.vocab_size}
        return kind | {"max_length": self.max_length} | self.request.column_settings

    def build(self, folder: Path, report: Report) -> Content:
        """Write the tokens and labels of every split."""
        tokenizer = self._learnt(report) if self.request.tokenizer == LEARNT else self.tokenizer
        record = TokenizerRecord(kind=BYTES, vocab_size=BYTE_VOCAB_SIZE)
        if tokenizer is not None:
            record = tokenizer_record(tokenizer)
            tokenizer.write(folder)
        dtype = token_dtype(record.vocab_size)
        records: dict[str, SplitRecord] = {}
        with Overlaps(folder) as overlaps:
            for split in SPLITS:
                made = self._write(split, tokenizer, folder, dtype, report, overlaps)
                shared = overlaps.of(split, records)
                records[split] = made.model_copy(update={"overlap": shared})
        return Content("texts", records, record, dtype, label_names=list(self.label_names))

    def _learnt(self, report: Report) -> CheckpointTokenizer:
        """A vocabulary of the training split, or of so many texts of it as one is learnt from."""
        report("Vocabulary", 0, 1)
        step = max(1, -(-self.sources.count("train") // MOST_TRAINING_LINES))
        texts = (record.values[0] for record in self.sources.records("train"))
        exact, names = self.request.vocab_size is not None, self.sources.train_names()
        found = learn_byte_pairs(
            itertools.islice(texts, 0, None, step), self.vocab_size, names, exact
        )
        report("Vocabulary", 1, 1)
        return found

    def _write(
        self,
        split: str,
        tokenizer: CheckpointTokenizer | None,
        folder: Path,
        dtype: TokenDtype,
        report: Report,
        overlaps: Overlaps,
    ) -> SplitRecord:
        numbers = {name: number for number, name in enumerate(self.label_names)}
        total, truncated, labels = self.sources.count(split), 0, list[int]()
        with ExitStack() as stack:
            writer = stack.enter_context(writing_rows(folder, split, dtype))
            for text, label in (record.values for record in self.sources.records(split)):
                overlaps.add(split, [text.strip().encode()])
                row, cut = self._row(text, tokenizer)
                truncated += cut
                writer.append([row])
                labels.append(numbers[str(label)])
                if writer.rows % ROWS_PER_CHUNK == 0 or writer.rows == total:
                    report(f"Writing {split}", writer.rows, total)
        found = np.asarray(labels, dtype=np.int64)
        write_labels(folder, split, found)
        return SplitRecord(
            examples=writer.rows,
            counts={"tokens": writer.total},
            longest={"source": writer.longest},
            median={"source": writer.median},
            classes=_class_counts(found, self.label_names),
            truncated=truncated,
        )

    def _row(self, text: str, tokenizer: CheckpointTokenizer | None) -> tuple[list[int], bool]:
        """The token numbers of a text, and whether it was cut for them."""
        if tokenizer is not None:
            return tokenizer.encode_cut(text, self.max_length)
        row = [byte + 1 for byte in text.encode()]
        return row[: self.max_length], len(row) > self.max_length


def plan_classification(request: PrepareRequest, doctor: Doctor, report: Report) -> Plan:
    """Find and read the files of a classification task.

    Raises:
        UsageError: on options of other tasks.
        DataError: with all that is wrong with the files.
    """
    if request.target:
        raise UsageError(f"classification has labels, no translations: leave out {mark('target')}")
    refuse_pair_options(request)
    named = {"train": request.source, "valid": request.valid, "test": request.test}
    if _holds_texts(request.source[0]):
        given = files_of(named, doctor)
        if not _pictures_in_columns(request, given["train"][0]):
            return _plan_texts(request, given, doctor, report)
        _check_images(request)
        return _plan_images(request, *_images_in_columns(request, given, doctor, report), doctor)
    return _plan_images(request, *_images_of(request, named, doctor, report), doctor)


def _images_of(
    request: PrepareRequest,
    named: Mapping[str, Sequence[Path]],
    doctor: Doctor,
    report: Report,
) -> tuple[dict[str, ImageSource], dict[str, str]]:
    """The images of files and folders of pictures, and the names of these."""
    _check_images(request)
    refuse_columns(request)
    for split, paths in named.items():
        if len(paths) > 1:
            field = "source" if split == "train" else split
            raise UsageError(f"{mark(field)} is given {len(paths)} times; classification reads one")
    sources, names = dict[str, ImageSource](), dict[str, str]()
    for split, paths in named.items():
        if not paths:
            continue
        with doctor.going_on():
            found = open_images(paths[0], split, doctor, report)
            for role, source in found.items():
                if split != "train":  # it holds this one alone, whatever that is called in it
                    sources[split], names[split] = source, written_name(paths[0])
                elif role == "train" or not named[role]:
                    sources[role], names[role] = source, written_name(paths[0])
    return sources, names


def _plan_images(
    request: PrepareRequest,
    sources: dict[str, ImageSource],
    names: dict[str, str],
    doctor: Doctor,
) -> ImagePlan:
    if request.image_size is None:
        for source in sources.values():
            with doctor.going_on():
                source.check_sizes()
    doctor.check()
    sources = {split: sources[split] for split in SPLITS if split in sources}
    doctor.check_left({split: len(source.labels) for split, source in sources.items()})
    train = sources["train"]
    if len(np.unique(train.labels)) < 2:
        only = train.label_names[train.labels[0]]
        raise DataError(f"{request.source[0]} has one label only, {only!r}; there should be two")
    codes = np.zeros(len(train.labels), dtype=np.int8)
    missing = [split for split in SPLITS if split not in sources]
    if missing:
        keys = [train.hashes(), *([train.groups] if len(train.groups) else [])]
        codes = hold_out(joined_groups(keys), train.labels, missing)
    parts: Parts = {
        split: (split, np.arange(len(sources[split].labels)))
        if split in sources and split != "train"
        else ("train", np.flatnonzero(codes == SPLITS.index(split)))
        for split in SPLITS
    }
    return ImagePlan(request, sources, names, parts, doctor.skipped)


def _images_in_columns(
    request: PrepareRequest, given: Mapping[str, Sequence[Path]], doctor: Doctor, report: Report
) -> tuple[dict[str, ImageSource], dict[str, str]]:
    """Pictures of tables, or named by them, with their labels."""
    columns = columns_of(request, ("image", "label"))
    found = read_sources(_alone(given), columns, doctor, report)
    doctor.check()
    found, label_names = _numbered(found, doctor)
    doctor.check()
    numbers = {name: number for number, name in enumerate(label_names)}
    images, names = dict[str, ImageSource](), dict[str, str]()
    for split, files in found.files.items():

        def pictures(files: Sequence[RecordFile] = files) -> Iterator[tuple[str, bytes | Path]]:
            for file in files:
                for record in file.records():
                    picture = record.values[0]
                    place = place_of(file.paths, record)
                    yield (f"{place}: {picture}" if isinstance(picture, Path) else place), picture

        labels = np.array([numbers[str(label)] for label in found.labels[split]], dtype=np.int64)
        digest = hashlib.sha256("".join(d for f in files for d in f.sha256).encode())
        for _, picture in pictures():
            if isinstance(picture, Path) and picture.is_file():
                with suppress(OSError):  # what cannot be read is told when it is decoded
                    digest.update(file_sha256(picture).encode())
        images[split] = EncodedImages.examined(
            pictures,
            labels,
            label_names,
            digest.hexdigest(),
            split,
            doctor,
            report,
            found.groups if split == "train" else None,
        )
        names[split] = written_name(files[0].paths[0])
    return images, names


def _alone(given: Mapping[str, Sequence[Path]]) -> dict[str, list[tuple[Path, ...]]]:
    return {split: [(path,) for path in paths] for split, paths in given.items()}


def _holds_texts(source: Path) -> bool:
    """Whether a source is texts or a table, not a file or a folder of pictures."""
    if not source.is_dir() or has_columns(source):
        return has_columns(source)
    if (source / SPLITS_FILE).is_file():
        return True
    return any(has_columns(file) for file in source.rglob("*")) and not any(
        is_picture(file) for file in source.glob("*/*")
    )


def _pictures_in_columns(request: PrepareRequest, path: Path) -> bool:
    named = dict(request.columns)
    if "image" in named or "text" in named:
        return "image" in named
    columns = column_names(path) if path.exists() else []
    return not {*columns} & {*USUAL_NAMES["text"]} and bool(
        {name.partition(".")[0] for name in columns} & {*USUAL_NAMES["image"]}
    )


def _check_images(request: PrepareRequest) -> None:
    if request.image_size is not None and request.image_size < 1:
        raise UsageError(f"{mark('image_size')} must be at least 1; given {request.image_size}")
    if request.max_length is not None:
        raise UsageError(f"{mark('max_length')} is for text; leave it out")
    refuse_vocabulary(request, "pictures have none")
    if request.tokenizer != LEARNT:
        given = "DIR" if isinstance(request.tokenizer, Path) else request.tokenizer
        raise UsageError(f"{mark('tokenizer')} {given} is for text; leave it out")


def write_labels(folder: Path, split: str, labels: Labels) -> None:
    """Write the class numbers of a split, int64 and little-endian."""
    (folder / f"{split}.labels.bin").write_bytes(labels.astype("<i8").tobytes())


def _class_counts(labels: Labels, names: Sequence[str]) -> dict[str, int]:
    counts = np.bincount(labels, minlength=len(names)).tolist()
    return dict(zip(names, counts, strict=True))


def _plan_texts(
    request: PrepareRequest, given: Mapping[str, Sequence[Path]], doctor: Doctor, report: Report
) -> LabelledTextPlan:
    if request.image_size is not None:
        raise UsageError(f"{mark('image_size')} is for images; leave it out")
    if request.max_length is not None and request.max_length < 1:
        raise UsageError(f"{mark('max_length')} must be at least 1; given {request.max_length}")
    tokenizer = _given_tokenizer(request)

    def problem(record: Record) -> str:
        text = record.values[0]
        if not text.strip():
            return "the text is empty"
        if tokenizer is not None and not tokenizer.encode_cut(text, LONGEST_TOKENS)[0]:
            return "the tokenizer makes no token of this text"
        return ""

    columns = columns_of(request, ("text", "label"))
    sources = read_sources(_alone(given), columns, doctor, report, problem)
    if doctor.wrong or doctor.garbled:
        doctor.check()
    sources, names = _numbered(sources, doctor)
    doctor.check()
    doctor.check_left(sources.counts)
    if sources.missing:
        numbers = {name: number for number, name in enumerate(names)}
        labels = np.array([numbers[str(label)] for label in sources.labels["train"]], np.int64)
        keys = [*sources.keys, *([sources.groups] if request.group_by else [])]
        codes = hold_out(joined_groups(keys), labels, sources.missing)
        sources = replace(sources, codes=codes)
    return LabelledTextPlan(request, sources, doctor.skipped, tokenizer, names)


def _given_tokenizer(request: PrepareRequest) -> CheckpointTokenizer | None:
    """The tokenizer of a checkpoint; None where byte pairs are learnt, or each byte is a token."""
    if request.tokenizer == "unigram":
        raise UsageError(
            f"{mark('tokenizer')} unigram is for translation and language models: labelled texts "
            f"learn {LEARNT}; or give {BYTES}, or the folder of a checkpoint"
        )
    if request.tokenizer == BYTES:
        refuse_vocabulary(request, "each byte is a token here")
    if not isinstance(request.tokenizer, Path):
        return None
    refuse_vocabulary(request, "this one is the checkpoint's")
    tokenizer = read_folder(request.tokenizer, whole_texts=True)
    least = len(tokenizer.begin) + len(tokenizer.end) + 1
    if request.max_length is not None and request.max_length < least:
        raise UsageError(
            f"{mark('max_length')} must be at least {least}, marks included; given "
            f"{request.max_length}"
        )
    return tokenizer


def _numbered(sources: Sources, doctor: Doctor) -> tuple[Sources, tuple[str, ...]]:
    """The names of the classes of the training examples; others are left out of other splits."""
    train = sources.labels["train"]
    path = sources.files["train"][0].paths[0] if "train" in sources.files else Path()
    kinds = {type(label) for label in train}
    named = sorted(set(train), key=lambda label: str(label) if len(kinds) > 1 else label)
    names = tuple(map(str, named))
    if train and len(names) < 2:
        doctor.wrong.append(f"{path} has one label only, {named[0]!r}; there should be two")
    elif len(names) > max(FEWEST_LABELS, len(train) // 2):
        doctor.wrong.append(
            f"{path} has {len(names):,} different labels of {len(train):,} examples: classes come "
            f"back; name the column that holds them with {mark('columns.label')}"
        )
    files, labels = dict(sources.files), dict(sources.labels)
    for split in sources.files:
        if split == "train":
            continue
        files[split], labels[split] = [], []
        for file in sources.files[split]:
            unknown = set[int]()
            for record in file.records():
                label = record.values[-1]
                if str(label) in names:
                    labels[split].append(label)
                    continue
                unknown.add(record.line)
                place = place_of(file.paths, record)
                doctor.leave_out(split, place, f"the label {label!r} does not occur in {path}")
            files[split].append(file.without(unknown))
    return replace(sources, files=files, labels=labels), names
