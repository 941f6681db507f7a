"""The speed study's verdicts, on made-up numbers: how fast this machine is, is no test."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from experiments import operator_speed, speed
from experiments.network_speed import Row, StepRatio, largest_network, step_ratio
from experiments.operator_speed import (
    KINDS,
    computed_crossing,
    crossed,
    crossings,
    near,
    operations_crossing,
)
from experiments.speed import EvolutionSpeed, evolution_speed, rankers
from search_spaces.architecture import AttentionKind, EncoderLayer
from search_spaces.loading import load_space
from supernet.plan import encoder_of
from tests.support.study_cases import printed
from tests.support.supernet_cases import IMAGES, space_of

STEP = StepRatio("softmax", 64, 1, 99, 11.0, 10.0, 1.1, 1.0, 1.2)
EVOLUTION = EvolutionSpeed("pairwise linear", "quality,flops", 38, 3936, 20_000.0)
ROWS = (
    Row("beams", 1.0, at_least=1.0),
    Row("growth", 1.1, at_most=1.1),
    Row("softmax", 9.0),
)
FAST = ((STEP,), (EVOLUTION,), ROWS)
LATE = ((STEP,), (EVOLUTION,), (*ROWS, Row("growth", 1.11, at_most=1.1)))
FEW = ((STEP,), (EVOLUTION,), (*ROWS, Row("beams", 0.99, at_least=1.0)))
DEAR = ((STEP, replace(STEP, ratio=1.11)), (EVOLUTION,), ROWS)
SLOW = ((STEP,), (EVOLUTION, replace(EVOLUTION, per_second=19_999.0)), ROWS)


@pytest.mark.parametrize(
    ("measured", "good"),
    [(FAST, True), (DEAR, False), (SLOW, False), (LATE, False), (FEW, False)],
)
def test_every_row_keeps_its_bound(measured: Any, good: bool) -> None:
    found = {"space": "digits", "cores": 2, "threads": 1, **speed.numbers_of(*measured)}
    assert speed.STUDY.met(found) is good
    text = printed(speed.show(found))
    assert ("DOES NOT HOLD" in text) is not good and "1.10" in text and "20,000" in text


def test_an_unknown_space_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        speed.STUDY.main(["--space", "digit"])
    assert "digits" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["softmax", "linear"])
def test_the_largest_network_of_a_kind(kind: AttentionKind) -> None:
    encoder = encoder_of(largest_network(space_of(IMAGES), kind))
    assert encoder.layers == (EncoderLayer(kind, 4, 16),) * 4 and encoder.embed_dim == 16


def test_both_steps_are_timed() -> None:
    result = step_ratio(space_of(IMAGES), "softmax", seconds=0.0)
    assert result.rounds == 15 and result.low <= result.ratio <= result.high
    assert result.elastic_ms > 0 < result.plain_ms


@pytest.mark.parametrize("objectives", [("quality", "flops"), ("quality", "latency_ms")])
def test_evolution_is_timed_as_a_search_runs_it(objectives: tuple[str, ...]) -> None:
    result = evolution_speed(load_space("digits"), rankers()[0], objectives, population=8)
    assert result.candidates == 8 * 41 and result.per_second > 0
    assert result.objectives == ",".join(objectives)


class TestOperators:
    def test_all_are_timed_and_shown(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(operator_speed, "ROUNDS", 1)
        monkeypatch.setattr(operator_speed, "TOKEN_CALLS", 1)
        monkeypatch.setattr(operator_speed, "PASSES", 1)
        monkeypatch.setattr(operator_speed.importlib.util, "find_spec", lambda _: None)
        numbers = operator_speed.operator_numbers((2, 3))
        assert {one["operator"] for one in numbers["times"]} == {*KINDS, operator_speed.RULE}
        assert all(one["forward_ms"] > 0 < one["token_ms"] for one in numbers["times"])
        measured = {"space": "digits", "cores": 2, "threads": 1, **speed.numbers_of(*FAST)}
        text = printed(speed.show({**measured, "operators": numbers}))
        assert "linear:gated_delta" in text and "Length from which" in text
        assert "Length from which" not in printed(speed.show(measured))

    def test_a_crossing_is_where_the_ratio_is_one(self) -> None:
        lengths = (64, 128, 256, 512)
        assert crossed(lengths, [200 / length for length in lengths]) == pytest.approx(200)
        # The same where each is disturbed otherwise, and none where it is beyond, or never.
        disturbed = [
            200 / length * by for length, by in zip(lengths, (1.1, 0.9, 0.9, 1.1), strict=True)
        ]
        assert crossed(lengths, disturbed) == pytest.approx(200, rel=0.01)
        assert crossed(lengths, [2000 / length for length in lengths]) == pytest.approx(2000)
        assert crossed(lengths, [length / 200 for length in lengths]) == math.inf
        assert crossed(lengths, [length / 1000 for length in lengths]) == 0

    @pytest.mark.parametrize(
        ("measured", "median"),
        [((300.0, math.inf, 200.0), 300.0), ((0.0, 20.0, 300.0), None), ((math.inf,) * 3, None)],
    )
    def test_a_crossing_is_the_median_of_passes(
        self, measured: tuple[float, ...], median: float | None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """None where that is not about where it should be."""
        passes = iter(measured)
        monkeypatch.setattr(operator_speed, "PASSES", 3)
        monkeypatch.setattr(operator_speed, "KINDS", ("softmax", "linear:elu"))
        monkeypatch.setattr(operator_speed, "_crossed", lambda *_: next(passes))
        (found,) = crossings()
        assert (found.measured, found.computed) == (median, 2 * 65 + 64 + 65)

    def test_lengths_are_whole_chunks(self) -> None:
        assert near(259) == [192, 256, 320, 384, 448, 512]
        assert near(10) == [64]

    def test_it_is_compared_with_that_of_the_operations(self) -> None:
        # Two products with D by D + 1 numbers, against half of two with N.
        assert operations_crossing("linear:elu") == 2 * 65
        assert operations_crossing("linear:cosformer") == 4 * 65
        # And two more within chunks of 64: with 64 features, and with 65 columns.
        assert computed_crossing("linear:elu") == 2 * 65 + 64 + 65
