"""HAT's published latencies: their CSV form, and what the time of such a network is made of.

N: networks; F: features; T: terms.
"""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from search_spaces.errors import DataError

Floats = NDArray[np.float64]

FEATURES = (
    "encoder_embed_dim",
    "encoder_layer_num",
    "encoder_ffn_embed_dim_avg",
    "encoder_self_attention_heads_avg",
    "decoder_embed_dim",
    "decoder_layer_num",
    "decoder_ffn_embed_dim_avg",
    "decoder_self_attention_heads_avg",
    "decoder_ende_attention_heads_avg",
    "decoder_arbitrary_ende_attn_avg",
)
LATENCIES = ("latency_mean_encoder", "latency_mean_decoder")
LARGEST = 1e6  # a feature beyond this is a slip, and its products would overflow
QKV_DIM = 512  # of every network: more heads are narrower, not more to multiply


@dataclass(frozen=True)
class Latencies:
    """Measured networks, in the order of their file.

    Attributes:
        name: the file's, without its ending.
        features: ``(N, 10)``, columns as in `FEATURES`; averages are over a stack's layers.
        ms: ``(N,)``, encoder and decoder together.
    """

    name: str
    features: Floats
    ms: Floats

    @property
    def decoder_depth(self) -> Floats:
        """Layers of the decoder, ``(N, 1)``."""
        index = FEATURES.index("decoder_layer_num")
        return self.features[:, index : index + 1]

    @property
    def terms(self) -> Floats:
        """See `physical_terms`."""
        return physical_terms(self.features)


def physical_terms(features_NF: Floats) -> Floats:
    """What the ten averages say about the work that is done.

    Decoding makes nearly all of the time, one token after the other. Averages times layers are
    sums over layers, and what a layer multiplies grows with width times inner size.

    Args:
        features_NF: ``(N, 10)``, columns as in `FEATURES`.

    Returns:
        ``(N, 7)``: decoder width (the output layer); layers (kernels started); layers × width
        (attention's projections, norms); the products of all feed-forward blocks; attention
        scores, which cross-attention computes over up to three encoder layers' outputs; keys and
        values of those; multiplications of the encoder.
    """
    columns = iter(features_NF.T)
    width, depth, ffn, _ = (next(columns) for _ in range(4))
    encoder = depth * width * (2 * ffn + 4 * QKV_DIM)
    d_width, d_depth, d_ffn, d_heads, cross_heads, sources = columns
    scores = d_depth * (d_heads + cross_heads * sources)
    return np.column_stack(
        [
            d_width,
            d_depth,
            d_depth * d_width,
            d_depth * d_width * d_ffn,
            scores,
            d_depth * sources * width,
            encoder,
        ]
    )


def read_latencies(path: Path) -> Latencies:
    """Read a CSV of HAT's form; columns in any order, others ignored.

    Raises:
        DataError: for a file that cannot be read, lacks a column or has a value that is not a
            finite number in its range (latencies are positive); names file and line.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as stream:
            reader = csv.DictReader(stream)
            absent = [name for name in (*FEATURES, *LATENCIES) if name not in _header(reader)]
            if absent:
                raise DataError(
                    f"{path} lacks the column {absent[0]}; it needs HAT's ten features, "
                    f"{LATENCIES[0]} and {LATENCIES[1]}"
                )
            rows = [_row(path, reader.line_num, row) for row in reader]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        reason = getattr(error, "strerror", None) or "not a text file of comma-separated values"
        raise DataError(f"{path} cannot be read ({reason}); give a CSV of HAT's form") from error
    values = np.array(rows, dtype=np.float64).reshape(len(rows), len(FEATURES) + 1)
    return Latencies(path.stem, values[:, :-1], values[:, -1])


def _header(reader: csv.DictReader[str]) -> list[str]:
    return list(reader.fieldnames or ())


def _row(path: Path, line: int, row: dict[str, str | None]) -> list[float]:
    """Ten features and the total."""
    numbers = {name: _number(path, line, name, row[name]) for name in (*FEATURES, *LATENCIES)}
    for name in LATENCIES:
        if numbers[name] <= 0:
            raise DataError(f"{path}, line {line}: {name} must be positive, not {row[name]}")
    for name in FEATURES:
        if not 0 <= numbers[name] <= LARGEST:
            limits = f"between 0 and {LARGEST:,.0f}"
            raise DataError(f"{path}, line {line}: {name} must be {limits}, not {row[name]}")
    return [*(numbers[name] for name in FEATURES), sum(numbers[name] for name in LATENCIES)]


def _number(path: Path, line: int, name: str, text: str | None) -> float:
    try:
        number = float(text or "")
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        given = repr(text) if text else "empty"
        raise DataError(f"{path}, line {line}: {name} must be a finite number, not {given}")
    return number
