"""The study of limits that hold: its verdict and its words, on made-up numbers."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from experiments import limits_hold
from experiments.limits_hold import Study, Winner, main

GOOD = Winner("a" * 12, limit=2.0, reported=1.9, fresh=2.05, loss=0.5)
BAD = replace(GOOD, fresh=2.07)


def result(*winners: Winner) -> Study:
    return Study(winners, (GOOD, BAD), (BAD,))


@pytest.mark.parametrize(
    ("winners", "searches", "code"), [((GOOD,), 1, 0), ((GOOD, BAD), 2, 1), ((GOOD,), 2, 0)]
)
def test_the_exit_code_tells_whether_limits_hold(
    winners: tuple[Winner, ...],
    searches: int,
    code: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(limits_hold, "study", lambda *_: (result(*winners), "some board"))
    assert main(["--searches", str(searches)]) == code
    text = capsys.readouterr().out
    assert f"{len(winners) - code} of {len(winners)} winners hold" in text
    assert ("found no network sure to hold" in text) is (len(winners) < searches)
    assert main(["--searches", str(searches), "--json"]) == code
    data = json.loads(capsys.readouterr().out)
    assert data["searches"] == searches and data["fronts"][1]["holds"] is False


def test_results_are_kept_of_twenty_searches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits_hold, "study", lambda *_: (result(GOOD), "some board"))
    monkeypatch.setattr(limits_hold, "RESULTS", tmp_path / "results.json")
    main(["--searches", "19"])
    assert not (tmp_path / "results.json").exists()
    main(["--searches", "20"])
    assert json.loads((tmp_path / "results.json").read_text())["winners"][0]["holds"]


def test_no_winner_at_all_is_no_success() -> None:
    assert not replace(result(GOOD), winners=()).holds


def test_a_space_there_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--space", "digit"]) == 2
    assert "no space named" in capsys.readouterr().err
