"""The pace at which this machine trains networks is that of trainings."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from nas.request.fitted_space import Pace, fit_space
from nas.run.pace import measure_pace
from search_spaces.errors import DataError
from supernet.data.manifest import read_manifest
from tests.support.prepare_cases import pictures, run

PACE = Pace(0.1, 0.1, 0.001, 4, 1)


@pytest.fixture
def prepared(tmp_path: Path) -> Path:
    pixels, labels = pictures(120)
    np.savez(tmp_path / "a.npz", x_train=pixels, y_train=labels)
    run(tmp_path, "classification", source=(tmp_path / "a.npz",), out=tmp_path / "pets")
    return tmp_path / "pets"


def test_a_pace_is_found_and_leaves_the_threads_as_they_were(prepared: Path) -> None:
    before = torch.get_num_threads()
    seen = []

    def measure(space: object) -> object:
        seen.append(measure_pace(space, prepared, "cpu"))  # type: ignore[arg-type]
        return seen[-1]

    made = fit_space(read_manifest(prepared), "pets", 0.1, measure)  # type: ignore[arg-type]
    (pace,) = seen
    assert made.size == "tiny" and torch.get_num_threads() == before
    assert pace.update_s > 0 and pace.largest_update_s > 0 and pace.example_s > 0
    batches = -(-read_manifest(prepared).splits["train"].examples // 32)
    assert pace.pass_updates in (batches, batches - 1)


def test_data_that_are_gone_have_no_pace(prepared: Path) -> None:
    space = fit_space(read_manifest(prepared), "pets", 0.1, lambda _: PACE).space
    for file in prepared.glob("train*"):
        file.unlink()
    with pytest.raises(DataError, match="prepare the data anew"):
        measure_pace(space, prepared, "cpu")
