"""The study of limits that hold: its verdict and its words, on made-up numbers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from experiments.limits_hold import STUDY, Winner, met, show
from tests.support.study_cases import printed

GOOD = Winner("a" * 12, limit=2.0, reported=1.9, fresh=2.05, loss=0.5)
BAD = replace(GOOD, fresh=2.07)


def result(*winners: Winner, searches: int = 1) -> dict[str, Any]:
    groups = {"winners": winners, "fronts": (GOOD, BAD), "single": (BAD,)}
    named = {name: [one.to_json() for one in group] for name, group in groups.items()}
    return {"searches": searches, "device": "some board", "load_average": 0.1, **named}


@pytest.mark.parametrize(
    ("winners", "searches", "good"),
    [((GOOD,), 1, True), ((GOOD, BAD), 2, False), ((GOOD,), 2, True)],
)
def test_limits_hold_where_every_winner_does(
    winners: tuple[Winner, ...], searches: int, good: bool
) -> None:
    found = result(*winners, searches=searches)
    assert met(found) is good
    text = printed(show(found))
    assert f"{sum(one.holds for one in winners)} of {len(winners)} winners hold" in text
    assert ("found no network sure to hold" in text) is (len(winners) < searches)


def test_no_winner_at_all_is_no_success() -> None:
    nothing = result() | {"fronts": [], "single": []}
    assert not met(nothing)
    text = printed(show(nothing))
    assert "1 searches found no network sure to hold" in text
    assert "0 of 0 winners hold; the worst takes – limits" in text


def test_a_space_there_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    assert STUDY.main(["--space", "digit"]) == 2
    assert "no space named" in capsys.readouterr().err
