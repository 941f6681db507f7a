"""Each log entry that names its results can be printed from them."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.table import Table

import experiments
from experiments.results_tables import (
    entries,
    main,
    markdown,
    missing,
    printed,
    tables_of,
)

HOME = Path(experiments.__file__).parent
ENTRIES = [entry for entry in entries((HOME / "LOG.md").read_text("utf-8")) if entry.file]
PRINTABLE = ("attention_study_digits", "decoder_linear", "limits_hold", "rank_fidelity_digits")

TEXT = """\
# Log

## Newest

Results: results/some.json

| score | τ | all |
|---|---|---|
| **first** | **0.86** | 0.794 0.760 |
| second | 1,234 | |

## Older

| score | τ |
|---|---|
| third | 5 |
"""


def table(*rows: tuple[str, ...]) -> Table:
    made = Table("score", "τ", "all")
    for row in rows:
        made.add_row(*row)
    return made


def test_every_entry_that_names_its_results_is_printed_from_them() -> None:
    lost = {
        entry.title: missing(entry, printed(tables_of(HOME / str(entry.file)))) for entry in ENTRIES
    }
    assert lost == {entry.title: [] for entry in ENTRIES}
    assert all(entry.rows for entry in ENTRIES)


def test_a_file_belongs_to_one_entry() -> None:
    """The newest that names it: the file was written over since the others."""
    files = [entry.file for entry in ENTRIES]
    assert len(files) == len(set(files))


@pytest.mark.parametrize("name", PRINTABLE)
def test_studies_print_what_they_keep(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    file = HOME / "results" / f"{name}.json"
    assert main([str(file), "--markdown"]) == 0
    text = capsys.readouterr().out
    (entry,) = entries(f"## An entry\n\n{text}")
    assert entry.rows and missing(entry, printed(tables_of(file))) == []


def test_entries_are_taken_apart() -> None:
    newest, older = entries(TEXT)
    assert (newest.title, newest.file, older.file) == ("Newest", "results/some.json", None)
    assert newest.rows == (("first", "0.86", "0.794 0.760"), ("second", "1,234", ""))


@pytest.mark.parametrize(
    ("first", "found"),
    [
        (("first", "0.859", "0.7938 0.7603 0.788"), True),
        (("first", "0.866", "0.7938 0.7603"), False),  # rounds to 0.87
        (("first", "0.859", "0.7603 0.7938"), False),  # another order
        (("first", "0.859", "0.7938"), False),
    ],
)
def test_every_number_of_a_row_has_to_be_printed_in_one_row(
    first: tuple[str, ...], found: bool
) -> None:
    newest, _ = entries(TEXT)
    lost = missing(newest, printed([table(first, ("second", "1234.2", ""))]))
    assert (lost == []) is found
    assert lost in ([], [newest.rows[0]])


def test_markdown_is_a_table_of_the_log() -> None:
    (entry,) = entries(f"## Title\n\n{markdown(table(('a', '1', '2'), ('b', '3', '')))}\n")
    assert entry.rows == (("a", "1", "2"), ("b", "3", ""))


def test_files_that_no_study_prints_are_refused() -> None:
    with pytest.raises(KeyError, match=r"no study prints other\.json"):
        tables_of(Path("other.json"))
