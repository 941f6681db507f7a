"""The study of timings beside noise: its noise, its marks, and what it prints."""

from __future__ import annotations

import itertools
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest

from experiments.timing_noise import (
    BURST_S,
    STUDY,
    Searched,
    Timing,
    met,
    numbers_of,
    schedule,
    show,
)
from tests.support.study_cases import printed

WINNER = Searched(2.0, "abc", 1.9, 2.05, 30.0, 4.0, 3)
TIMINGS = tuple(Timing(f"n{i}", "search 0", 1.05, False, 1.0) for i in range(99))


def study(*more: Timing, winner: Searched = WINNER) -> dict[str, Any]:
    return numbers_of("some device", (winner,), (*TIMINGS, *more), 20.0)


def test_bursts_and_pauses_are_as_long_as_asked_for_and_repeatable() -> None:
    one, two = (list(itertools.islice(schedule(3), 500)) for _ in range(2))
    assert one == two != list(itertools.islice(schedule(4), 500))
    low, high = BURST_S
    assert all(low <= seconds <= high for pair in one for seconds in pair)
    assert min(burst for _, burst in one) < 0.2 and max(burst for _, burst in one) > 15


def test_the_marks_are_one_in_a_hundred_and_every_winner() -> None:
    assert met(study()) and study()["share_off"] == 0
    off = Timing("odd", "held 0", 1.2, False, 1.0)
    assert met(study(off))  # one of a hundred
    assert not met(study(off, off))
    assert met(study(replace(off, doubtful=True), replace(off, doubtful=True)))
    assert not met(study(winner=replace(WINNER, quiet_ms=2.07)))
    assert not met(study(winner=replace(WINNER, winner="", error="none is sure")))


def test_what_is_printed() -> None:
    text = printed(show(study(Timing("odd", "held 0", 1.2, False, 1.0))))
    assert "100 timings were accepted, 1 of them more than 10 % from the quiet value: 1.00%" in text
    assert "1 of 1 winners are within their limit" in text and "1.025" in text
    assert "accepted / quiet is 1.050 in the median, 1.050 to 1.050 in 90 %" in text
    assert "never quiet" not in text
    first = ([WINNER], [Timing("odd", "first 0", 1.3, False, 1.0)])
    alone = printed(show(numbers_of("some device", (WINNER,), TIMINGS, 20.0, first)))
    assert "never quiet 1 of 1 winners are within their limit plus 3 %, and 100.0% of 1 " in alone
    none = numbers_of("some device", (WINNER,), (), 20.0)
    assert "0 timings were accepted" in printed(show(none)) and not met(none)
    error = replace(WINNER, error="none is sure")
    assert "no winner: none is sure" in printed(show(study(winner=error)))


def test_a_burner_ends_with_who_started_it() -> None:
    command = [sys.executable, "-m", "experiments.timing_noise", "--burn", "0"]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as burner:
        assert burner.stdin is not None
        burner.stdin.close()  # as the end of the process that holds it does
        assert burner.wait() == 0


@pytest.mark.slow
def test_the_study_runs(tmp_path: object, capsys: pytest.CaptureFixture[str]) -> None:
    STUDY.main(["--searches", "1", "--profiles", "1", "--first", "1", "--preset", "smoke"])
    assert "timings were accepted" in capsys.readouterr().out
