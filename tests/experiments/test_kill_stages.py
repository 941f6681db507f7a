"""The study that kills a search in every stage: which stages those are, and what success is."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from experiments.kill_stages import STUDY, run_to_end, stages_of
from search_spaces.errors import NasError
from tests.support.pipeline_cases import tiny


def test_every_stage_that_a_search_has_is_killed(tmp_path: Path) -> None:
    run = tiny(tmp_path / "run", baseline="plain")
    known = "declare supernet observe rank prune evolve verify baseline front exchange"
    assert stages_of(run.path) == [*known.split(), "retrain-", "report"]


@pytest.mark.parametrize(
    ("change", "met"),
    [
        ({}, True),
        ({"equal": False}, False),
        ({"killed": {"rank": True, "prune": False}}, False),
        ({"repeated": 1}, False),
    ],
)
def test_what_counts_as_success(change: dict[str, object], met: bool) -> None:
    found = {"equal": True, "killed": {"rank": True}, "evaluations": 9, "repeated": 0}
    assert STUDY.met(found | change) is met


def test_a_search_that_fails_says_why(capfd: pytest.CaptureFixture[str]) -> None:
    said = "import sys; print('said'); print('a warning\\nerror: no space', file=sys.stderr)"
    run_to_end([sys.executable, "-c", said])
    assert capfd.readouterr() == ("", "")
    with pytest.raises(NasError, match=r"^the search ended with exit code 2: no space$"):
        run_to_end([sys.executable, "-c", f"{said}; sys.exit(2)"])
