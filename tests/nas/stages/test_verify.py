"""The stage that verifies: what was interrupted ends in the same bytes."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from nas.stages import verify


def test_what_is_predicted_does_not_depend_on_what_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The last bits of a matrix product depend on the number of rows."""

    def predicted(run: Any, rows: Any) -> list[dict[str, float]]:
        return [{"quality": float(row[0]) + 1e-13 * len(rows)} for row in rows]

    monkeypatch.setattr(verify, "predicted_values", predicted)
    batch = [cast(Any, SimpleNamespace(id=str(n), row=np.array([[n]]))) for n in range(4)]
    run = cast(Any, None)
    whole = verify._predictions(run, batch, batch)
    assert verify._predictions(run, batch, batch[2:]) == whole[2:]
    assert verify._predictions(run, batch, []) == []


class TestWhatIsPicked:
    COSTS = np.array([10.0, 1.0, 5.0, 4.9, 4.0, 7.0, 2.0])
    POINTS = np.column_stack([1.0 / COSTS, COSTS])

    @pytest.mark.parametrize("how", ["sensible", "best", "latency_ms<=3", "0123456789ab"])
    def test_other_picks_leave_the_order(self, how: str) -> None:
        assert verify.saving_first(self.POINTS, how, 10.0).tolist() == [0, 1, 2, 3, 4, 5, 6]

    def test_those_of_which_a_saving_picks_come_first_the_best_first(self) -> None:
        assert verify.saving_first(self.POINTS, "2x", 10.0).tolist() == [2, 3, 4, 0, 1, 5, 6]
        assert verify.saving_first(self.POINTS, "1.4x", 10.0).tolist() == [5, 2, 3, 0, 1, 4, 6]

    def test_where_too_few_save_enough_the_others_follow(self) -> None:
        assert verify.saving_first(self.POINTS, "5x", 10.0).tolist() == [6, 1, 0, 2, 3, 4, 5]
        assert verify.saving_first(self.POINTS, "50x", 10.0).tolist() == [0, 1, 2, 3, 4, 5, 6]
        assert verify.saving_first(np.zeros((0, 2)), "2x", math.nan).tolist() == []

    def test_it_counts_from_another_network_than_the_best(self) -> None:
        assert verify.saving_first(self.POINTS, "2x", 8.0).tolist() == [4, 6, 1, 0, 2, 3, 5]

    def test_a_rate_is_to_be_so_many_times_higher(self) -> None:
        rates = np.array([1.0, 2.0, 1.9, 3.0])
        points = np.column_stack([rates, -rates])
        assert verify.saving_first(points, "2x", -1.0, maximise=True).tolist() == [1, 3, 0, 2]
