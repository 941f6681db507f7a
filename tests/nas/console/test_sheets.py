"""No table cuts an id, a number or a name, however narrow the terminal is."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.table import Table
from typer.testing import CliRunner

from nas.console.app import app
from nas.console.commands.picking import step_table
from nas.console.commands.settings import settings_table
from nas.console.formatting import main_score
from nas.console.output import out
from nas.console.tables import (
    WrappingText,
    front_table,
    gene_table,
    retrained_table,
    stage_table,
    table,
)
from nas.objectives import objective
from nas.request.presets import setting_names
from nas.search.front import Front, FrontEntry, build_front
from search_spaces.architecture import (
    Architecture,
    DecoderLayer,
    DecoderStack,
    EncoderLayer,
    EncoderStack,
)
from search_spaces.loading import load_space, space_names
from tests.support import cli_fakes

KINDS = ("softmax", "linear", "omni")
WIDTHS = pytest.mark.parametrize("width", [60, 80, 100])
LONG_RUN = "a-run-with-a-name-that-is-longer-than-any-terminal-of-sixty-characters"


def network(dim: int) -> Architecture:
    """Six layers below six, each of another kind than the one before."""
    own = [EncoderLayer(KINDS[layer % 3], 1, dim) for layer in range(6)]
    below = [DecoderLayer(KINDS[n % 3], 1, dim, KINDS[n % 2], 1, 1) for n in range(6)]
    return Architecture(EncoderStack(dim, tuple(own)), DecoderStack(dim, tuple(below)))


def front() -> Front:
    """Three objectives, and numbers as long as they get."""
    entries = []
    for number, dim in enumerate((16, 32, 64), start=1):
        costs = {"latency_ms": 12345.6 * number, "flops": 8.88e11 * number}
        quality = {"quality": 112.3456 / number, "valid_loss": 4.5678, "valid_accuracy": 0.2345}
        measured = {**costs, **quality, "params": 9.87e6, "valid_bleu": 20.0}
        predicted = {"quality": 119.8765 / number, "latency_ms": 23456.7}
        entries.append(FrontEntry(network(dim).id, network(dim), measured, predicted))
    goals = [objective(name, "bleu") for name in ("quality", "latency_ms", "flops")]
    return build_front(entries, goals, (200.0, 1e6, 1e13), {})


def retrained() -> list[dict[str, Any]]:
    scores = {"test_perplexity": 1234.567, "valid_perplexity": 1234.565, "valid_loss": 7.1185}
    return [{"id": one.id, **scores, "params": 9.87e6, "epochs": 500} for one in front().entries]


IDS = [entry.id for entry in front().entries]
TABLES: dict[str, tuple[Callable[[], Table], list[str]]] = {
    "front": (
        lambda: front_table(front(), None),
        [*IDS, "112.3456", "56.1728", "37.4485", "12346", "24691", "2.66 T", "network"],
    ),
    "steps": (
        lambda: step_table(front(), IDS[0]),
        [*IDS, "112.3456", "-56.1728", "+12345.60", "+888 G", "best", "cheapest"],
    ),
    "retrained": (lambda: retrained_table(retrained()), [*IDS, "perplexity 1234.57", "1234.57"]),
    "settings": (settings_table, [*setting_names(), "sandwich"]),
    "genes": (lambda: gene_table(load_space("wmt14")), ["decoder.cross_attention", "softmax"]),
    "stages": (
        lambda: stage_table([(f"retrain-{IDS[0]}", "done", 8e3, 1e4)]),
        ["2 h 13 min", "2 h 46 min"],
    ),
}


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, width: int) -> int:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", str(width))
    cli_fakes.install(monkeypatch)
    return width


def words_of(text: str) -> set[str]:
    """What stands between two or more spaces or at the ends of lines, and each word of it."""
    cells = [cell.strip() for line in text.splitlines() for cell in re.split(r"  +", line)]
    return {*cells, *text.split()}


@WIDTHS
@pytest.mark.parametrize("name", TABLES)
def test_a_table_is_never_cut(name: str, narrow: int, capsys: pytest.CaptureFixture[str]) -> None:
    make, whole = TABLES[name]
    out().print(make())
    shown = capsys.readouterr().out
    assert "…" not in shown and [word for word in whole if word not in words_of(shown)] == []
    lines = [line for line in shown.splitlines() if line.strip()]
    # What has nothing left to leave out is wider than the terminal.
    assert max(map(len, lines)) <= narrow or (name == "steps" and narrow < 100)


@WIDTHS
def test_the_list_of_spaces_is_never_cut(narrow: int) -> None:
    shown = CliRunner().invoke(app, ["space", "list"]).stdout
    assert set(space_names()) <= words_of(shown) and "…" not in shown
    assert max(map(len, shown.splitlines())) <= narrow
    assert {"omnidirectional", "expressions"} <= words_of(shown)


@WIDTHS
def test_the_list_of_runs_is_never_cut(narrow: int) -> None:
    run = CliRunner().invoke
    for name in ("short", LONG_RUN):
        run(app, ["search", "--space", "digits", "--out", f"runs/{name}"])
    run(app, ["retrain", "runs/short", "--pick", "front"])
    shown = run(app, ["runs"]).stdout
    wanted = {f"runs/{LONG_RUN}", "runs/short", "accuracy 0.9750", "accuracy 0.9750 +2"}
    assert wanted <= words_of(shown) and "…" not in shown
    assert "a wider terminal also shows: preset, space, front" in shown


@pytest.mark.parametrize("width", [60])
def test_what_is_left_out_is_named(narrow: int, capsys: pytest.CaptureFixture[str]) -> None:
    out().print(front_table(front(), None))
    shown = capsys.readouterr().out
    assert "a wider terminal also shows: pred. ms, predicted, params" in " ".join(shown.split())


@pytest.mark.parametrize("width", [18])
def test_headings_fold_before_texts(narrow: int, capsys: pytest.CaptureFixture[str]) -> None:
    made = table("", ["tokens right", "says"], right=["tokens right"])
    made.add_row("0.5", "one two")
    out().print(made)
    shown = capsys.readouterr().out
    assert "tokens right" not in shown and {"tokens", "right", "one two"} <= words_of(shown)


@pytest.mark.parametrize("width", [24])
def test_a_network_folds_after_strokes(narrow: int, capsys: pytest.CaptureFixture[str]) -> None:
    made = table("", ["network"])
    made.add_row(WrappingText("L3 d48 · (softmax+linear)/omni×2"))
    out().print(made)
    lines = [line.strip() for line in capsys.readouterr().out.splitlines() if line.strip()]
    assert lines[2:] == ["L3 d48 · (softmax+", "linear)/omni×2"]


@pytest.mark.parametrize(
    ("values", "picked", "told"),
    [
        ([], None, "–"),
        ([0.5], "0", "accuracy 0.5000"),
        ([0.5, 0.75, 0.25], "2", "accuracy 0.2500 +2"),
        ([0.5, 0.75, 0.25], "elsewhere", "accuracy 0.7500 +2"),
    ],
)
def test_the_score_of_a_run(values: list[float], picked: str | None, told: str) -> None:
    scores = [
        {"id": str(number), "score": "accuracy", "value": value}
        for number, value in enumerate(values)
    ]
    assert main_score(scores, picked) == told


def test_the_best_loss_is_the_lowest() -> None:
    scores = [{"id": str(n), "score": "loss", "value": float(n)} for n in (2, 1, 3)]
    assert main_score(scores, None) == "loss 1.0000 +2"
