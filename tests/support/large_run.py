"""Runs with as many observations as anybody has, made up in a second."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from nas.run.folder import RunFolder
from search_spaces.variation import sample_distinct
from tests.support import run_fixture

MANY = 20_000


def large_run(path: Path, count: int = MANY, *, ended: bool = True, **values: Any) -> RunFolder:
    """A run of the digits with so many observations; see `run_fixture.finished_run`."""
    folder = run_fixture.finished_run(path, **values)
    observe(folder, count)
    if not ended:
        for name in ("pareto.json", "stages/front.json", "verification.jsonl"):
            (folder.path / name).unlink()
    return folder


def observe(folder: RunFolder, count: int) -> None:
    """Put so many made-up observations in the place of those that a run has."""
    space, rng = folder.spec.space, np.random.default_rng(7)
    rows = sample_distinct(space, rng, count)
    quality = run_fixture.losses(space, rows) + rng.normal(0, 0.005, len(rows))
    (folder.path / "observations.jsonl").unlink(missing_ok=True)
    folder.append(
        "observations.jsonl",
        [
            {"id": one.id, "architecture": one.to_json(), "quality": loss, "valid_accuracy": 0.9}
            for one, loss in zip(space.decode(rows), quality.tolist(), strict=True)
        ],
    )
