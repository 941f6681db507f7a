"""Which networks a profile times, drift that is divided out, and what it says of itself."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from nas.profiling.device_profile import MeasuredNetwork, WorkloadProfile, trust
from nas.profiling.report import learning_curve, sizes
from nas.profiling.sessions import (
    MAX_SAMPLES,
    Pool,
    TimedSession,
    corrected,
    fit_latency,
    profile_workload,
    same_sessions,
    spread,
    unsure,
)
from nas.search.uniform_networks import cheapest_rows, kind_of, kinds, largest_rows, middle, of_kind
from search_spaces.encoding import encode_features
from search_spaces.errors import UsageError
from search_spaces.loading import load_space, parse_space
from search_spaces.space import Genotypes
from search_spaces.variation import enumerate_all, sample
from tests.support.pipeline_cases import edited
from tests.support.profile_cases import SPACE, WORKLOAD, fake_timer, made_workload, planted_ms

pytestmark = pytest.mark.usefixtures("few_regressors")

DIGITS = load_space("digits")


def keys(rows: np.ndarray) -> set[bytes]:
    return {row.tobytes() for row in np.ascontiguousarray(rows, dtype=np.int16)}


def test_the_reference_and_the_ends_come_first() -> None:
    pool = Pool.of(DIGITS, seed=0)
    ends = [middle(DIGITS), largest_rows(DIGITS), cheapest_rows(DIGITS)]
    first = spread(pool, pool.rows[:0], 10)
    assert keys(np.concatenate(ends)) <= keys(first)
    assert keys(first[:1]) == keys(middle(DIGITS))


def test_spread_networks_are_further_apart_than_random_ones() -> None:
    pool = Pool.of(DIGITS, seed=0)
    chosen = spread(pool, pool.rows[:0], 40)
    assert len(keys(chosen)) == 40
    index = {key: i for i, key in enumerate(map(bytes, pool.rows.astype(np.int16)))}
    points = pool.points[[index[row.tobytes()] for row in chosen.astype(np.int16)]]
    others = pool.points[np.random.default_rng(0).permutation(len(pool.points))[:40]]
    assert nearest(points) > 1.5 * nearest(others)


def nearest(points: np.ndarray) -> float:
    distances = np.linalg.norm(points[:, None] - points, axis=2)
    np.fill_diagonal(distances, np.inf)
    return float(distances.min(axis=1).min())


def test_unsure_networks_are_new_and_less_sure_than_most() -> None:
    pool = Pool.of(DIGITS, seed=0)
    measured = corrected([fake_timer(DIGITS)(spread(pool, pool.rows[:0], 20), 0)])
    known = DIGITS.encode([one.architecture for one in measured])
    predictor = fit_latency(DIGITS, measured, 0)
    chosen = unsure(pool, known, predictor, 10)
    assert len(keys(chosen) - keys(known)) == 10
    doubts = [
        std / mean
        for mean, std in (
            predictor.predict(encode_features(DIGITS, r)) for r in (chosen, pool.rows)
        )
    ]
    assert doubts[0].min() > np.median(doubts[1])


def test_as_many_networks_as_asked_for_each_once() -> None:
    made = made_workload(samples=33)
    assert len({one.architecture.id for one in made.measured}) == len(made.measured) == 33
    assert made.measured[0].architecture == SPACE.decode(middle(SPACE))[0]


def test_a_small_space_is_timed_whole() -> None:
    space = parse_space(edited(("[1, 2]\nattention", "[1]\nattention")), "space")
    *_, made = profile_workload(space, WORKLOAD, MAX_SAMPLES, 0, (), fake_timer(space))
    assert isinstance(made, WorkloadProfile)
    assert len(made.measured) == space.size < 100


def test_going_on_ends_where_an_unbroken_profile_does() -> None:
    whole = list(profile_workload(SPACE, WORKLOAD, 40, 3, (), fake_timer()))
    done = [step for step in whole[:2] if isinstance(step, TimedSession)]
    rest = list(profile_workload(SPACE, WORKLOAD, 40, 3, done, fake_timer()))
    assert len(rest) == len(whole) - 2
    assert isinstance(rest[-1], WorkloadProfile) and isinstance(whole[-1], WorkloadProfile)
    assert rest[-1].to_json() == whole[-1].to_json()


@pytest.mark.parametrize(
    ("sizes", "other", "same"),
    [
        ([], 8, True),
        ([10], 30, True),
        ([10], 8, False),
        ([10, 10], 30, False),
        ([10, 10], 20, True),
    ],
)
def test_how_far_profiles_of_other_lengths_are_the_same(
    sizes: list[int], other: int, same: bool
) -> None:
    assert same_sessions(sizes, 20, other) is same
    assert same_sessions(sizes, other, 20) is same


def test_a_longer_profile_goes_on_from_a_shorter_one() -> None:
    first = next(profile_workload(SPACE, WORKLOAD, 20, 3, (), fake_timer()))
    assert isinstance(first, TimedSession)
    *_, longer = profile_workload(SPACE, WORKLOAD, 40, 3, [first], fake_timer())
    *_, whole = profile_workload(SPACE, WORKLOAD, 40, 3, (), fake_timer())
    assert isinstance(longer, WorkloadProfile) and isinstance(whole, WorkloadProfile)
    assert longer.to_json() == whole.to_json()


def test_slow_spells_are_divided_out() -> None:
    def speed(number: int) -> float:
        return 2.0 if number == 1 else 1.0

    steps = list(profile_workload(SPACE, WORKLOAD, 40, 0, (), fake_timer(speed=speed)))
    made = steps[-1]
    assert isinstance(made, WorkloadProfile)
    rows = SPACE.encode([one.architecture for one in made.measured])
    found = [one.latency.value for one in made.measured]
    np.testing.assert_allclose(found, planted_ms(SPACE, rows))
    assert made.sessions[1].reference_ms == pytest.approx(2 * made.sessions[0].reference_ms)


def test_a_planted_cost_is_learnt_and_told() -> None:
    report = made_workload(samples=100).report
    assert [row["samples"] for row in report["sizes"]] == [10, 20, 40, 80]
    last = report["sizes"][-1]
    assert last["predictor"]["mape"] < 0.5 * last["depth"]["mape"]
    assert last["predictor"]["kendall_tau"] > last["depth"]["kendall_tau"]


@pytest.mark.parametrize(
    ("most", "expected"), [(7, []), (8, [8]), (10, [10]), (80, [10, 20, 40, 80])]
)
def test_sizes_of_the_learning_curve(most: int, expected: list[int]) -> None:
    assert sizes(most) == expected


def test_a_curve_of_too_few_networks_is_empty() -> None:
    numbers = np.arange(8.0)
    curve = learning_curve(numbers[:, None], None, 1 + numbers, numbers, np.ones(8), 0)
    assert curve["sizes"] == []


def test_scattered_times_are_trusted_less() -> None:
    measured = list(made_workload().measured)
    steady = trust(measured)
    assert (steady > 0.5).all()
    one = measured[3]
    wild = type(one)(one.architecture, type(one.latency)("latency_ms", 1.0, 0.5), 1.0, 0)
    weights = trust([*measured[:3], wild, *measured[4:]])
    assert weights[3] == 0.1 and (np.delete(weights, 3) > 0.5).all()


@pytest.mark.parametrize("samples", [7, 0, -1, MAX_SAMPLES + 1])
def test_too_few_or_many_samples_are_refused(samples: int) -> None:
    with pytest.raises(UsageError, match="at least 8|at most 4096"):
        list(profile_workload(SPACE, WORKLOAD, samples, 0, (), fake_timer()))


def test_networks_of_one_kind() -> None:
    assert kinds(SPACE) == ("linear", "omni", "softmax")
    row = sample(SPACE, np.random.default_rng(0), 1)
    for kind in kinds(SPACE):
        assert kind_of(SPACE.decode(of_kind(SPACE, row, kind))[0]) == kind
    mixed = [net for net in SPACE.decode(enumerate_all(SPACE, 1000)) if kind_of(net) is None]
    assert mixed


def test_one_kind_alone_has_one_end() -> None:
    space = parse_space(edited(('["softmax", "linear", "omni"]', '["omni"]')), "space")
    assert len(largest_rows(space)) == len(cheapest_rows(space)) == 1


# -- what should not be believed ----------------------------------------------------------------


def odd_timer(
    factors: dict[int, float], doubts: dict[int, str] | None = None, network: int = 12
) -> Callable[[Genotypes, int], TimedSession]:
    """The planted times, but one network's times a factor the n-th time it is timed."""
    plain, seen = fake_timer(), Counter[str]()
    chosen: list[str] = []

    def timer(rows: Genotypes, number: int) -> TimedSession:
        made = plain(rows, number)
        networks = []
        for one in made.networks:
            seen[one.architecture.id] += 1
            if len(seen) == network and not chosen:
                chosen.append(one.architecture.id)
            if one.architecture.id in chosen:
                time = seen[one.architecture.id]
                ms = one.latency.value * factors.get(time, 1.0)
                doubt = (doubts or {}).get(time, "")
                one = replace(one, latency=replace(one.latency, value=ms, doubtful=doubt))
            networks.append(one)
        return replace(made, networks=tuple(networks))

    return timer


def odd_profile(*given: Any) -> tuple[MeasuredNetwork, WorkloadProfile]:
    """The network that was planted, and the whole profile."""
    *_, made = profile_workload(SPACE, WORKLOAD, 40, 0, (), odd_timer(*given))
    assert isinstance(made, WorkloadProfile)
    return made.measured[11], made


def test_an_outlier_is_timed_again_and_not_believed_if_it_does_not_come_again() -> None:
    found, made = odd_profile({1: 30.0})
    planted = planted_ms(SPACE, SPACE.encode([found.architecture]))[0]
    assert found.latency.value == pytest.approx(planted) and not found.latency.doubtful
    assert sum(session.again for session in made.sessions) >= 1


def test_an_outlier_that_comes_again_is_believed() -> None:
    found, _ = odd_profile({1: 30.0, 2: 30.0})
    planted = planted_ms(SPACE, SPACE.encode([found.architecture]))[0]
    assert found.latency.value == pytest.approx(30 * planted) and not found.latency.doubtful


def test_an_outlier_that_is_another_each_time_is_doubtful_and_not_fitted() -> None:
    found, made = odd_profile({1: 30.0, 2: 3.0, 3: 9.0})
    assert "do not agree" in found.latency.doubtful
    assert made.latency.report.num_observations == len(made.measured) - 1
    again = WorkloadProfile.from_json(json.loads(json.dumps(made.to_json())))
    assert again.measured[11].latency.doubtful == found.latency.doubtful


def test_a_doubtful_time_is_taken_again_and_given_up_after_three() -> None:
    found, _ = odd_profile({}, {1: "busy"})
    assert not found.latency.doubtful
    found, made = odd_profile({}, {1: "busy", 2: "busy", 3: "busy"})
    assert found.latency.doubtful and sum(session.again for session in made.sessions) == 2
