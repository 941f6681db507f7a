"""Rows of tokens as fairseq stores them: ``NAME.bin`` and ``NAME.idx``, both memory-mapped.

The index has a mark of 9 bytes, a version (int64, 1), a code for the type of a token (one byte),
the number of rows (int64), their lengths (int32) and where they begin in the other file, in bytes
(int64); all of it little-endian. Rows end with fairseq's end mark, 2.

Source: fairseq's ``MMapIndexedDataset``, which `fairseq-preprocess` writes unless told otherwise.
"""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from search_spaces.errors import DataError
from supernet.data.fairseq_dictionary import FairseqDictionary
from supernet.data.token_files import TokenRows, map_array
from supernet.data.tokenizer import EOS

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
    told = int(offsets[-1]) * width
    if size != told:
        raise DataError(
            f"{tokens_path} has {size} bytes, but {index.name} tells of {told}: "
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
