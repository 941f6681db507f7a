"""Records of CSV files: which lines belong to one is found here, what is in its cells by pandas.

Between tabs a quotation mark is often a character like others, as in the sentence pairs of Tatoeba.
Such a file is told by its cells: one holds a mark that no writer who quotes would have left there.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple

from search_spaces.errors import DataError
from supernet.data.text_files import WrongEncoding, numbered_lines

CHARACTERS_PER_BATCH = 1 << 20  # of CSV, whose records are long or short
MOST_LINES_OF_A_ROW = 1000
UNCLOSED = "a quotation mark that opens here is not closed"
# A cell of CSV; `open` where its line ends between quotation marks. Inside of a cell that does not
# begin with one they are characters like others.
_CELL = '"[^"]*+(?:""[^"]*+)*+(?:"[^{0}]*+|(?P<open>\\Z))|[^{0}]*+'
# A cell as whoever quotes writes it: between marks, or without any.
_FITTING = '(?:"[^"]*+(?:""[^"]*+)*+"|[^"\t]*+)'

Row = tuple[int, Mapping[str, Any] | str]  # its number, and what it holds or what is wrong with it


class _CsvRecord(NamedTuple):
    """A record of a CSV file as it stands there.

    Attributes:
        line: where it begins, from 1.
        text: of all its lines.
        cells: how many it has.
        problem: why it cannot be used; empty if it can.
    """

    line: int
    text: str
    cells: int
    problem: str


def _has_plain_marks(path: Path, columns: int) -> bool:
    """Whether quotation marks between tabs are characters like others: some do not fit otherwise.

    Only of a line that has all of the cells, taken as it stands, that is a sign.
    """
    cell = re.compile(_CELL.format("\t"))
    fitting = re.compile(f"{_FITTING}(?:\t{_FITTING}){{{columns - 1}}}")
    lines = list[str]()
    for line, _ in numbered_lines(path):
        lines.append(line)
        _, inside = _ends_of_cells(line, len(lines) > 1, cell, "\t")
        if inside and len(lines) <= MOST_LINES_OF_A_ROW:
            continue
        if lines[0].count("\t") == columns - 1 and not fitting.fullmatch("\n".join(lines)):
            return True
        lines = []
    return bool(lines) and lines[0].count("\t") == columns - 1


def _csv_records(path: Path, between: str, plain_marks: bool = False) -> Iterator[_CsvRecord]:
    """Which lines belong together: a line feed between quotation marks ends no record.

    pandas, which reads what is in the cells, tells neither where a record begins nor that cells
    are missing.

    Raises:
        DataError: for a quotation mark that is not closed for very long.
    """
    if plain_marks:
        for number, (line, wrong) in enumerate(numbered_lines(path), start=1):
            yield _CsvRecord(number, line, line.count(between) + 1, wrong)
        return
    cell = re.compile(_CELL.format(re.escape(between)))
    lines, begun, ends, problem = list[str](), 0, 0, ""
    for number, (line, wrong) in enumerate(numbered_lines(path), start=1):
        if not lines:
            begun, ends, problem = number, 0, ""
        more, inside = _ends_of_cells(line, bool(lines), cell, between)
        lines.append(line)
        ends, problem = ends + more, problem or wrong
        if not inside:
            yield _CsvRecord(begun, "\n".join(lines), ends + 1, problem)
            lines = []
        elif number - begun > MOST_LINES_OF_A_ROW:
            raise DataError(
                f"{path}:{begun}: {UNCLOSED} within {MOST_LINES_OF_A_ROW:,} lines; write one "
                "inside of a cell twice"
            )
    if lines:
        yield _CsvRecord(begun, "\n".join(lines), ends + 1, problem or UNCLOSED)


def _ends_of_cells(
    line: str, inside: bool, cell: re.Pattern[str], between: str
) -> tuple[int, bool]:
    """How many cells end in a line before its end, and whether that is between quotation marks."""
    if '"' not in line:
        return (0, True) if inside else (line.count(between), False)
    rest, count, place = f'"{line}' if inside else line, 0, 0
    while True:
        found = cell.match(rest, place)
        assert found is not None  # it takes anything, and nothing
        if found["open"] is not None:
            return count, True
        if found.end() == len(rest):
            return count, False
        count, place = count + 1, found.end() + 1


def csv_columns(path: Path, between: str) -> tuple[list[str], str]:
    """The names of the columns of a CSV file, and what stands between cells.

    Args:
        path: the file.
        between: what its name says; of a comma the first line knows better.

    Raises:
        DataError: for a first line that does not name them.
    """
    first = next((line for line, _ in numbered_lines(path) if line.strip()), "")
    if between != "\t":
        between = max(",;\t|", key=first.count)
    names: list[str] = []
    for record in _csv_records(path, between):
        if record.problem:
            if isinstance(record.problem, WrongEncoding):
                raise DataError(record.problem.of_file(path, record.line, 1))
            raise DataError(f"{path}:{record.line}: {record.problem}")
        if record.text.strip():
            names = [name.strip() for name in _cells([record.text], between)[0]]
            break
    if not names:
        raise DataError(f"{path} is empty; its first line should name the columns")
    double = next((name for name in names if not name or names.count(name) > 1), None)
    if double is not None:
        raise DataError(
            f"{path}: the first line should name the columns, each with a name of its own, but "
            f"it is {first[:40]!r}"
        )
    return names, between


def csv_rows(path: Path, between: str) -> Iterator[Row]:
    """The rows behind the first line, each a text for each column or what is wrong with it.

    Arguments and errors as for `csv_columns`; a quotation mark may also not be closed for long.
    """
    names, between = csv_columns(path, between)
    plain = between == "\t" and _has_plain_marks(path, len(names))
    records = (one for one in _csv_records(path, between, plain) if not _is_blank(one, len(names)))
    next(one for one in records if one.text.strip())  # the header
    for part in _batches_of(records):
        whole = [one.text for one in part if not one.problem and one.cells == len(names)]
        cells = iter(_cells(whole, between, plain))
        for one in part:
            if one.problem:
                yield one.line, one.problem
            elif one.cells != len(names):
                yield one.line, f"has {one.cells} cells, and there are {len(names)} columns"
            else:
                yield one.line, dict(zip(names, next(cells), strict=True))


def _is_blank(record: _CsvRecord, columns: int) -> bool:
    """Whether a line is none; of a column alone blanks are a cell, as tabs are of several."""
    if record.problem or record.text.strip():
        return False
    return not record.text or record.cells != columns


def _batches_of(records: Iterable[_CsvRecord]) -> Iterator[list[_CsvRecord]]:
    part, size = list[_CsvRecord](), 0
    for one in records:
        part.append(one)
        size += len(one.text) + 1
        if size >= CHARACTERS_PER_BATCH:
            yield part
            part, size = [], 0
    if part:
        yield part


def _cells(
    records: Sequence[str], between: str, plain_marks: bool = False
) -> list[tuple[str, ...]]:
    """The cells of records that have equally many, as texts: ``NA`` and ``001`` stay what they are.

    Args:
        records: of a CSV file, each whole.
        between: what stands between cells.
        plain_marks: whether quotation marks are characters like others.
    """
    if not records:
        return []
    import pandas

    table = pandas.read_csv(
        StringIO("\n".join(records)),
        sep=between,
        header=None,
        index_col=False,
        dtype=str,
        keep_default_na=False,
        skip_blank_lines=False,
        quoting=csv.QUOTE_NONE if plain_marks else csv.QUOTE_MINIMAL,
        lineterminator="\n",
    )
    assert len(table) == len(records)
    return list(table.itertuples(index=False, name=None))
