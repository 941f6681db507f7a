"""Conditions on measured values: their forms, and what is refused in which words."""

from __future__ import annotations

import pytest

from nas.conditions import Condition, joined, read_conditions
from search_spaces.errors import UnknownNameError, UsageError


@pytest.mark.parametrize("text", ["params<=2e5", "params=200000", " params <= 2e5 ", "params≤2e5"])
def test_one_condition(text: str) -> None:
    assert read_conditions(text) == (Condition("params", 2e5),)


def test_several_and_scores_of_which_more_is_better() -> None:
    read = read_conditions("latency_ms<=12,valid_accuracy>=0.9")
    assert joined(read) == "latency_ms ≤ 12 and valid_accuracy ≥ 0.9"
    assert read_conditions("valid_accuracy=0.9") == read[1:]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("params<=", "NAME<=NUMBER"),
        ("<=5", "NAME<=NUMBER"),
        ("params<=many", "NAME<=NUMBER"),
        ("params<=nan", "NAME<=NUMBER"),
        ("params<=1,", "NAME<=NUMBER"),
        ("params>=1e5", "less is better: ask for params≤100000"),
        ("valid_accuracy<=0.5", "more is better"),
        ("params<=1,params<=2", "two conditions"),
    ],
)
def test_what_makes_no_sense_is_refused(text: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        read_conditions(text)


def test_what_is_not_measured_is_refused_with_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="did you mean latency_ms"):
        read_conditions("latency<=3")


def test_how_far_a_condition_is_missed() -> None:
    assert Condition("params", 100).missed_by({"params": 150}) == 0.5
    assert Condition("params", 100).missed_by({"params": 100}) == 0
    assert Condition("valid_accuracy", 0.8).missed_by({"valid_accuracy": 0.6}) == pytest.approx(
        0.25
    )
    assert Condition("valid_accuracy", 0.8).missed_by({"valid_accuracy": 0.9}) == 0
