"""The study that kills a search in every stage: which stages those are, and what success is."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments.kill_stages import STUDY, stages_of
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
