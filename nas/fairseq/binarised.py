"""The files that `fairseq-preprocess` writes: dictionaries and rows of tokens, read and written.

``dict.LANG.txt`` has a symbol and how often it occurs on each line. fairseq numbers <s> 0, <pad>
1, </s> 2, <unk> 3 and the symbols of the file from 4 on. Here padding is 0 and the begin mark 1;
from 2 on the numbers are the same. No row of binarised text holds the first two, so that rows need
no translation, and only models that cross over swap two embeddings.

Rows are in ``NAME.bin`` and ``NAME.idx``, both memory-mapped. The index has a mark of 9 bytes, a
version (int64, 1), a code for the type of a token (one byte), the number of rows (int64), their
lengths (int32) and where they begin in the other file, in bytes (int64); all of it little-endian.
Rows end with fairseq's end mark, 2.

Source: fairseq's ``MMapIndexedDataset``, which `fairseq-preprocess` writes unless told otherwise.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from search_spaces.errors import DataError
from search_spaces.files import write_atomically
from supernet.data.prepared import PairSplit
from supernet.data.text_files import TokenRows, map_array, read_lines
from supernet.data.tokenizer import (
    BOS,
    EOS,
    JOINER,
    MARKS,
    NUM_MARKS,
    PAD,
    SPACE,
    UNKNOWN,
    PostProcess,
    Tokenizer,
    WordTokenizer,
)

OVERWRITE = "#fairseq:overwrite"
LEAST_SHARE = 0.01  # of the symbols of a vocabulary that are marked in the manner of a splitter

MAGIC = b"MMIDIDX\x00\x00"
HEADER = struct.Struct("<9sQBQ")
VERSION = 1
# 6 and 7 are floats, which no text is stored as.
DTYPES = {1: "<u1", 2: "<i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2", 9: "<u4", 10: "<u8"}
CODES = {"uint16": 8, "int32": 4}
LARGEST_UINT16 = 65_500  # above it fairseq takes a larger type

# The first bytes of fairseq's other formats.
OTHERS = {b"TNTIDX\x00\x00": "cached or lazy", b"HUFFIDX\x00": "huffman"}
ROWS_PER_CHUNK = 200_000


class FairseqDictionary(WordTokenizer):
    """One token a symbol of the file; lines are split at spaces, as fairseq does.

    Marks among the words of a line are unknown words, but for <unk> itself.

    Args:
        words: the file's symbols, in its order.
        name: what to call it in messages.

    Raises:
        DataError: for a mark among the symbols.
    """

    def __init__(self, words: Iterable[str], name: str = "the dictionary") -> None:
        super().__init__(words)
        for number, mark in enumerate(MARKS):
            if self._numbers[mark] != number:
                raise DataError(f"{name} lists {mark}, which every dictionary has by itself")
            if number != UNKNOWN:
                del self._numbers[mark]

    @classmethod
    def load(cls, path: Path) -> FairseqDictionary:
        """Read ``dict.LANG.txt``.

        Raises:
            DataError: when it is missing, not UTF-8, has a line that is not ``SYMBOL COUNT``, or
                a symbol twice.
        """
        if not path.is_file():
            raise DataError(f"{path} is missing; fairseq-preprocess writes it")
        words: dict[str, None] = {}
        kept: list[str] = []
        for number, line in enumerate(read_lines(path), start=1):
            word, overwrites = _entry(line, f"{path}:{number}")
            if word in words and not overwrites:
                raise DataError(f"{path}:{number}: the symbol {word!r} is there twice")
            words[word] = None
            kept.append(word)
        if not kept:
            raise DataError(f"{path} is empty; it should have a symbol and its count on each line")
        return cls(kept, str(path))

    def references(self, rows: Sequence[Sequence[int]]) -> list[str]:
        """The text of each row for comparison with translations.

        An unknown word is written ``<<unk>>``, as fairseq writes it in references, so that a
        translation's ``<unk>`` is never counted as right.
        """
        escaped = f"<{self._words[UNKNOWN]}>"
        return [
            " ".join(
                escaped if token == UNKNOWN else self._words[token]
                for token in row
                if token not in (PAD, BOS, EOS)
            )
            for row in rows
        ]


def dictionary_text(symbols: Sequence[str], counts: Sequence[int]) -> str:
    """The content of ``dict.LANG.txt`` for a vocabulary.

    A symbol that holds white space, which such a file cannot say, is replaced by a name for its
    number: rows hold numbers, so nothing but the reading of new text with it changes.

    Args:
        symbols: of a tokenizer, the four marks first.
        counts: how often each occurs, by number.
    """
    known = set(symbols)
    lines = []
    for number in range(NUM_MARKS, len(symbols)):
        symbol = symbols[number]
        if symbol.split() != [symbol]:
            symbol = f"madeupsymbol{number:06d}"
            assert symbol not in known
        lines.append(f"{symbol} {int(counts[number])}\n")
    return "".join(lines)


def detect_post_process(symbols: Sequence[str]) -> PostProcess:
    """How words were split: a vocabulary tells by its symbols."""
    words = symbols[NUM_MARKS:]
    least = LEAST_SHARE * len(words)
    if sum(word.endswith(JOINER) for word in words) > least:
        return "subword_nmt"
    return "sentencepiece" if sum(word.startswith(SPACE) for word in words) > least else "none"


def _entry(line: str, where: str) -> tuple[str, bool]:
    """The symbol of a line, and whether it may stand there a second time."""
    word, space, count = line.rstrip().rpartition(" ")
    overwrites = count == OVERWRITE
    if overwrites:
        word, space, count = word.rpartition(" ")
    if not space or not word or not (count.isascii() and count.isdigit()):
        raise DataError(f"{where}: found {line[:60]!r}; a symbol, a space and its count are needed")
    return word, overwrites


def read_indexed(prefix: Path, dictionary: FairseqDictionary) -> TokenRows:
    """Map the two files; of the tokens nothing stays in memory.

    Args:
        prefix: their path without the ending.
        dictionary: of the rows' language.

    Returns:
        The rows, whose end marks are the gaps.

    Raises:
        DataError: when a file is missing, damaged or of another format, when the two do not fit
            each other, or for tokens that the dictionary lacks or that no text has.
    """
    index, tokens_path = Path(f"{prefix}.idx"), Path(f"{prefix}.bin")
    for path in (index, tokens_path):
        if not path.is_file():
            raise DataError(f"{path} is missing; fairseq-preprocess writes it")
    offsets, dtype = _offsets(index)
    width, size = np.dtype(dtype).itemsize, tokens_path.stat().st_size
    num_bytes = int(offsets[-1]) * width
    if size != num_bytes:
        raise DataError(
            f"{tokens_path} has {size} bytes, but {index.name} tells of {num_bytes}: "
            "one of them is damaged or cut off; run fairseq-preprocess anew"
        )
    rows = TokenRows(map_array(tokens_path, dtype), offsets, gap=1)
    _check_tokens(rows, tokens_path, dictionary.vocab_size)
    return rows


def write_indexed(prefix: Path, rows: TokenRows, vocab_size: int) -> None:
    """Write rows, each with an end mark behind it, as fairseq does.

    Args:
        prefix: path of the two files without the ending.
        rows: without marks.
        vocab_size: of their dictionary, the marks included.
    """
    name = "uint16" if vocab_size < LARGEST_UINT16 else "int32"
    dtype = np.dtype(DTYPES[CODES[name]])
    with Path(f"{prefix}.bin").open("wb") as file:
        for start in range(0, len(rows), ROWS_PER_CHUNK):
            file.write(_ended(rows, start, start + ROWS_PER_CHUNK).astype(dtype).tobytes())
    sizes = rows.lengths + 1
    begins = np.zeros(len(rows), dtype="<i8")
    np.cumsum(sizes[:-1] * dtype.itemsize, out=begins[1:])
    header = HEADER.pack(MAGIC, VERSION, CODES[name], len(rows))
    Path(f"{prefix}.idx").write_bytes(header + sizes.astype("<i4").tobytes() + begins.tobytes())


def _ended(rows: TokenRows, start: int, stop: int) -> NDArray[np.int64]:
    """The tokens of some rows, one after the other, each row with its end mark."""
    first, last = rows.offsets[start], rows.offsets[min(stop, len(rows))]
    offsets = rows.offsets[start : stop + 1] - first
    part = TokenRows(rows.tokens[first:last], offsets, rows.gap)
    ends = np.cumsum(part.lengths + 1) - 1
    ended = np.full(part.num_tokens + len(part), EOS, dtype=np.int64)
    inside = np.ones(len(ended), dtype=np.bool_)
    inside[ends] = False
    ended[inside] = part.joined()
    return ended


def _offsets(index: Path) -> tuple[NDArray[np.int64], str]:
    """Where rows begin and the last one ends, in tokens, and the type of a token."""
    data = index.read_bytes()
    if data[:9] != MAGIC:
        other = OTHERS.get(data[:8])
        found = f"is fairseq's format {other!r}" if other else "is no index of fairseq's"
        raise DataError(f"{index} {found}; run fairseq-preprocess with --dataset-impl mmap")
    damaged = DataError(f"{index} is damaged or cut off; run fairseq-preprocess anew")
    if len(data) < HEADER.size:
        raise damaged
    _, version, code, count = HEADER.unpack_from(data)
    if version != VERSION or code not in DTYPES:
        raise DataError(
            f"{index} is of version {version} with tokens of type {code}; version {VERSION} with "
            f"integers ({', '.join(map(str, DTYPES))}) can be read"
        )
    if len(data) != HEADER.size + count * 12:
        raise damaged
    sizes = np.frombuffer(data, "<i4", count, HEADER.size).astype(np.int64)
    begins = np.frombuffer(data, "<i8", count, HEADER.size + 4 * count)
    offsets = np.zeros(count + 1, dtype=np.int64)
    np.cumsum(sizes, out=offsets[1:])
    if (sizes < 1).any() or (begins != offsets[:-1] * np.dtype(DTYPES[code]).itemsize).any():
        raise damaged
    return offsets, DTYPES[code]


def _check_tokens(rows: TokenRows, path: Path, vocab_size: int) -> None:
    """Every row ends with the end mark, and holds it nowhere else, nor padding, nor strangers."""
    ended = 0
    for start in range(0, len(rows.tokens), 1 << 24):
        part = rows.tokens[start : start + (1 << 24)]
        if int(part.max()) >= vocab_size:
            raise DataError(
                f"{path} holds the token {int(part.max())}, but its dictionary has {vocab_size} "
                "symbols: the dictionary is of other data; run fairseq-preprocess anew"
            )
        if int(part.min()) < EOS:
            raise DataError(
                f"{path} holds padding or begin marks, which no text has; was it binarised with "
                "fairseq-preprocess, or does the text spell out <s> or <pad>?"
            )
        ended += int((part == EOS).sum())
    if ended != len(rows) or (rows.tokens[rows.offsets[1:] - 1] != EOS).any():
        raise DataError(
            f"the rows of {path} do not end with one end mark each; run fairseq-preprocess anew"
        )


def write_data_bin(
    folder: Path,
    splits: Mapping[str, PairSplit],
    tokenizers: tuple[Tokenizer, Tokenizer],
    languages: tuple[str, str],
) -> None:
    """Write a folder for fairseq's commands.

    Rows keep their token numbers, which from the end mark on are fairseq's too.

    Args:
        folder: exists and is empty.
        splits: by name, among them ``train``.
        tokenizers: of source and target; one object where the vocabulary is joint.
        languages: what files and dictionaries are called by; different names.
    """
    pair = "-".join(languages)
    source, target = tokenizers
    for split, content in splits.items():
        for language, rows, tokenizer in (
            (languages[0], content.source, source),
            (languages[1], content.target, target),
        ):
            write_indexed(folder / f"{split}.{pair}.{language}", rows, tokenizer.vocab_size)
    train = splits["train"]
    counts = [_counts(train.source, source.vocab_size), _counts(train.target, target.vocab_size)]
    if source is target:  # fairseq takes dictionaries for one if they are equal
        counts = [counts[0] + counts[1]] * 2
    for language, tokenizer, count in zip(languages, tokenizers, counts, strict=True):
        text = dictionary_text(tokenizer.symbols, count.tolist())
        write_atomically(folder / f"dict.{language}.txt", text)


def _counts(rows: TokenRows, vocab_size: int) -> NDArray[np.int64]:
    """How often each token occurs."""
    counts = np.zeros(vocab_size, dtype=np.int64)
    for start in range(0, len(rows.tokens), 1 << 24):
        counts += np.bincount(rows.tokens[start : start + (1 << 24)], minlength=vocab_size)
    return counts
