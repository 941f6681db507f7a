"""How fast a machine has been is kept for all that is timed on it, whoever times."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from latency.device import describe_device
from latency.yardstick import KEPT, KNOWN_SESSIONS, Speed, SpeedRecord, read_speed, yardstick_call
from search_spaces.errors import DataError


@pytest.fixture
def record() -> SpeedRecord:
    return SpeedRecord(describe_device("cpu"), "float32")


def test_the_fastest_sessions_that_agree_tell_what_a_machine_can_do() -> None:
    assert Speed().quiet_ms is None and Speed().plus([(1.0, 0.0), (1.02, 1.0)]).quiet_ms is None
    speed = Speed().plus([(2.0, 0.0), (1.0, 1.0), (1.02, 2.0), (1.04, 3.0), (3.0, 4.0)])
    assert speed.quiet_ms == pytest.approx(1.02) and speed.sessions == 5 and not speed.known
    # One that is far faster than all others, as no machine ever is, says nothing.
    assert speed.plus([(0.1, 5.0)]).quiet_ms == pytest.approx(1.02)
    later = speed.plus([(1.0 + n, float(n)) for n in range(KNOWN_SESSIONS)])
    assert later.known and len(later.fastest) == KEPT


def test_sessions_are_kept_for_this_device_and_type_alone(record: SpeedRecord) -> None:
    assert record.read() == Speed() and record.add([]) == Speed()
    assert not record.path.exists()
    record.add([(1.5, 7.0)])
    assert record.add([(1.25, 9.0)]) == record.read() == Speed(((1.25, 9.0), (1.5, 7.0)), 2)
    assert read_speed(record.path) == (record, record.read())
    assert SpeedRecord(record.device, "bfloat16").read() == Speed()


def test_two_at_once_lose_nothing(record: SpeedRecord) -> None:
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda n: record.add([(1.0 + n, float(n))]), range(12)))
    assert record.read().sessions == 12 and len(record.read().fastest) == 12


@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b"[1]",
        b"\xff",
        b"{}",
        {"fastest": [[0.0, 1.0]]},
        {"fastest": [[1.0]]},
        {"fastest": [[1e999, 1.0]]},
        {"sessions": 0},
        {"sessions": None},
        {"device": {}},
    ],
)
def test_a_damaged_file_is_told_with_the_way_out(
    record: SpeedRecord, damage: bytes | dict[str, object]
) -> None:
    record.add([(1.5, 7.0)])
    whole = json.loads(record.path.read_text())
    made = damage if isinstance(damage, bytes) else json.dumps(whole | damage).encode()
    record.path.write_bytes(made)
    for read in (record.read, lambda: record.add([(1.0, 1.0)])):
        with pytest.raises(DataError, match=f"is damaged .* nas cache clear {record.path.stem}"):
            read()


def test_the_yardstick_computes_the_same_each_time() -> None:
    one, other = yardstick_call("cpu")(), yardstick_call("cpu")()
    assert isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor)
    assert torch.equal(one, other) and bool(one.isfinite().all())
