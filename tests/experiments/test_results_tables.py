"""Each log entry that names its results can be printed from them."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

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
from search_spaces.errors import UnknownNameError

HOME = Path(experiments.__file__).parent
ENTRIES = [entry for entry in entries((HOME / "LOG.md").read_text("utf-8")) if entry.file]
# Of the rows of RESULTS.md that name a study and all that it is given.
COMMANDS = [
    command
    for command in re.findall(
        r"^\|(?:[^|]*\|){3} `([^`]+)`(?! with the settings of the log)",
        (HOME / "RESULTS.md").read_text("utf-8"),
        flags=re.MULTILINE,
    )
    if command.split()[0] not in ("nas", "make")
]
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


def test_files_that_no_study_prints_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UnknownNameError, match=r"no study prints other\.json"):
        tables_of(Path("other.json"))
    for name, sentence in (("other.json", "no study prints"), ("scaling.json", "no study prints")):
        assert main([name]) == 2
        assert sentence in capsys.readouterr().err
    assert main(["search_efficiency_none.json"]) == 2
    assert capsys.readouterr().err == "error: no such file: search_efficiency_none.json\n"


def test_there_are_commands_among_the_results() -> None:
    assert len(COMMANDS) > 30


@pytest.mark.parametrize("command", sorted(set(COMMANDS)))
def test_commands_of_the_results_are_those_of_their_studies(command: str) -> None:
    name, *words = shlex.split(command)
    module: Any = pytest.importorskip(f"experiments.{name}", reason="the extra export")
    assert not module.STUDY.parser.parse_args(words).json


@pytest.mark.parametrize(
    "name",
    [
        "attention_study",
        "decoder_linear",
        "hw_gpt_bench",
        "hybrid_study",
        "rank_fidelity",
        "retrained_twins",
        "search_efficiency",
        "service_load",
    ],
)
def test_no_process_is_refused_by_every_study(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    module: Any = pytest.importorskip(f"experiments.{name}")
    with pytest.raises(SystemExit, match="2"):
        module.STUDY.main(["--workers", "0"])
    assert "give a whole number of 1 or more" in capsys.readouterr().err
