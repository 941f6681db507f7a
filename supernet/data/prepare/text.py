"""Preparing text for translation (pairs of lines) and for language models (a stream of lines).

Which files a request means, and whether they can be used, is found out before any work begins.

Only the training split is filtered. Validation and test keep every line, blank ones too, so that
scores compare with those of others: a blank line of a stream is an end mark alone, and a pair over
the maximum length is cut for the network, while the whole line stays in ``SPLIT.source.txt`` and
``SPLIT.target.txt``, against which BLEU is counted.

A text in a column of a language model's data may have several lines.

With the tokenizer of a checkpoint a line of a stream is a text with the marks that this puts around
one, or else a line with its line feed.
"""

from __future__ import annotations

import itertools
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TextIO

import numpy as np

from search_spaces.errors import DataError, UsageError
from search_spaces.wording import mark
from supernet.data.checkpoint_tokenizer import KIND, CheckpointTokenizer
from supernet.data.manifest import SplitRecord, TokenizerRecord, tokenizer_file
from supernet.data.prepare.checkpoint_folder import (
    check_joins,
    read_folder,
    tokenizer_record,
)
from supernet.data.prepare.doctor import Doctor
from supernet.data.prepare.held_out import hold_out, hold_out_ends, joined_groups
from supernet.data.prepare.plan import (
    SPLITS,
    Content,
    Overlaps,
    PrepareRequest,
    Settings,
    refuse_pair_options,
    refuse_vocabulary,
)
from supernet.data.prepare.records import SPLITS_FILE, by_side, has_columns
from supernet.data.prepare.splits import (
    SourcesPlan,
    columns_of,
    files_of,
    read_sources,
    refuse_columns,
    split_called,
)
from supernet.data.text_files import (
    LONGEST_PAIR,
    Report,
    RowWriter,
    TokenDtype,
    token_dtype,
    writing_rows,
)
from supernet.data.tokenizer import (
    BYTES,
    EOS,
    MOST_TRAINING_LINES,
    NUM_MARKS,
    ModelType,
    SentencePieceTokenizer,
    Tokenizer,
    learn,
)

LINES_PER_CHUNK = 4096
SIDES = ("source", "target")

SHORTEST_LIMIT = 2  # one token and the end mark


@dataclass(frozen=True, slots=True)
class TextPlan(SourcesPlan):
    """A record has two values, source and target, or one; without a tokenizer one is learnt."""

    @property
    def pairs(self) -> bool:
        """Whether every line has a translation."""
        return self.request.task == "translation"

    @property
    def sides(self) -> tuple[str, ...]:
        """What stands side by side."""
        return SIDES if self.pairs else SIDES[:1]

    @property
    def joint(self) -> bool:
        """Whether one vocabulary serves all sides."""
        return self.request.joint or not self.pairs

    @property
    def kind(self) -> ModelType:
        """How the vocabulary is learnt."""
        kind = self.request.tokenizer
        assert not isinstance(kind, Path) and kind != BYTES, "a checkpoint's is not learnt"
        return kind

    @property
    def vocab_size(self) -> int:
        """Tokens of a vocabulary, in which each character is one."""
        usual = max(2 * self.sources.alphabet, self.sources.learnable_tokens)
        return self.request.vocab_size or usual

    @property
    def max_length(self) -> int | None:
        """Tokens of a row at most, end mark included; a stream has no limit unless one is given."""
        return self.request.max_length or (LONGEST_PAIR if self.pairs else None)

    @property
    def settings(self) -> Settings:
        """The options that decide the content."""
        if self.tokenizer is not None:
            settings: Settings = {"tokenizer": KIND, "max_length": self.max_length}
            return settings | self.request.column_settings
        settings = {
            "vocab_size": self.vocab_size,
            "tokenizer": self.kind,
            "max_length": self.max_length,
        }
        if self.pairs:
            settings |= {"joint": self.request.joint, "max_ratio": self.request.max_ratio}
        return settings | self.request.column_settings

    def build(self, folder: Path, report: Report) -> Content:
        """Learn the vocabularies and write the token files of every split."""
        tokenizers = self._tokenizers(folder, report)
        sizes = [tokenizer.vocab_size for tokenizer in tokenizers.values()]
        dtype = token_dtype(max(sizes))
        write = self._write_pairs if self.pairs else self._write_stream
        records: dict[str, SplitRecord] = {}
        with Overlaps(folder) as overlaps:
            for split in SPLITS:
                made = write(split, folder, tokenizers, dtype, report, overlaps)
                shared = overlaps.of(split, records)
                records[split] = made.model_copy(update={"overlap": shared})
        return Content("pairs" if self.pairs else "stream", records, self._record(sizes), dtype)

    def _record(self, sizes: list[int]) -> TokenizerRecord:
        if self.tokenizer is not None:
            return tokenizer_record(self.tokenizer)
        return TokenizerRecord(
            kind=self.kind,
            joint=self.joint,
            vocab_size=sizes[0],
            target_vocab_size=sizes[1] if self.pairs else None,
        )

    # -- vocabularies -----------------------------------------------------------------------------

    def _tokenizers(self, folder: Path, report: Report) -> dict[str, Tokenizer]:
        """The tokenizer of each side, also written into the folder."""
        if self.tokenizer is None:
            return self._learn(folder, report)
        self.tokenizer.write(folder)
        return {"source": self.tokenizer}

    def _learn(self, folder: Path, report: Report) -> dict[str, Tokenizer]:
        groups = [self.sides] if self.joint else [(side,) for side in self.sides]
        tokenizers: dict[str, Tokenizer] = {}
        for done, group in enumerate(groups):
            report("Vocabulary", done, len(groups))
            names = self.sources.train_names([self.sides.index(side) for side in group])
            exact = self.request.vocab_size is not None
            model = learn(self._sampled(group), self.vocab_size, self.kind, names, exact)
            (folder / tokenizer_file(None if self.joint else group[0])).write_bytes(model)
            tokenizers |= dict.fromkeys(group, SentencePieceTokenizer(model))
        report("Vocabulary", len(groups), len(groups))
        return tokenizers

    def _sampled(self, sides: Sequence[str]) -> Iterator[str]:
        """Lines of the training split, so many, evenly spread, as a vocabulary is learnt from."""
        count = self.sources.count("train") * len(sides)
        step = max(1, -(-count // MOST_TRAINING_LINES))
        wanted = [self.sides.index(side) for side in sides]
        for place in wanted:
            for number, lines in enumerate(self._lines("train")):
                if number % step == 0:
                    yield lines[place]

    # -- splits -----------------------------------------------------------------------------------

    def _write_pairs(
        self,
        split: str,
        folder: Path,
        tokenizers: dict[str, Tokenizer],
        dtype: TokenDtype,
        report: Report,
        overlaps: Overlaps,
    ) -> SplitRecord:
        dropped: Counter[str] = Counter()
        truncated = done = 0
        total = self.sources.count(split)
        limit = (self.max_length or 0) - 1  # the end mark is added when batches are made
        with ExitStack() as stack:
            writers = [
                stack.enter_context(writing_rows(folder, f"{split}.{side}", dtype))
                for side in SIDES
            ]
            texts = [] if split == "train" else _text_files(folder, split, stack)
            for chunk in _chunks(self._lines(split)):
                lines = tuple(zip(*chunk, strict=True))
                overlaps.add(split, ("\0".join(pair).strip("\0 ").encode() for pair in chunk))
                for side, text in zip(SIDES, lines, strict=True):
                    overlaps.add(split, (line.strip().encode() for line in text), side)
                rows = [
                    tokenizers[side].encode(part) for side, part in zip(SIDES, lines, strict=True)
                ]
                if split == "train":
                    rows = self._kept(rows, limit, dropped)
                else:
                    truncated += sum(
                        max(map(len, pair)) > limit for pair in zip(*rows, strict=True)
                    )
                    rows = [[row[:limit] for row in side] for side in rows]
                for file, side_lines in zip(texts, lines, strict=False):
                    file.writelines(f"{line}\n" for line in side_lines)
                for writer, part in zip(writers, rows, strict=True):
                    writer.append(part)
                done += len(chunk)
                report(f"Writing {split}", done, total)
        return _pair_record(split, writers, dropped, truncated)

    def _kept(
        self, rows: list[list[list[int]]], limit: int, dropped: Counter[str]
    ) -> list[list[list[int]]]:
        """The pairs worth learning from; `dropped` counts the others by reason."""
        kept = []
        for pair in zip(*rows, strict=True):
            shorter, longer = sorted(map(len, pair))
            if not shorter:
                dropped["blank"] += 1
            elif longer > limit:
                dropped["too_long"] += 1
            elif self.request.max_ratio and longer > self.request.max_ratio * shorter:
                dropped["ratio"] += 1
            else:
                kept.append(pair)
        return [list(side) for side in zip(*kept, strict=True)] if kept else [[], []]

    def _write_stream(
        self,
        split: str,
        folder: Path,
        tokenizers: dict[str, Tokenizer],
        dtype: TokenDtype,
        report: Report,
        overlaps: Overlaps,
    ) -> SplitRecord:
        dropped: Counter[str] = Counter()
        counts: Counter[str] = Counter(words=0, characters=0)
        done, total = 0, self.sources.count(split)
        limit = self.max_length if split == "train" else None
        read = _texts_of(tokenizers["source"])
        blank, tokens_of_spaces = read([""])[0], self.tokenizer is not None
        with writing_rows(folder, split, dtype) as writer:
            for chunk in _chunks(self._lines(split)):
                lines = [line for (line,) in chunk]
                overlaps.add(split, (line.strip().encode() for line in lines))
                kept = []
                for line, row in zip(lines, read(lines), strict=True):
                    if split == "train" and (
                        row == blank or (tokens_of_spaces and not line.strip())
                    ):
                        dropped["blank"] += 1
                    elif limit is not None and len(row) > limit:
                        dropped["too_long"] += 1
                    else:
                        kept.append(row)
                        counts["words"] += len(line.split())
                        counts["characters"] += len(line)
                writer.append(kept)
                done += len(chunk)
                report(f"Writing {split}", done, total)
        _check_not_empty(split, writer.rows, dropped)
        if self.tokenizer is not None and writer.total < 2:
            raise DataError(f"the {split} split has one token only: there is nothing to predict")
        return SplitRecord(
            examples=writer.rows,
            counts={"tokens": writer.total, **counts},
            longest={"source": writer.longest},
            median={"source": writer.median},
            dropped=dict(dropped),
        )

    def _lines(self, split: str) -> Iterator[tuple[str, ...]]:
        """The lines of a split, side by side; a line feed in a sentence is a space."""
        for record in self.sources.records(split):
            yield tuple(value.replace("\n", " ") for value in record.values)


def _texts_of(tokenizer: Tokenizer) -> Callable[[Sequence[str]], list[list[int]]]:
    """What makes rows of lines that are joined, with what stands at their ends."""
    if isinstance(tokenizer, CheckpointTokenizer):
        return tokenizer.encode_texts
    return lambda lines: [[*row, EOS] for row in tokenizer.encode(lines)]


def _chunks(lines: Iterable[tuple[str, ...]]) -> Iterator[list[tuple[str, ...]]]:
    iterator = iter(lines)
    while chunk := list(itertools.islice(iterator, LINES_PER_CHUNK)):
        yield chunk


def _text_files(folder: Path, split: str, stack: ExitStack) -> list[TextIO]:
    return [
        stack.enter_context(
            (folder / f"{split}.{side}.txt").open("w", encoding="utf-8", newline="")
        )
        for side in SIDES
    ]


def _pair_record(
    split: str, writers: list[RowWriter], dropped: Counter[str], truncated: int
) -> SplitRecord:
    _check_not_empty(split, writers[0].rows, dropped)
    named = dict(zip(SIDES, writers, strict=True))
    return SplitRecord(
        examples=writers[0].rows,
        counts={f"{side}_tokens": writer.total + writer.rows for side, writer in named.items()},
        longest={side: writer.longest + 1 for side, writer in named.items()},
        median={side: writer.median + 1 for side, writer in named.items()},
        dropped=dict(dropped),
        truncated=truncated,
    )


def _check_not_empty(split: str, rows: int, dropped: Counter[str]) -> None:
    if not rows:
        reasons = ", ".join(f"{count} {reason}" for reason, count in dropped.items())
        raise DataError(f"nothing is left of the {split} split: {reasons}")


def plan_translation(request: PrepareRequest, doctor: Doctor, report: Report) -> TextPlan:
    """Find and read the files of a translation task.

    Raises:
        UsageError: when the request does not name the files it should, or asks for impossible
            sizes.
        DataError: with all that is wrong with the files, such as lines that are not UTF-8 or
            another number of them than the partner has.
    """
    tables = all(has_columns(path) or path.is_dir() for path in request.source)
    if not request.target and not tables:
        raise UsageError(
            f"translation needs {mark('target')}: the translations of {mark('source')}, line "
            "by line; or a table with both (.csv, .tsv, .jsonl, .parquet, .arrow) as "
            f"{mark('source')} alone"
        )
    if request.target and len(request.source) != len(request.target):
        raise UsageError(
            f"{mark('source')} names {len(request.source)} files and {mark('target')} "
            f"{len(request.target)}; they go together one by one"
        )
    if isinstance(request.tokenizer, Path):
        raise UsageError(
            f"translation learns its vocabulary from its pairs: {mark('tokenizer')} is bpe or "
            "unigram, and "
            "the folder of a checkpoint is for language modelling and for texts with labels"
        )
    _check_numbers(request)
    given: dict[str, list[tuple[Path, ...]]] = {}
    if request.target:
        refuse_columns(request)
        given["train"] = list(zip(request.source, request.target, strict=True))
        for split, named in (("valid", request.valid), ("test", request.test)):
            if named:
                given[split] = [_pair(split, named, request)]
        _check_sides(itertools.chain(*given.values()))
    else:
        for path in request.source:
            _refuse_sides(path)
        named_files = {"train": request.source, "valid": request.valid, "test": request.test}
        given = {s: [(p,) for p in paths] for s, paths in files_of(named_files, doctor).items()}
    columns = columns_of(request, SIDES)
    sources = read_sources(given, columns, doctor, report)
    doctor.check()
    doctor.check_left(sources.counts)
    if sources.missing:
        keys = [sources.groups] if request.group_by else []
        groups = joined_groups([*sources.keys, *keys])
        no_classes = np.zeros(len(groups), dtype=np.int64)
        codes = hold_out(groups, no_classes, sources.missing)
        sources = replace(sources, codes=codes)
    return TextPlan(request, sources, doctor.skipped, None)


def _refuse_sides(folder: Path) -> None:
    """See that a folder that is given for pairs has tables, not a file for each language.

    Raises:
        DataError: saying how such files are given.
    """
    if not folder.is_dir() or has_columns(folder) or (folder / SPLITS_FILE).is_file():
        return
    if any(map(has_columns, folder.rglob("*"))):
        return
    sides: dict[str, list[Path]] = {}
    for path in sorted(folder.glob("[!.]*")):
        name = Path(path.name.removesuffix(".gz").removesuffix(".txt"))
        if path.is_file() and name.suffix:
            sides.setdefault(name.stem, []).append(path)
    pairs = {split_called(stem) or "": both for stem, both in sides.items() if len(both) == 2}
    pairs.setdefault("train", pairs.pop("", []))
    options = {"train": SIDES, "valid": ("valid", "valid"), "test": ("test", "test")}
    given = " ".join(
        f"{mark(option)} {shlex.quote(str(path))}"
        for split, names in options.items()
        for option, path in zip(names, pairs.get(split, ()), strict=False)
    )
    raise DataError(
        f"{folder} has no table with the columns source and target: give such a table, or the two "
        f"sides of a translation as files, {given or by_side()}"
    )


def _check_sides(pairs: Iterable[tuple[Path, ...]]) -> None:
    """See that no file is its own translation.

    Raises:
        UsageError: naming the first that is.
    """
    for source, target in pairs:
        if source.exists() and target.exists() and source.samefile(target):
            raise UsageError(
                f"{source} is given as source and as target: give the sentences as one and their "
                "translations as the other"
            )


def plan_language_modelling(request: PrepareRequest, doctor: Doctor, report: Report) -> TextPlan:
    """Find and read the files of a language modelling task.

    Raises:
        UsageError: on options of other tasks or impossible sizes.
        DataError: with all that is wrong with the files, or when there is too little to hold out.
    """
    if request.target:
        raise UsageError(f"language modelling reads one text: leave out {mark('target')}")
    refuse_pair_options(request)
    _check_numbers(request)
    named = {"train": request.source, "valid": request.valid, "test": request.test}
    given = {s: [(p,) for p in paths] for s, paths in files_of(named, doctor).items()}
    if not all(has_columns(path) for paths in given.values() for (path,) in paths):
        refuse_columns(request)
    tokenizer = None
    if isinstance(request.tokenizer, Path):
        refuse_vocabulary(request, "this one is the checkpoint's")
        tokenizer = read_folder(request.tokenizer)
        check_joins(tokenizer, request.tokenizer)
    columns = columns_of(request, ("text",), by_line=True)
    sources = read_sources(given, columns, doctor, report)
    doctor.check()
    doctor.check_left(sources.counts)
    if sources.missing:
        if request.group_by:
            groups = joined_groups([sources.groups])
            no_classes = np.zeros(len(groups), dtype=np.int64)
            codes = hold_out(groups, no_classes, sources.missing)
        else:
            counts = [file.count for file in sources.files["train"]]
            codes = hold_out_ends(counts, sources.missing)
        sources = replace(sources, codes=codes)
    return TextPlan(request, sources, doctor.skipped, tokenizer)


def _check_numbers(request: PrepareRequest) -> None:
    if request.tokenizer == BYTES:
        raise UsageError(
            f"{mark('tokenizer')} {BYTES} is for texts with labels: give bpe or unigram"
        )
    if request.vocab_size is not None and request.vocab_size <= NUM_MARKS:
        raise UsageError(
            f"{mark('vocab_size')} {request.vocab_size} is too small; {NUM_MARKS} are marks"
        )
    if request.max_length is not None and request.max_length < SHORTEST_LIMIT:
        raise UsageError(
            f"{mark('max_length')} must be at least {SHORTEST_LIMIT}, end mark included"
        )
    if request.max_ratio and request.max_ratio < 1:
        raise UsageError(
            f"{mark('max_ratio')} must be at least 1, or 0 for none; given {request.max_ratio}"
        )
    if request.image_size is not None:
        raise UsageError(f"{mark('image_size')} is for images; leave it out")


def _pair(split: str, given: tuple[Path, ...], request: PrepareRequest) -> tuple[Path, Path]:
    """The source and target file of a held-out split."""
    if len(given) == 2:
        return given[0], given[1]
    if len(given) != 1:
        form = f"PREFIX, or twice: --{split} SOURCE --{split} TARGET"
        raise UsageError(f"--{split} is given {len(given)} times; give --{split} {form}")
    if given[0].is_file() or not given[0].name:
        kind = "one file" if given[0].name else "a folder"
        raise UsageError(
            f"--{split} {given[0]} is {kind}; give the source and the target file, "
            f"--{split} SOURCE --{split} TARGET, or the prefix they share"
        )
    return _with_ending(split, given[0], request.source[0]), _with_ending(
        split, given[0], request.target[0]
    )


def _with_ending(split: str, prefix: Path, like: Path) -> Path:
    """The file `prefix` + the language ending of `like`, packed or not."""
    ending = Path(like.name.removesuffix(".gz")).suffix
    if not ending:
        raise UsageError(
            f"{like.name} has no ending such as .en to add to {prefix}; name both files: "
            f"--{split} SOURCE --{split} TARGET"
        )
    tries = [prefix.with_name(f"{prefix.name.rstrip('.')}{ending}{gz}") for gz in ("", ".gz")]
    found = next((path for path in tries if path.is_file()), None)
    if found is None:
        raise DataError(f"--{split} {prefix}: there is neither {tries[0]} nor {tries[1]}")
    return found
