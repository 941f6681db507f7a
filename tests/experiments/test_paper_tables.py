"""The published tables: rows, HAT's file format, and what the command says about a miss."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from experiments import paper_tables
from experiments.paper_tables import (
    MISSED,
    STUDY,
    PaperTable,
    Row,
    cifar_rows,
    hat_rows,
    read_network,
    spread,
    spread_heads,
    wmt_rows,
)
from search_spaces.errors import DataError
from tests.search_spaces.test_hat_format import TITAN

TITAN_FILE = "HAT_wmt14ende_titanxp_126.0ms_bleu_27.9.yml"

ROW = Row(
    PaperTable("t", "classification", "true"), "r", 1_000_000, 1.0, 10**9, 1.0, 0, (0.01, 0.01)
)


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data folder with the one network above; the table asks for no other."""
    only = {TITAN_FILE: paper_tables.RELEASED[TITAN_FILE]}
    monkeypatch.setattr(paper_tables, "RELEASED", only)
    folder = tmp_path / "hat_architectures"
    folder.mkdir()
    (folder / TITAN_FILE).write_text(TITAN.replace("[-1, 1, 2]", "[-1, 1, 1]"), encoding="utf-8")
    return tmp_path


def test_hat_rows_are_reproduced(data: Path) -> None:
    rows = list(hat_rows(data / "hat_architectures"))
    assert [row.verdict for row in rows] == ["reproduced"] * 2
    assert rows[0].params == 40_972_800


def test_a_damaged_hat_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "net.yml"
    path.write_text(TITAN.replace("[4, 8, 8]", "[4]"), encoding="utf-8")
    with pytest.raises(DataError, match=r"net\.yml does not describe a network"):
        read_network(path)
    with pytest.raises(DataError, match="cannot read"):
        read_network(tmp_path / "nowhere.yml")


def test_cifar_rows_are_reproduced() -> None:
    rows = {row.name: row for row in cifar_rows()}
    assert len(rows) == 9
    for row in rows.values():
        assert row.verdict in ("reproduced", "reproduced with note")
        assert round(row.flops / 1e9, 2) == row.published_flops
        assert (row.verdict == "reproduced") == (row.extra_params == 0)


def test_true_flops_hold_linear_attention() -> None:
    expected = [8.52, 8.05, 8.67, 10.04, 10.66, 10.90, 10.11, 8.07, 7.91]
    found = [row.true_flops / 1e9 for row in cifar_rows()]
    assert found == pytest.approx(expected, rel=1e-3)


def test_wmt_rows_say_what_can_be_reproduced() -> None:
    held = [row.name for row in wmt_rows() if row.verdict == "params reproduced"]
    assert held == ["cosFormer*, qkv 512", "mFormer, qkv 512"]
    assert {row.verdict for row in wmt_rows()} == {"params reproduced", "not reproduced"}
    assert all(row.note for row in wmt_rows())
    millions = [round(row.params / 1e6, 2) for row in wmt_rows()]
    assert 73.50 in millions
    assert 96.59 in millions


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ({}, "reproduced"),
        ({"params": 1_020_000}, MISSED),
        ({"flops": 1_020_000_000}, MISSED),
        ({"params": 980_000, "extra_params": 20_000}, "reproduced with note"),
        ({"params": 980_000, "extra_params": 40_000}, MISSED),
        ({"params": 980_000, "tolerances": (None, 0.01)}, "FLOPs reproduced"),
        ({"flops": 0, "tolerances": (0.01, None)}, "params reproduced"),
        ({"flops": 0, "tolerances": (None, None)}, "not reproduced"),
    ],
)
def test_verdicts(changes: dict[str, object], verdict: str) -> None:
    assert replace(ROW, **changes).verdict == verdict  # type: ignore[arg-type]


def test_spreading_keeps_sums() -> None:
    assert spread(76, 12) == [7] * 4 + [6] * 8
    kinds = ["softmax", "linear", "softmax"]
    heads = spread_heads(10, kinds)  # type: ignore[arg-type]
    assert sum(heads) == 10
    assert heads[1] == 3


def test_command_prints_tables(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert STUDY.main(["--data", str(data)]) == 0
    printed = capsys.readouterr().out
    assert "Transformer-Big" in printed
    assert "not fitted" in printed
    assert MISSED not in printed


def test_command_fails_on_a_missed_row(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = data / "hat_architectures" / TITAN_FILE
    path.write_text(path.read_text().replace("[3072, 3072, 3072]", "[3072, 3072, 2048]"))
    assert STUDY.main(["--json", "--data", str(data)]) == 1
    assert json.loads(capsys.readouterr().out)["missed"] == ["Titan Xp 126.0 ms"]


def test_command_without_data_says_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert STUDY.main(["--data", str(tmp_path)]) == 2
    assert "--data" in capsys.readouterr().err
