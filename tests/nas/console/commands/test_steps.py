"""Steps along the front, against numbers worked out by hand."""

from __future__ import annotations

import pytest

from nas.console.commands.picking import Change, Step, _difference, named_picks, steps, steps_json
from tests.nas.search.test_front import THREE, entry, front


def test_steps_go_from_the_cheapest_to_the_best() -> None:
    first, second = steps(front(*THREE))
    assert [first.start, first.end, second.end] == [THREE[2], THREE[1], THREE[0]]
    assert first.changes["quality"].absolute == pytest.approx(-0.6)
    assert first.changes["quality"].share == pytest.approx(-0.75)
    assert (first.changes["flops"].absolute, first.changes["flops"].share) == (20, 2.0)
    assert (second.changes["flops"].absolute, second.changes["flops"].share) == (60, 2.0)


@pytest.mark.parametrize(
    ("name", "change", "told"),
    [
        ("kv_cache_mb", 0.001024, "+0.00102"),
        ("kv_cache_mb", -12.3456, "-12.35"),
        ("latency_ms", 0.0, "+0"),
        ("quality", -0.00004, "-0.0000"),
        ("flops", 12_345.0, "+12.3 k"),
    ],
)
def test_differences_have_the_digits_of_their_costs(name: str, change: float, told: str) -> None:
    step = Step(THREE[0], THREE[1], {name: Change(change, None)})
    assert _difference(name, step)[0] == told


def test_one_network_has_no_step_and_is_every_landmark() -> None:
    alone = front(THREE[0])
    assert steps(alone) == steps_json(alone) == []
    assert set(named_picks(alone).values()) == {THREE[0].id}


def test_landmarks() -> None:
    names = {"cheapest": THREE[2].id, "knee": THREE[1].id, "best": THREE[0].id}
    names |= {"sensible": THREE[0].id}
    assert named_picks(front(*THREE)) == names


def test_a_change_from_nothing_has_no_share() -> None:
    (step,) = steps(front(entry(0.0, 90), entry(0.5, 0)))
    assert step.changes["flops"].share is None and step.changes["flops"].absolute == 90
