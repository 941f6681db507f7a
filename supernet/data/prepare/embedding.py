"""Preparing texts for encoders: a checkpoint's tokens, and the embeddings that it gives them.

A text is tokenised as the checkpoint's folder says: behind its prompt, in lower case where it wants
that, with the marks around it, and cut at its length. Where queries have a prompt of their own, a
text that is no query of a pair is a passage. Equal texts are taken once. Which texts are held out
their content decides, so that a text stays in its split when others come or go; of a pair the
passage decides, so that all queries for it stay with it.

Shapes: N texts of a split, B texts of a batch, D width of the embeddings, Q pairs.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from search_spaces.errors import DataError, UsageError
from search_spaces.files import room_for_copies
from search_spaces.settings import TokenInput
from search_spaces.wording import mark
from supernet.data.checkpoint_tokenizer import KIND, CheckpointTokenizer
from supernet.data.manifest import SplitRecord
from supernet.data.prepare.checkpoint_folder import (
    LONGEST_TOKENS,
    read_folder,
    tokenizer_record,
)
from supernet.data.prepare.doctor import Doctor
from supernet.data.prepare.plan import (
    HASH_BYTES,
    SPLITS,
    Content,
    Overlaps,
    PrepareRequest,
    Settings,
    refuse_pair_options,
    refuse_vocabulary,
)
from supernet.data.prepare.records import Record, has_columns
from supernet.data.prepare.splits import (
    SourcesPlan,
    columns_of,
    files_of,
    read_sources,
    refuse_columns,
)
from supernet.data.prepared import pairs_file, states_file, targets_file
from supernet.data.text_batches import padded_rows
from supernet.data.text_files import (
    Report,
    RowWriter,
    TokenDtype,
    TokenRows,
    read_rows,
    token_dtype,
    writing_rows,
)
from supernet.data.tokenizer import PAD
from supernet.extraction import StandAlone
from supernet.precision import autocast
from supernet.pretrained.checkpoint import Checkpoint, checkpoint_digest, read_checkpoint

HELD_OUT = 20  # one text in so many goes to the validation split, and as many to the test split
FEWEST_HELD = 2  # texts, which are compared with each other
TEXTS_PER_CHUNK = 1024
BATCH_TEXTS, BATCH_TOKENS = 64, 8192  # that are embedded at once, padding included
MOST_STATES_BYTES = 4 * 2**30  # of the training split

Pairs = NDArray[np.int64]


class SplitTexts:
    """The different texts of a split, in the order in which they come, and pairs of them."""

    def __init__(self) -> None:
        self._rows: dict[bytes, int] = {}  # by a text's digest
        self._pairs: dict[tuple[int, int], None] = {}
        self.equal = 0

    def add(self, texts: tuple[str, ...], digests: list[bytes]) -> list[str]:
        """Take a text, or a query and its passage; returns what is new of them."""
        new, numbers = list[str](), list[int]()
        for text, digest in zip(texts, digests, strict=True):
            if digest not in self._rows:
                self._rows[digest] = len(self._rows)
                new.append(text)
            numbers.append(self._rows[digest])
        first, last = numbers[0], numbers[-1]
        if first != last and (first, last) not in self._pairs:
            self._pairs[first, last] = None
        elif not new:
            self.equal += 1
        return new

    @property
    def pairs(self) -> Pairs:
        """Rows of the query and of the passage of each pair."""
        return np.array(list(self._pairs), dtype=np.int64).reshape(-1, 2)


@dataclass(frozen=True, slots=True)
class EmbeddingPlan(SourcesPlan):
    """Texts and what embeds them."""

    tokenizer: CheckpointTokenizer
    checkpoint: Checkpoint
    digest: str

    @property
    def max_length(self) -> int:
        """Tokens of a text at most, marks included; longer ones are cut."""
        sentence = self.checkpoint.sentence
        usual = None if sentence is None else sentence.max_tokens
        most = self.checkpoint.settings.max_length
        return self.request.max_length or min(usual or LONGEST_TOKENS, most)

    @property
    def settings(self) -> Settings:
        """The options that decide the content."""
        sentence = self.checkpoint.sentence
        own = sentence is not None and sentence.query_prompt != sentence.prompt
        return {
            "tokenizer": KIND,
            "max_length": self.max_length,
            "prompt": sentence.prompt if sentence is not None else "",
            **({"query_prompt": sentence.query_prompt} if sentence is not None and own else {}),
            "lower_case": sentence is not None and sentence.lower_case,
            "checkpoint": self.digest,
            **({"bfloat16": True} if self.request.bfloat16 else {}),
            **self.request.column_settings,
        }

    def build(self, folder: Path, report: Report) -> Content:
        """Write tokens and embeddings of every split."""
        self.tokenizer.write(folder)
        dtype = token_dtype(self.tokenizer.vocab_size)
        records = self._write_texts(folder, dtype, report)
        network = self.checkpoint.network()
        for split, found in records.items():
            rows = read_rows(folder, split, dtype, self.tokenizer.vocab_size, least=PAD)
            assert len(rows) == found.examples
            rough = self.request.bfloat16 and split == "train"
            write_outputs(folder, split, rows, network, report, bfloat16=rough)
        width = _width(self.checkpoint)
        return Content("embeddings", records, tokenizer_record(self.tokenizer), dtype, width=width)

    def _write_texts(
        self, folder: Path, dtype: TokenDtype, report: Report
    ) -> dict[str, SplitRecord]:
        counted = {split: Counter[str]() for split in SPLITS}
        found = {split: SplitTexts() for split in SPLITS}
        done, total = 0, sum(map(self.sources.count, self.sources.files))
        with Overlaps(folder) as overlaps, ExitStack() as stack:
            writers = {
                split: stack.enter_context(writing_rows(folder, split, dtype)) for split in SPLITS
            }
            for given, chunk in self._chunks():
                kept: dict[str, list[str]] = {split: [] for split in SPLITS}
                for record in chunk:
                    texts = tuple(map(str.strip, record.values))
                    if not all(texts):
                        counted[given]["blank"] += 1
                        continue
                    group = record.group if self.request.group_by else texts[-1]
                    split = self._split_of(given, _digest(group))
                    read = self._prompted(texts)
                    kept[split] += found[split].add(read, list(map(_digest, read)))
                for split, new in kept.items():
                    overlaps.add(split, (text.encode() for text in new))
                    counted[split]["cut"] += self._append(writers[split], new)
                done += len(chunk)
                report("Writing texts", done, total)
            records: dict[str, SplitRecord] = {}
            pairs = {split: texts.pairs for split, texts in found.items()}
            for split in SPLITS:
                self._check_enough(split, writers[split].rows)
                self._check_pairs(split, pairs)
                if len(pairs[split]):
                    np.save(folder / pairs_file(split), pairs[split])
                counted[split]["equal"] = found[split].equal
                shared = overlaps.of(split, records)
                records[split] = _record(writers[split], counted[split], shared, len(pairs[split]))
        return records

    def _chunks(self) -> Iterator[tuple[str, list[Record]]]:
        """Some texts and pairs at a time, with the split that their file was given for."""
        for split in self.sources.files:
            records = self.sources.records(split)
            while chunk := list(itertools.islice(records, TEXTS_PER_CHUNK)):
                yield split, chunk

    def _split_of(self, given: str, digest: bytes) -> str:
        """Where a text goes: a split that no file was given for is held out of training."""
        if given != "train":
            return given
        place = int.from_bytes(digest) % HELD_OUT
        held = {0: "test", 1: "valid"}.get(place, "train")
        return "train" if held in self.sources.files else held

    def _prompted(self, texts: tuple[str, ...]) -> tuple[str, ...]:
        """A text, or a query and another text as its passage, each behind its prompt."""
        sentence = self.checkpoint.sentence
        if sentence is None:
            return texts
        *queries, passage = dict.fromkeys(texts)
        return (*(sentence.query_prompt + text for text in queries), sentence.prompt + passage)

    def _append(self, writer: RowWriter, texts: list[str]) -> int:
        """Write texts as rows; how many were cut."""
        sentence = self.checkpoint.sentence
        if sentence is not None and sentence.lower_case:
            texts = [text.lower() for text in texts]
        found = self.tokenizer.encode_all_cut(texts, self.max_length)
        writer.append([row for row, _ in found])
        return sum(cut for _, cut in found)

    def _check_enough(self, split: str, count: int) -> None:
        least = 1 if split == "train" else FEWEST_HELD
        if count >= least:
            return
        own = f"give {mark(split)} a file of its own, or in a folder of texts a file {split}.txt"
        given = "" if split in self.sources.files else f", {own}"
        raise DataError(
            f"the {split} split has {count} different texts and needs {least} or more: give more "
            f"texts{given}"
        )

    def _check_pairs(self, split: str, pairs: Mapping[str, Pairs]) -> None:
        """Networks are compared by what their queries find in both splits, or in neither."""
        if split == "train" or len(pairs[split]) or not any(map(len, pairs.values())):
            return
        given = (
            f"{mark(split)} a file with pairs"
            if split in self.sources.files
            else f"more, or {mark(split)}"
        )
        raise DataError(
            f"there are pairs of query and passage, but none in the {split} split: give {given}, "
            "so that networks can be compared by them"
        )


def plan_embedding(request: PrepareRequest, doctor: Doctor, report: Report) -> EmbeddingPlan:
    """Find and read the files of texts, and the checkpoint that embeds them.

    Raises:
        UsageError: on options of other tasks, without a checkpoint, or on impossible sizes.
        DataError: when a file is missing, empty, not UTF-8 or damaged, a folder has no texts, or
            the checkpoint makes no embeddings.
    """
    if request.target:
        raise UsageError(f"embeddings are made by the checkpoint: leave out {mark('target')}")
    refuse_pair_options(request)
    if request.image_size is not None:
        raise UsageError(f"{mark('image_size')} is for images; leave it out")
    if not isinstance(request.tokenizer, Path):
        raise UsageError(
            "embedding needs the checkpoint whose embeddings are to be learnt: give its folder "
            f"with {mark('tokenizer')} MODEL"
        )
    refuse_vocabulary(request, "this one is the checkpoint's")
    checkpoint = read_checkpoint(request.tokenizer)
    if checkpoint.task != "embedding":
        raise UsageError(
            f"{request.tokenizer} is a {checkpoint.family} for {checkpoint.task}, which makes no "
            "embeddings: give a checkpoint of the family bert"
        )
    tokenizer = read_folder(request.tokenizer, whole_texts=True)
    _check_sizes(request, checkpoint, tokenizer)
    named = {"train": request.source, "valid": request.valid, "test": request.test}
    given = {s: [(p,) for p in paths] for s, paths in files_of(named, doctor).items()}
    if not all(has_columns(path) for paths in given.values() for (path,) in paths):
        refuse_columns(request)
    columns = columns_of(request, ("text",), ("query", "passage"))
    sources = read_sources(given, columns, doctor, report)
    doctor.check()
    doctor.check_left(sources.counts)
    digest = checkpoint_digest(checkpoint)
    return EmbeddingPlan(request, sources, doctor.skipped, tokenizer, checkpoint, digest)


def write_outputs(
    folder: Path,
    split: str,
    rows_N: TokenRows,
    network: StandAlone,
    report: Report,
    *,
    bfloat16: bool,
) -> None:
    """Write what a network makes of texts, and for training also what it says of their tokens.

    Vectors are float32 ``(N, D)``, the states of all tokens at length 1 float16 ``(tokens, D)``,
    which moves a cosine by up to 4e-5 and the loss of a batch by less than a millionth; both in
    numpy's format. States are left out where they take more than `MOST_STATES_BYTES` or a quarter
    of what is free on the disk: then a training that learns from them runs the network again. Texts
    of similar lengths are embedded together, on a graphics card where there is one.

    Args:
        folder: where to write.
        split: name of the split, which the files' names begin with.
        rows_N: tokens of its texts.
        network: the checkpoint's own.
        report: what is done.
        bfloat16: compute products in it, see `supernet.precision.autocast`.

    Raises:
        DataError: when an embedding is not finite.
    """
    device = "cuda" if torch.cuda.is_available() else "cpu"
    network = network.to(device).eval()
    lengths = rows_N.lengths
    order = np.argsort(lengths, kind="stable")
    targets: NDArray[np.float32] | None = None
    states: NDArray[np.float16] | None = None
    start = 0
    while start < len(order):
        batch = order[start : start + BATCH_TEXTS]
        fits = np.arange(1, len(batch) + 1) * lengths[batch] <= BATCH_TOKENS
        batch = batch[: max(1, int(fits.sum()))]
        with torch.inference_mode(), autocast(device, bfloat16):
            states_BTD, vectors_BD = network(padded_rows(rows_N, batch).to(device))
        if not bool(vectors_BD.isfinite().all()):
            raise DataError(
                "the checkpoint gives a text an embedding that is no finite number: fetch it anew"
            )
        if targets is None:
            width = vectors_BD.shape[1]
            targets = _new(folder / targets_file(split), np.float32, len(order), width)
            if split == "train" and _fit(folder, rows_N.num_tokens, width):
                states = _new(folder / states_file(split), np.float16, rows_N.num_tokens, width)
        targets[batch] = vectors_BD.float().cpu().numpy()
        if states is not None:
            units_BTD = F.normalize(states_BTD.float(), dim=-1).half().cpu().numpy()
            for row, unit_TD in zip(batch, units_BTD, strict=True):
                states[rows_N.offsets[row] : rows_N.offsets[row + 1]] = unit_TD[: lengths[row]]
        start += len(batch)
        report(f"Embedding {split}", start, len(order))
    assert targets is not None, "an empty split was refused"


def _new(file: Path, dtype: Any, rows: int, width: int) -> NDArray[Any]:
    """A mapped file whose place on the disk is taken: a full disk would end the process later.

    Where the system cannot take it beforehand, as macOS, that is left to `_fit`.
    """
    mapped = np.lib.format.open_memmap(file, mode="w+", dtype=dtype, shape=(rows, width))
    if hasattr(os, "posix_fallocate"):
        with file.open("r+b") as opened:
            try:
                os.posix_fallocate(opened.fileno(), 0, file.stat().st_size)
            except OSError as error:
                raise OSError(error.errno, error.strerror, str(file)) from error
    return mapped


def _fit(folder: Path, tokens: int, width: int) -> bool:
    """Whether there is room for the states of so many tokens."""
    free = shutil.disk_usage(folder).free
    needed = tokens * width * np.dtype(np.float16).itemsize
    return needed <= room_for_copies(free, MOST_STATES_BYTES)


def _check_sizes(
    request: PrepareRequest, checkpoint: Checkpoint, tokenizer: CheckpointTokenizer
) -> None:
    shape, most = checkpoint.settings.input, checkpoint.settings.max_length
    assert isinstance(shape, TokenInput)
    if tokenizer.vocab_size > shape.vocab_size:
        raise DataError(
            f"the tokenizer of {checkpoint.folder} has token numbers up to "
            f"{tokenizer.vocab_size - 1}, but its network has {shape.vocab_size} tokens: the two "
            "are of different checkpoints"
        )
    least = len(tokenizer.begin) + len(tokenizer.end) + 1
    own = None if checkpoint.sentence is None else checkpoint.sentence.max_tokens
    if request.max_length is None and own is not None and own < least:
        raise DataError(
            f"{checkpoint.folder} cuts texts to {own} tokens, and {least - 1} of them are marks: "
            f"give {mark('max_length')}, from {least} to {most}"
        )
    if request.max_length is not None and not least <= request.max_length <= most:
        raise UsageError(
            f"{mark('max_length')} is {least}, marks included, to {most}, the positions of the "
            f"checkpoint; given {request.max_length}"
        )


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=HASH_BYTES).digest()


def _record(
    writer: RowWriter, counted: Counter[str], shared: dict[str, int], num_pairs: int
) -> SplitRecord:
    return SplitRecord(
        examples=writer.rows,
        counts={"tokens": writer.total} | ({"pairs": num_pairs} if num_pairs else {}),
        longest={"source": writer.longest},
        median={"source": writer.median},
        dropped={name: counted[name] for name in ("blank", "equal") if counted[name]},
        truncated=counted["cut"],
        overlap=shared,
    )


def _width(checkpoint: Checkpoint) -> int:
    assert checkpoint.architecture.encoder is not None
    return checkpoint.architecture.encoder.embed_dim
