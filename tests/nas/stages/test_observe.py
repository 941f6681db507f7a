"""The searcher of a run: what its settings follow from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from nas.stages.base import Run
from nas.stages.observe import build_searcher
from tests.support.pipeline_cases import finished_once


def test_rounds_prune_by_the_accuracy_that_the_budget_asks_for(tmp_path: Path) -> None:
    run = Run(finished_once(tmp_path / "run"))
    searcher: Any = build_searcher(run, run.unobserved_costs.score)
    asked = run.spec.budget.min_pairwise_accuracy
    assert searcher.settings.pruning.min_pairwise_accuracy == asked
