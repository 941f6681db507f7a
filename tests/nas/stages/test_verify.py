"""The stage that verifies: what was interrupted ends in the same bytes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from nas.objectives import OBJECTIVES
from nas.objectives.latency_limits import Timed
from nas.stages import verify
from search_spaces.measurement import Measurement


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


def test_all_times_are_in_the_unit_that_confirming_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    def ms(value: float) -> Measurement:
        return Measurement("latency_ms", value, value / 8)

    meter = SimpleNamespace(
        known=lambda network: True,
        measure=lambda networks: Timed((ms(8.0), ms(40.0), ms(16.0))),
        confirm=lambda networks: Timed((ms(15.0),), shorter=0.5),
    )
    monkeypatch.setattr(verify, "run_meter", lambda run, cost: meter)
    std = OBJECTIVES["latency_ms"].std_name
    predicted = [{"latency_ms": value, std: 0.1} for value in (8.0, 16.0, 16.0)]
    networks: list[Any] = [SimpleNamespace(id=str(number)) for number in range(3)]
    values, _, notes = verify._times(cast(Any, None), "latency_ms", networks, predicted)
    assert list(values) == [ms(4.0), ms(15.0), ms(8.0)]
    assert any("it needs 0.50 of that" in note.message for note in notes)


def candidate(number: int, quality: float, cost: float) -> verify.Candidate:
    return verify.Candidate(str(number), cast(Any, None), np.zeros((1, 0), np.int16), quality, cost)


COSTS = (10.0, 1.0, 5.0, 4.9, 4.0, 7.0, 2.0)
CANDIDATES = [candidate(number, 1 / cost, cost) for number, cost in enumerate(COSTS)]


def ids(candidates: Iterable[verify.Candidate]) -> str:
    return "".join(one.id for one in candidates)


@pytest.mark.parametrize(
    ("whole", "times", "share", "best"),
    [
        (10.0, 2.0, 1.0, "234"),
        (10.0, 1.4, 1.0, "523"),
        (10.0, 5.0, 1.0, "61"),
        (10.0, 50.0, 1.0, ""),
        (8.0, 2.0, 1.0, "461"),  # counted from another network than the best
        (10.0, 2.0, 0.99, "346"),  # what seems to be half is a little more
        (10.0, 2.0, 1.1, "234"),
    ],
)
def test_those_of_which_a_saving_picks_the_best_first(
    whole: float, times: float, share: float, best: str
) -> None:
    assert ids(verify.best_savers(CANDIDATES, whole, times, share)) == best


def test_a_rate_is_to_be_so_many_times_higher() -> None:
    rates = [candidate(n, rate, -rate) for n, rate in enumerate((1.0, 2.0, 1.9, 3.0))]
    assert ids(verify.best_savers(rates, -1.0, 2.0)) == "13"


class TestAiming:
    """Predictions that promise 4 % too much, and what is measured beside them."""

    COSTS = (10.0, 5.0, 4.95, 4.9, 4.85, 4.8, 4.7, 4.6, 4.5, 9.0)

    def aimed(
        self,
        monkeypatch: pytest.MonkeyPatch,
        measured: int,
        pick: str = "2x",
        wanted: int = 12,
        costs: tuple[float, ...] = COSTS,
        off: float = 1.04,
    ) -> str:
        def told(run: Any, lines: Any, candidates: Any, cost: Any) -> Iterable[Any]:
            return [
                replace(one, cost=one.cost * (1.0 if one.id == "0" else off)) for one in candidates
            ]

        monkeypatch.setattr(verify, "_costs_measured", told)
        spec = SimpleNamespace(
            pick=pick, objectives=("quality", "flops"), objective=OBJECTIVES.__getitem__
        )
        made = [candidate(number, 1 / cost, cost) for number, cost in enumerate(costs)]
        run = cast(Any, SimpleNamespace(spec=spec))
        return ids(verify._aimed(run, made, {}, measured, wanted))

    def test_what_it_counts_from_comes_first_with_the_best_by_prediction(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert self.aimed(monkeypatch, 0) == "0123"

    def test_what_was_measured_corrects_the_others(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert self.aimed(monkeypatch, 4) == "567"  # 4.8 is 4.99 really

    def test_rates_that_are_promised_are_corrected_the_other_way(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        rates = (-10.0, -20.0, -20.2, -20.4, -20.6, -20.8, -21.0, -22.0, -23.0)
        assert self.aimed(monkeypatch, 4, costs=rates, off=0.96) == "678"  # 20.8 is 19.97 really

    def test_it_ends_with_enough_of_them_and_with_half_of_all(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert self.aimed(monkeypatch, 8, wanted=40) == ""
        assert self.aimed(monkeypatch, 7, wanted=12) == ""
        assert self.aimed(monkeypatch, 7, wanted=14) == "78"

    @pytest.mark.parametrize("pick", ["sensible", "best", "latency_ms<=3", "0123456789ab"])
    def test_other_picks_leave_the_order(self, pick: str, monkeypatch: pytest.MonkeyPatch) -> None:
        assert self.aimed(monkeypatch, 0, pick) == self.aimed(monkeypatch, 4, pick) == ""
