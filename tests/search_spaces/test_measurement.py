"""Measurement: a value that cannot be nonsense."""

from __future__ import annotations

import json

import pytest

from search_spaces.errors import DataError
from search_spaces.measurement import Measurement

LATENCY = Measurement("latency_ms", 1.5, 0.1, 20, "ms", "cpu", None)


def test_json_round_trip() -> None:
    assert Measurement.from_json(json.loads(json.dumps(LATENCY.to_json()))) == LATENCY


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_values_are_finite(value: float) -> None:
    with pytest.raises(DataError, match="must be finite"):
        Measurement("loss", value)


@pytest.mark.parametrize(("spread", "count"), [(-1.0, 1), (float("nan"), 1), (0.0, 0)])
def test_spread_and_count_have_ranges(spread: float, count: int) -> None:
    with pytest.raises(DataError, match="at least"):
        Measurement("loss", 1.0, spread, count)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"value": "fast"}, "value: "),
        ({"count": True}, "count: "),
        ({"extra": 1}, "extra: unexpected"),
    ],
)
def test_damaged_json_is_refused_by_field(change: dict[str, object], message: str) -> None:
    with pytest.raises(DataError, match=message):
        Measurement.from_json({**LATENCY.to_json(), **change})


def test_missing_fields_are_named() -> None:
    with pytest.raises(DataError, match="value: .*required|value: .*missing"):
        Measurement.from_json({k: v for k, v in LATENCY.to_json().items() if k != "value"})
    with pytest.raises(DataError, match="an object"):
        Measurement.from_json([])
