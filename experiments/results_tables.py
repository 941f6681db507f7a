"""Prints the tables of a study from the file that it keeps in ``results/``, without running it.

``python -m experiments.results_tables experiments/results/rank_fidelity_digits.json --markdown``

An entry of LOG.md names the file that its tables come from in a line of its own,
``Results: results/NAME.json``. A test prints the tables from the file and finds every row of the
entry's tables among them, so that a file that was written anew without an entry, or an entry
without its file, is noticed.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from experiments import (
    attention_study,
    decoder_linear,
    first_corrections,
    gpu_suite,
    hybrid_study,
    latency_predictors,
    limits_hold,
    placement_table,
    rank_fidelity,
    retrained_twins,
    search_efficiency,
    small_llama,
    timing_noise,
)
from search_spaces.errors import UnknownNameError, UsageError

# What makes the tables of a file, by how its name begins; `limits_hold` prints sentences in place
# of its second table.
TABLES: Mapping[str, Callable[[Any], Iterable[object]]] = {
    study.name: study.show
    for study in (
        attention_study.STUDY,
        decoder_linear.STUDY,
        hybrid_study.STUDY,
        latency_predictors.STUDY,
        rank_fidelity.STUDY,
        retrained_twins.STUDY,
        search_efficiency.STUDY,
        timing_noise.STUDY,
        first_corrections.STUDY,
        gpu_suite.STUDY,
        placement_table.STUDY,
        small_llama.STUDY,
    )
} | {limits_hold.STUDY.name: limits_hold.tables}

_RESULTS = re.compile(r"^Results: (results/\S+\.json)$", re.MULTILINE)
_NUMBER = re.compile(r"(?<![\w.])[-−]?\d[\d,]*(?:\.\d+)?(?:e[-+]\d+)?(?!\w)")

Row = tuple[str, ...]


@dataclass(frozen=True)
class Entry:
    """An entry of the log.

    Attributes:
        title: its heading.
        file: the results that its tables come from, or None where it names none.
        rows: cells of the rows of its tables, without the heads.
    """

    title: str
    file: str | None
    rows: tuple[Row, ...]


def entries(log: str) -> list[Entry]:
    """The entries of a log, newest first."""
    found = []
    for part in re.split(r"^## ", log, flags=re.MULTILINE)[1:]:
        title, _, text = part.partition("\n")
        named = _RESULTS.search(text)
        found.append(Entry(title, named[1] if named else None, tuple(_rows(text))))
    return found


def tables_of(file: Path) -> list[Table]:
    """The tables that a study prints of a results file.

    Raises:
        UnknownNameError: when no study is known to print it.
        UsageError: when there is no such file.
    """
    make = next((make for name, make in TABLES.items() if file.name.startswith(name)), None)
    if make is None:
        raise UnknownNameError(
            f"no study prints {file.name}; there are files of {', '.join(TABLES)}"
        )
    if not file.is_file():
        raise UsageError(f"no such file: {file}")
    parts = make(json.loads(file.read_text(encoding="utf-8")))
    return [part for part in parts if isinstance(part, Table)]


def printed(tables: Sequence[Table]) -> list[Row]:
    """The cells of all rows."""
    return [
        tuple(map(str, row))
        for table in tables
        for row in zip(*(column.cells for column in table.columns), strict=True)
    ]


def missing(entry: Entry, rows: Sequence[Row]) -> list[Row]:
    """The rows of an entry of which no printed row has all numbers, in their order.

    A number may be rounded to fewer decimals than were printed.
    """
    known = [_numbers(row) for row in rows]
    return [row for row in entry.rows if not any(_within(_numbers(row), one) for one in known)]


def _rows(text: str) -> list[Row]:
    rows = []
    for block in re.findall(r"(?:^\|.*\n?)+", text, flags=re.MULTILINE):
        for line in block.splitlines()[2:]:
            rows.append(tuple(cell.strip(" *") for cell in line.strip().strip("|").split("|")))
    return rows


def _numbers(row: Row) -> list[str]:
    return [n.replace(",", "").replace("−", "-") for n in _NUMBER.findall(" ".join(row[1:]))]


def _within(wanted: Sequence[str], given: Sequence[str]) -> bool:
    """Whether all numbers are among the given ones, in this order."""
    rest = iter(given)
    return all(any(_rounds_to(one, number) for one in rest) for number in wanted)


def _rounds_to(exact: str, short: str) -> bool:
    decimals = len(short.partition(".")[2])
    return abs(float(exact) - float(short)) <= 0.5001 * 0.1**decimals


def markdown(table: Table) -> str:
    """A table as it stands in the log."""
    heads = (str(column.header).replace("\n", " ") for column in table.columns)
    rows = [tuple(heads), *printed([table])]
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([lines[0], "|---" * len(rows[0]) + "|", *lines[1:]])


def main(arguments: Sequence[str] | None = None) -> int:
    """Print."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.results_tables", description="The tables of a results file."
    )
    parser.add_argument("file", type=Path)
    parser.add_argument("--markdown", action="store_true", help="as they stand in LOG.md")
    options = parser.parse_args(arguments)
    try:
        tables = tables_of(options.file)
    except UsageError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    for table in tables:
        if options.markdown:
            print(f"{markdown(table)}\n")
        else:
            Console(width=160).print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
