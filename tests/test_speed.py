"""The speed study's verdicts, on made-up numbers: how fast this machine is, is no test."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from experiments import speed
from experiments.speed import EvolutionSpeed, Speed, evolution_speed, rankers
from experiments.speed_rows import Row
from experiments.step_ratio import StepRatio, largest_network, step_ratio
from search_spaces.architecture import AttentionKind, EncoderLayer
from search_spaces.loading import load_space
from supernet.plan import encoder_of
from tests.supernet_cases import IMAGES, space_of

STEP = StepRatio("softmax", 64, 1, 99, 11.0, 10.0, 1.1, 1.0, 1.2)
EVOLUTION = EvolutionSpeed("pairwise linear", "quality,flops", 38, 3936, 20_000.0)
ROWS = (
    Row("beams", 1.0, at_least=1.0),
    Row("growth", 1.1, at_most=1.1),
    Row("softmax", 9.0),
)
FAST = Speed("digits", 2, 1, (STEP,), (EVOLUTION,), ROWS)
LATE = replace(FAST, rows=(*ROWS, Row("growth", 1.11, at_most=1.1)))
FEW = replace(FAST, rows=(*ROWS, Row("beams", 0.99, at_least=1.0)))
DEAR = replace(FAST, steps=(STEP, replace(STEP, ratio=1.11)))
SLOW = replace(FAST, evolutions=(EVOLUTION, replace(EVOLUTION, per_second=19_999.0)))


@pytest.mark.parametrize(("result", "code"), [(FAST, 0), (DEAR, 1), (SLOW, 1), (LATE, 1), (FEW, 1)])
@pytest.mark.parametrize("as_json", [True, False])
def test_the_exit_code_tells_whether_the_bounds_hold(
    result: Speed,
    code: int,
    as_json: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(speed, "measure", lambda *_: result)
    assert speed.main(["--json"] if as_json else []) == code
    out = capsys.readouterr().out
    if as_json:
        assert all(json.loads(out)["kept"].values()) is (code == 0)
    else:
        assert ("DOES NOT HOLD" in out) is (code == 1) and "1.10" in out and "20,000" in out


def test_an_unknown_space_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        speed.main(["--space", "digit"])
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
