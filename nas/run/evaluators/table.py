"""An evaluator that looks networks up in a table: npz, parquet or CSV.

A column (of an npz: an array of N values) for each gene, named like it. A gene in every layer is
an array ``(N, L)`` in an npz, and columns ``ratio.0``, ``ratio.1`` … elsewhere; where a layer or
gene is not there, anything may stand. Other columns are qualities and costs. What a CSV holds are
texts: a category is compared as it stands there, and all else is read as numbers.

N: rows; L: layers.
"""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nas.run.evaluators import Answer
from search_spaces.errors import DataError
from search_spaces.genes import Gene, GeneSpace, Network
from search_spaces.genotypes import Genotypes

Columns = Mapping[str, NDArray[Any]]

ENDINGS = (".npz", ".parquet", ".csv")
LOOKED_UP = 1024
# What stands in a table in lower case for a quality or cost that is not known.
MISSING = (
    *("", "na", "n/a", "#n/a", "#na", "#n/a n/a", "<na>", "nan", "-nan", "null", "none"),
    *("1.#ind", "-1.#ind", "1.#qnan", "-1.#qnan"),  # of C programs on Windows
)
TRUTHS = {"true": "1", "false": "0"}


class TableEvaluator:
    """Qualities and costs of the networks of a table; others fail.

    Args:
        space: whose genes the columns are.
        path: the file; its ending (``.npz``, ``.parquet``, ``.csv``) says what it is.
        quality: column with the quality.
        costs: columns with costs.
        maximise: whether more of the quality is better, which is then negated.

    Attributes:
        rows: ``(N, S)``, the networks of the table as genotypes, equal ones once.
        digest: sha256 of the file.
        batch: networks that are looked up at once.

    Raises:
        DataError: for a file that cannot be read, a column that is missing, columns of different
            lengths, and a row outside the space, which is named.
    """

    def __init__(
        self,
        space: GeneSpace,
        path: str | Path,
        quality: str,
        costs: Sequence[str] = (),
        maximise: bool = False,
    ) -> None:
        self._space, self._path = space, Path(path)
        columns = read_columns(self._path)
        for name in (quality, *costs):
            if name not in columns:
                raise DataError(
                    f"{path}: there is no column {name!r}; there are {', '.join(columns)}"
                )
        if len({len(values) for values in columns.values()}) != 1:
            raise DataError(f"{path}: the columns are of different lengths")
        rows = table_rows(space, columns, self._path)
        sign = -1.0 if maximise else 1.0
        qualities = sign * self._numbers(columns, quality)
        cost_values = {name: self._numbers(columns, name) for name in costs}
        self._answers = {
            row.tobytes(): Answer(
                float(qualities[number]),
                costs={name: float(values[number]) for name, values in cost_values.items()},
            )
            for number, row in enumerate(rows)
        }
        whole = len(self._answers) == space.size
        self._whole = [
            name
            for name, values in cost_values.items()
            if whole and np.isfinite(values).all() and (values > 0).all()
        ]
        self.digest, self.batch = hashlib.sha256(self._path.read_bytes()).hexdigest(), LOOKED_UP
        self.rows: Genotypes = np.array(
            [np.frombuffer(key, dtype=np.int16) for key in self._answers], dtype=np.int16
        ).reshape(-1, len(space.slots))

    def evaluate(self, networks: Sequence[Network]) -> list[Answer]:
        """See `nas.run.evaluators.Evaluator.evaluate`."""
        absent = Answer.failed(f"{self._path.name} does not hold this network")
        rows = self._space.encode(networks)
        return [self._answers.get(row.tobytes(), absent) for row in rows]

    def costs(self, networks: Sequence[Network]) -> dict[str, list[float]]:
        """See `offered`: those that the table holds of all networks of the space."""
        if not self._whole:
            return {}
        rows = [self._answers[row.tobytes()] for row in self._space.encode(networks)]
        return {name: [row.costs[name] for row in rows] for name in self._whole}

    def _numbers(self, columns: Columns, name: str) -> NDArray[np.float64]:
        values = columns[name]
        try:
            numbers = np.asarray(_as_numbers(values), dtype=np.float64).reshape(len(values))
            texts = [one for one in values[np.isnan(numbers)] if isinstance(one, str)]
            if any(text.strip().lower() not in MISSING for text in texts):
                raise ValueError
            return numbers
        except (TypeError, ValueError):
            raise DataError(f"{self._path}: the column {name!r} is not one of numbers") from None


def table_rows(space: GeneSpace, columns: Columns, path: Path) -> Genotypes:
    """The networks of a table as canonical genotypes, ``(N, S)``.

    Args:
        space: whose genes the columns are.
        columns: see `read_columns`; of one length.
        path: where they are from, for messages.

    Raises:
        DataError: for a column that is missing or of another shape, and a row outside the space.
    """
    out = np.zeros((len(next(iter(columns.values()))), len(space.slots)), dtype=np.int16)
    known = np.zeros(out.shape, dtype=np.bool_)
    for gene in space.genes:
        for layer, column in enumerate(space.columns[gene.name]):
            values = _values(space, columns, path, gene, layer)
            out[:, column], known[:, column] = _indices(gene, values)
    wrong = space.active(out) & ~known
    if wrong.any():
        row, column = (int(number[0]) for number in np.nonzero(wrong))
        slot = space.slots[column]
        value = str(_values(space, columns, path, slot.gene, slot.layer or 0)[row]) or "empty"
        raise DataError(
            f"{path}, row {row}: {slot.name} is {value}; the space {space.name} allows "
            f"{list(slot.choices)}"
        )
    return space.canonical(out)


def _values(space: GeneSpace, columns: Columns, path: Path, gene: Gene, layer: int) -> NDArray[Any]:
    """Column of a gene, or of a gene in a layer."""
    name = gene.name if gene.per_layer is None else f"{gene.name}.{layer}"
    if gene.per_layer is not None and gene.name in columns:
        values = columns[gene.name]
        if values.ndim == 2 and layer < values.shape[1]:
            return np.asarray(values[:, layer])
        raise DataError(
            f"{path}: {gene.name} needs a column for each of {len(space.columns[gene.name])} "
            f"layers; its shape is {values.shape}"
        )
    if name not in columns or columns[name].ndim != 1:
        raise DataError(
            f"{path}: there is no column {name!r} of one value a row, which the space "
            f"{space.name} needs; there are {', '.join(columns)}"
        )
    return columns[name]


def _indices(gene: Gene, values: NDArray[Any]) -> tuple[NDArray[np.int16], NDArray[np.bool_]]:
    """Index of each value among the choices, 0 where it is none, and where it is one."""
    found = np.zeros(len(values), dtype=np.int16)
    known = np.zeros(len(values), dtype=np.bool_)
    values = _as_numbers(values) if gene.ordered else values
    for index, choice in enumerate(gene.choices):
        is_it = values == choice if not isinstance(choice, float) else _close(values, choice)
        found[is_it], known[is_it] = index, True
    return found, known


def _as_numbers(values: NDArray[Any]) -> NDArray[Any]:
    """Texts as the numbers that they are, truths as 1 and 0, NaN for others; else as they are."""
    if values.dtype.kind not in "OU":
        return values
    import pandas

    texts = [TRUTHS.get(str(one).lower(), one) for one in values.ravel()]
    numbers = pandas.to_numeric(pandas.Series(texts, dtype=object), errors="coerce")
    return np.asarray(numbers).reshape(values.shape)


def _close(values: NDArray[Any], choice: float) -> NDArray[np.bool_]:
    return np.isclose(np.asarray(values, dtype=np.float64), choice, rtol=1e-9, atol=0.0)


def read_columns(path: Path) -> dict[str, NDArray[Any]]:
    """The columns of an npz (read without pickles), parquet or CSV file.

    Raises:
        DataError: for another ending, a file that is missing or damaged, and one without rows.
    """
    if path.suffix.lower() not in ENDINGS:
        raise DataError(f"{path}: a table is a file that ends in {', '.join(ENDINGS)}")
    try:
        columns = _read_npz(path) if path.suffix.lower() == ".npz" else _read_frame(path)
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        reason = getattr(error, "strerror", None) or str(error).split("\n")[0] or "it is damaged"
        raise DataError(f"{path}: the table cannot be read: {reason}") from None
    if not columns or not len(next(iter(columns.values()))):
        raise DataError(f"{path}: the table has no rows")
    return columns


def _read_npz(path: Path) -> dict[str, NDArray[Any]]:
    with np.load(path, allow_pickle=False) as arrays:
        columns = {name: np.asarray(arrays[name]) for name in arrays.files}
    flat = [name for name, values in columns.items() if values.ndim == 0]
    if flat:
        raise ValueError(f"the array {flat[0]!r} is a single number, not one a row")
    return columns


def _read_frame(path: Path) -> dict[str, NDArray[Any]]:
    import pandas

    if path.suffix.lower() == ".parquet":
        frame = pandas.read_parquet(path)
    else:
        frame = pandas.read_csv(path, dtype=str, na_filter=False)
    return {str(name): frame[name].to_numpy() for name in frame.columns}
