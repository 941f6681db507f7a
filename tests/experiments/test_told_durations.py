"""The study of what searches tell before they begin: its marks, its table, and a whole one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from experiments import told_durations
from experiments.own_data import duration_cells, times_taken
from experiments.told_durations import STUDY


def numbers(*pairs: tuple[float, float]) -> dict[str, Any]:
    rows = [
        {"space": "digits", "data": "digits", "stages": {"supernet": pair}, "minutes_taken": 1.5}
        for pair in pairs
    ]
    return {"preset": "smoke", "rows": rows}


def test_as_long_as_told_is_within_one_and_a_half_times_both_ways() -> None:
    assert STUDY.met(numbers((60.0, 90.0), (60.0, 40.0)))
    assert not STUDY.met(numbers((60.0, 60.0), (60.0, 91.0)))
    assert not STUDY.met(numbers((60.0, 39.0)))


def test_what_was_not_told_is_not_met_and_printed_as_nothing() -> None:
    assert times_taken({}) is None and not STUDY.met({"rows": [{"stages": {}}]})
    assert set(duration_cells({})) == {"–"}


def test_a_row_for_each_space() -> None:
    (table,) = STUDY.show(numbers((60.0, 90.0)))
    cells = {str(one.header): list(one.cells) for one in table.columns}  # type: ignore[union-attr]
    assert cells["ratio"] == ["1.50"] and cells["most off"] == ["supernet: 60 s, took 90 s"]
    assert cells["min told"] == ["1.0"] and cells["taken"] == ["1.5"]


def test_spaces_whose_data_are_not_built_in_get_generated_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[str]] = []

    class StoppedError(Exception):
        pass

    def searched(words: list[str], run: Path) -> Path:
        asked.append(words)
        raise StoppedError

    monkeypatch.setattr(told_durations, "searched", searched)
    for name in ("digits", "recall", "multi30k"):
        options = STUDY.parser.parse_args(["--space", name, "--work", str(tmp_path)])
        with pytest.raises(StoppedError):
            STUDY.measure(options)
    assert [words[-2:] == ["--data", "synthetic"] for words in asked] == [False, False, True]


@pytest.mark.slow
def test_a_whole_study(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--space", "digits", "--objectives", "quality,flops", "--work", str(tmp_path)]
    assert STUDY.main(words) in (0, 1)  # the machine may be busy
    assert "digits" in capsys.readouterr().out
