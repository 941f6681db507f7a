"""The stage that verifies: what was interrupted ends in the same bytes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from nas.objectives import OBJECTIVES
from nas.objectives.latency_limits import Timed
from nas.run.events import Note
from nas.run.layout import HOLDING_FILE, VERIFICATION_FILE
from nas.stages import verify
from search_spaces.measurement import Measurement


class Journals:
    """The part of a run folder that is written while networks are verified."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lines: dict[str, list[Any]] = {VERIFICATION_FILE: [], HOLDING_FILE: []}

    def read_journal(self, name: str) -> list[Any]:
        return list(self.lines[name])

    def append(self, name: str, lines: list[Any]) -> None:
        self.lines[name] += lines


def verifying(monkeypatch: pytest.MonkeyPatch, path: Path, **spec: Any) -> Any:
    """A run that wants four of six networks, of which "0" breaks the limit, and "1" in sessions."""

    def predicted(run: Any, rows: Any) -> list[dict[str, float]]:
        return [{"quality": float(row[0]) + 1e-13 * len(rows)} for row in rows]

    def broken(run: Any) -> list[str]:
        return ["0", *run.folder.lines[HOLDING_FILE]]

    def confirm(run: Any) -> Iterator[Any]:
        run.folder.lines[HOLDING_FILE] = ["1"]
        yield from ()

    def verified(run: Any, candidates: Any, predicted: Any) -> Iterator[Any]:
        for one, values in zip(candidates, predicted, strict=True):
            line = {"id": one.id, "predicted": values}
            run.folder.append(VERIFICATION_FILE, [line])
            yield line, None

    patches = {
        "predicted_values": predicted,
        "_candidates": lambda run: [
            cast(Any, SimpleNamespace(id=str(n), row=np.array([[n]]))) for n in range(6)
        ],
        "_num_kept": lambda run, lines: sum(line["id"] not in broken(run) for line in lines),
        "_confirm_front": confirm,
        "_verified": verified,
        "_check_doubts": lambda run: None,
        "journal_entry": lambda run, line: line["id"],
        "too_many_failures": lambda *_: None,
        "abort_stage": lambda *_: None,
    }
    for name, patch in patches.items():
        monkeypatch.setattr(verify, name, patch)
    given = {"pick": "knee", "objectives": ("quality", "flops"), "trains_alone": False, **spec}
    budget = SimpleNamespace(verified=4)
    asked = SimpleNamespace(budget=budget, objective=OBJECTIVES.__getitem__, **given)
    return SimpleNamespace(spec=asked, folder=Journals(path))


def test_a_kill_behind_the_sessions_ends_in_the_same_bits(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The last bits of a matrix product depend on the number of rows.

    What the sessions said is known from the beginning then, so that others are missing together.
    """
    run = verifying(monkeypatch, tmp_path, needs_latency=False)
    list(verify.work(run))
    whole = run.folder.read_journal(VERIFICATION_FILE)
    assert [line["id"] for line in whole] == list("012345")
    for left in (1, 5):
        run.folder.lines[VERIFICATION_FILE] = whole[:left]
        list(verify.work(run))
        assert run.folder.read_journal(VERIFICATION_FILE) == whole


@pytest.mark.parametrize("needs", [True, False])
def test_predictions_that_are_off_are_told_of_times_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, needs: bool
) -> None:
    monkeypatch.setattr(verify, "predictions_off", lambda entries: f"off: {''.join(entries)}")
    run = verifying(monkeypatch, tmp_path, needs_latency=needs)
    told = [event.message for event in verify.work(run) if isinstance(event, Note)]
    assert told == ["off: 012345"] * needs


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
    told = OBJECTIVES["tokens_per_s"].minimised
    rates = [candidate(n, rate, told(rate)) for n, rate in enumerate((1.0, 2.0, 1.9, 3.0))]
    assert ids(verify.best_savers(rates, told(1.0), 2.0)) == "13"


class TestAiming:
    """Predictions that promise 4 % too much, and what is measured beside them."""

    COSTS = (10.0, 5.0, 4.95, 4.9, 4.85, 4.8, 4.7, 4.6, 4.5, 9.0)

    def aimed(
        self,
        monkeypatch: pytest.MonkeyPatch,
        measured: int,
        pick: str = "2x",
        wanted: int = 12,
    ) -> str:
        def told(run: Any, lines: Any, candidates: Any, cost: Any) -> Iterable[Any]:
            return [
                replace(one, cost=one.cost * (1.0 if one.id == "0" else 1.04)) for one in candidates
            ]

        monkeypatch.setattr(verify, "_costs_measured", told)
        spec = SimpleNamespace(
            pick=pick, objectives=("quality", "flops"), objective=OBJECTIVES.__getitem__
        )
        made = [candidate(number, 1 / cost, cost) for number, cost in enumerate(self.COSTS)]
        run = cast(Any, SimpleNamespace(spec=spec))
        return ids(verify._aimed(run, made, {}, measured, wanted))

    def test_what_it_counts_from_comes_first_with_the_best_by_prediction(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert self.aimed(monkeypatch, 0) == "0123"

    def test_what_was_measured_corrects_the_others(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert self.aimed(monkeypatch, 4) == "567"  # 4.8 is 4.99 really

    def test_it_ends_with_enough_of_them_and_with_half_of_all(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert self.aimed(monkeypatch, 8, wanted=40) == ""
        assert self.aimed(monkeypatch, 7, wanted=12) == ""
        assert self.aimed(monkeypatch, 7, wanted=14) == "78"

    @pytest.mark.parametrize("pick", ["sensible", "best", "latency_ms<=3", "0123456789ab"])
    def test_other_picks_leave_the_order(self, pick: str, monkeypatch: pytest.MonkeyPatch) -> None:
        assert self.aimed(monkeypatch, 0, pick) == self.aimed(monkeypatch, 4, pick) == ""
