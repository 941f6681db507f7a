"""The latency predictor: one contract for every candidate, and how it chooses among them."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from latency.kernels import Array
from latency.predictor import LatencyPredictor, Score, _cross_validate, _folds, score
from latency.regressors import CANDIDATES
from search_spaces.encoding import encode_features
from search_spaces.errors import DataError, NasError, UsageError
from search_spaces.loading import load_space
from search_spaces.variation import sample_distinct

NAMES = list(CANDIDATES)


def networks(count: int, seed: int = 0) -> tuple[Array, Array]:
    """Depth, width and hidden size of made-up networks, and a latency they cost."""
    rng = np.random.default_rng(seed)
    depth, width = rng.integers(1, 7, count), rng.choice([64, 128, 256, 512], count)
    hidden = rng.choice([256, 512, 1024, 2048], count)
    ms = 0.3 + depth * (0.2 + 1e-5 * width * hidden / 10 + 2e-3 * width)
    noise = np.exp(rng.normal(0, 0.01, count))
    return np.column_stack([depth, width, hidden]).astype(float), ms * noise


def error(predicted: Array, ms: Array) -> float:
    return float(np.mean(np.abs(predicted / ms - 1)))


@pytest.mark.parametrize("name", NAMES)
class TestEveryCandidate:
    def test_beats_the_mean_on_networks_it_has_not_seen(self, name: str) -> None:
        (features, ms), (others, truth) = networks(120), networks(200, seed=1)
        predicted = CANDIDATES[name]().fit(features, ms).predict(others)
        assert error(predicted, truth) < 0.6 * error(np.full(200, np.median(ms)), truth)

    def test_learns_nothing_from_noise(self, name: str) -> None:
        rng = np.random.default_rng(3)
        features, ms = rng.normal(size=(60, 3)), np.exp(rng.normal(0, 0.1, 120))
        predicted = CANDIDATES[name]().fit(features, ms[:60]).predict(rng.normal(size=(60, 3)))
        assert error(predicted, ms[60:]) < 0.2

    @pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
    def test_the_unit_of_time_does_not_matter(self, name: str, scale: float) -> None:
        features, ms = networks(40)
        one = CANDIDATES[name]().fit(features, ms).predict(features)
        other = CANDIDATES[name]().fit(features, ms * scale).predict(features)
        # LightGBM keeps targets in single precision.
        np.testing.assert_allclose(other / scale, one, rtol=1e-3)

    def test_the_unit_of_a_feature_does_not_matter(self, name: str) -> None:
        features, ms = networks(40)
        one = CANDIDATES[name]().fit(features, ms).predict(features)
        scaled = features * [1e-9, 1.0, 1e9]
        other = CANDIDATES[name]().fit(scaled, ms).predict(scaled)
        np.testing.assert_allclose(other, one, rtol=1e-3)

    def test_is_deterministic(self, name: str) -> None:
        features, ms = networks(50)
        runs = [CANDIDATES[name]().fit(features, ms).predict(features) for _ in range(2)]
        np.testing.assert_array_equal(*runs)

    def test_constant_features_and_targets_are_fine(self, name: str) -> None:
        features, ms = networks(20)
        level = CANDIDATES[name]().fit(features, np.full(20, 3.0)).predict(features)
        np.testing.assert_allclose(level, 3.0, rtol=1e-6)
        blind = CANDIDATES[name]().fit(np.ones((20, 2)), ms).predict(np.ones((5, 2)))
        assert np.ptp(blind) == 0 and ms.min() < blind[0] < ms.max()

    def test_works_from_two_networks_and_stays_in_reach(self, name: str) -> None:
        fitted = CANDIDATES[name]().fit(np.array([[1.0], [2.0]]), np.array([1.0, 2.0]))
        far = fitted.predict(np.array([[-1e12], [0.0], [1e12]]))
        assert np.isfinite(far).all() and (far >= 0.25).all() and (far <= 8).all()


@pytest.mark.parametrize("name", [name for name in NAMES if "trees" not in name])
def test_wild_measurements_hardly_bend_a_kernel_regression(name: str) -> None:
    features, ms = networks(100)
    wild = ms.copy()
    wild[::20] *= 5
    others, truth = networks(300, seed=1)
    clean, bent = (CANDIDATES[name]().fit(features, y).predict(others) for y in (ms, wild))
    assert error(bent, truth) < error(clean, truth) + 0.05


@pytest.mark.parametrize("name", ["sum_of_costs", "gaussian_process"])
def test_a_slow_spell_hardly_bends_a_kernel_regression(name: str) -> None:
    features, ms = networks(100)
    slow = ms.copy()
    slow[:13] *= 1.25  # an eighth of the measurements, as on a throttled device
    others, truth = networks(300, seed=1)
    clean, bent = (CANDIDATES[name]().fit(features, y).predict(others) for y in (ms, slow))
    assert error(bent, truth) < error(clean, truth) + 0.007


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("unit", [1e-6, 1.0, 1e6])
def test_far_away_networks_are_less_sure(name: str, unit: float) -> None:
    features, ms = networks(60)
    fitted = CANDIDATES[name]().fit(features, ms * unit)
    near, far = features[:20], features[:20] + 8 * np.ptp(features, axis=0)
    known, unknown = (fitted.spread(rows, np.full(20, unit)) for rows in (near, far))
    assert (known > 0).all() and unknown.min() > 2 * known.max()


def test_deviations_grow_with_the_distance_and_are_calibrated() -> None:
    features, ms = networks(80)
    predictor = LatencyPredictor.fit(features, ms)
    centre, span = features.mean(axis=0), np.ptp(features, axis=0)
    mean, std = predictor.predict(centre + np.outer([0, 1, 2, 4], span))
    assert (np.diff(std) > 0).all()
    np.testing.assert_array_equal(predictor.mean(centre[None]), mean[:1])
    others, truth = networks(500, seed=1)
    mean, std = predictor.predict(others)
    assert 0.6 < np.sqrt(np.mean(((mean - truth) / std) ** 2)) < 1.6


def test_out_of_fold_errors_have_the_size_they_were_promised() -> None:
    features, ms = networks(60)
    for name in NAMES:
        held = _cross_validate(CANDIDATES[name], features, ms, np.ones(60), _folds(60, None, 0))
        factor = np.sqrt(np.mean(((held.ms - ms) / held.spread) ** 2))
        assert 0.1 < factor < 10, name  # the spread is near the truth before it is calibrated
    predictor = LatencyPredictor.fit(features, ms)
    held = _cross_validate(
        CANDIDATES[predictor.report.chosen], features, ms, np.ones(60), _folds(60, None, 0)
    )
    standardised = (held.ms - ms) / (predictor.report.std_factor * held.spread)
    assert np.sqrt(np.mean(standardised**2)) == pytest.approx(1, abs=0.1)  # outliers are bounded


def test_a_fit_through_all_of_few_measurements_is_not_sure_of_others() -> None:
    """With more costs than networks a sum of them may leave nothing in some fold."""
    rng = np.random.default_rng(1)
    features = rng.integers(0, 3, (200, 24)).astype(np.float64)
    ms = 5 + features[:, :6].sum(axis=1) + 0.3 * rng.normal(size=200)
    predictor = LatencyPredictor.fit(features[:10], ms[:10])
    assert predictor.report.chosen == "sum_of_costs"
    mean, std = predictor.predict(features)
    assert (std >= 0.5 * predictor.report.relative_std * mean - 1e-6).all()
    assert (std < mean).all()


@pytest.mark.parametrize("name", NAMES)
def test_a_measurement_of_little_weight_hardly_counts(name: str) -> None:
    features, ms = networks(60)
    spoilt, weights = ms.copy(), np.ones(60)
    spoilt[::3], weights[::3] = 3 * spoilt[::3], 0.01
    others, truth = networks(100, seed=1)
    blind = CANDIDATES[name]().fit(features, spoilt).predict(others)
    told = CANDIDATES[name]().fit(features, spoilt, weights).predict(others)
    assert error(told, truth) < error(blind, truth)


@pytest.mark.parametrize("weights", [np.ones(19), np.zeros(20), np.full(20, 1.1)])
def test_weights_outside_their_range_are_refused(weights: Array) -> None:
    with pytest.raises(DataError, match="one weight above 0"):
        LatencyPredictor.fit(*networks(20), weights=weights)


def test_score_of_four_networks() -> None:
    found = score(np.array([1.1, 1.8, 4.0, 3.0]), np.array([1.0, 2.0, 4.0, 4.0]))
    assert found.mape == pytest.approx((0.1 + 0.1 + 0 + 0.25) / 4)
    # Of six pairs one is tied in the measurement, five agree: 5 / sqrt(6 * 5).
    assert found.kendall_tau == pytest.approx(5 / 30**0.5)
    assert score(np.ones(3), np.array([1.0, 2.0, 4.0])) == Score(mape=1.25 / 3, kendall_tau=0.0)


def test_a_planted_cost_is_found_from_its_terms() -> None:
    rng = np.random.default_rng(0)
    terms = rng.uniform(1, 10, (300, 3))
    ms = 2 + terms @ [0.5, 3.0, 0.0]  # the third costs nothing
    predictor = LatencyPredictor.fit(terms[:30], ms[:30])
    assert predictor.report.chosen == "sum_of_costs"
    assert error(predictor.predict(terms)[0], ms) < 1e-3
    base, more = predictor.predict(np.array([[5.0, 5.0, 5.0], [5.0, 5.0, 6.0]]))[0]
    assert more == pytest.approx(base, rel=1e-3)


def test_interactions_win_where_sizes_multiply() -> None:
    features, ms = networks(100)
    report = LatencyPredictor.fit(features, ms, baselines={"depth": features[:, 0]}).report
    assert report.mape < 0.05 and report.kendall_tau > 0.9
    assert report.mape < 0.5 * report.baselines["linear"].mape
    assert report.baselines["linear"].mape < report.baselines["depth"].mape
    assert report.chosen == min(NAMES, key=lambda name: report.candidates[name].mape)


def test_the_simple_is_taken_where_the_rest_is_hardly_better() -> None:
    rng = np.random.default_rng(0)
    work = rng.uniform(1, 10, (60, 2))
    noisy = (2 + work @ [1.0, 3.0]) * np.exp(rng.normal(0, 0.05, 60))
    report = LatencyPredictor.fit(work, noisy).report
    assert report.chosen == NAMES[0] == "sum_of_costs"
    bent = np.exp(np.abs(work - 5).sum(axis=1))  # no sum of costs
    assert LatencyPredictor.fit(work, bent).report.chosen != NAMES[0]


def layered(count: int, seed: int) -> tuple[Array, Array]:
    """Width, depth and ten sizes of single layers, and the time of their sum."""
    rng = np.random.default_rng(seed)
    width = rng.choice([192.0, 384.0, 768.0], count)
    sizes = rng.choice([2.0, 3.0, 4.0], (count, 10))
    ms = 1 + 0.05 * sizes.sum(axis=1) * (width / 192) ** 2 + 0.01 * width
    features = np.column_stack([width, sizes.sum(axis=1), sizes])
    return features, ms * np.exp(rng.normal(0, 0.01, count))


def test_terms_of_the_sum_need_fewer_networks() -> None:
    (features, ms), (others, truth) = layered(30, 0), layered(300, 1)
    told = LatencyPredictor.fit(features, ms, terms=[[0], [1], [1, 0], [1, 0, 0]])
    blind = LatencyPredictor.fit(features, ms)
    assert error(told.mean(others), truth) < 0.5 * error(blind.mean(others), truth)
    again = LatencyPredictor.from_json(json.loads(json.dumps(told.to_json())))
    np.testing.assert_array_equal(again.predict(others), told.predict(others))


@pytest.mark.parametrize("terms", [[], [[]], [[3]], [[-1]], [[0.0]], [[True]], ["0"], "x"])
def test_terms_of_columns_that_are_not_there_are_refused(terms: Any) -> None:
    with pytest.raises(DataError, match="numbers below 3"):
        LatencyPredictor.fit(*networks(20), terms=terms)
    data = LatencyPredictor.fit(*networks(20), terms=[[0], [1, 2]]).to_json()
    with pytest.raises(DataError, match="numbers below 3"):
        LatencyPredictor.from_json({**data, "terms": terms})


def test_wild_timings_are_named_and_survived() -> None:
    (features, ms), (others, truth) = networks(60), networks(300, seed=1)
    wild = ms.copy()
    wild[::6] *= [400, 5, 2, 0.1, 3, 50, 2, 4, 0.3, 9]
    clean, spoilt = LatencyPredictor.fit(features, ms), LatencyPredictor.fit(features, wild)
    assert clean.unexpected().sum() < 3
    assert spoilt.unexpected()[::6].all() and spoilt.unexpected().sum() < 13
    assert error(spoilt.mean(others), truth) < error(clean.mean(others), truth) + 0.03
    assert np.median(spoilt.predict(others)[1] / truth) < 0.2


def test_the_cross_validated_error_holds_on_new_networks() -> None:
    predictor = LatencyPredictor.fit(*networks(100))
    others, truth = networks(500, seed=1)
    mean, std = predictor.predict(others)
    assert error(mean, truth) < 2 * predictor.report.mape
    assert 0.8 < np.mean(np.abs(mean - truth) < 2 * std) <= 1


def test_noise_is_reported_as_noise() -> None:
    features, ms = networks(60)
    shuffled = np.random.default_rng(0).permutation(ms)
    report = LatencyPredictor.fit(features, shuffled).report
    assert report.kendall_tau < 0.4 and report.mape > 0.3


def test_the_same_data_gives_the_same_predictor() -> None:
    features, ms = networks(40)
    one, two = (LatencyPredictor.fit(features, ms, seed=5) for _ in range(2))
    assert one.report == two.report
    assert LatencyPredictor.fit(features, ms, seed=6).report.candidates != one.report.candidates


def test_a_prediction_does_not_depend_on_its_company() -> None:
    predictor = LatencyPredictor.fit(*networks(60))
    others = networks(3000, seed=2)[0]
    alone = np.concatenate([predictor.predict(row[None])[0] for row in others[::100]])
    np.testing.assert_array_equal(predictor.predict(others)[0][::100], alone)


def test_json_gives_the_same_predictions_back() -> None:
    predictor = LatencyPredictor.fit(*networks(40), baselines={"depth": networks(40)[0][:, 0]})
    again = LatencyPredictor.from_json(json.loads(json.dumps(predictor.to_json())))
    others = networks(100, seed=1)[0]
    np.testing.assert_array_equal(again.predict(others), predictor.predict(others))
    assert again.report == predictor.report


def test_what_an_earlier_version_wrote_is_fitted_again() -> None:
    (features, ms), (others, truth) = networks(60), networks(300, seed=1)
    data = LatencyPredictor.fit(features, ms, baselines={"depth": features[:, 0]}).to_json()
    del data["terms"]
    candidates = {"interactions_log": data["report"]["candidates"]["linear"]}
    report = {**data["report"], "chosen": "interactions_log", "candidates": candidates}
    old = {**data, "schema": 2, "report": report}
    again = LatencyPredictor.from_json(old)
    assert error(again.mean(others), truth) < 0.05 and again.report.chosen in NAMES
    assert again.report.baselines["depth"].mape == report["baselines"]["depth"]["mape"]
    assert again.to_json() == old  # so that digests of profiles stay
    with pytest.raises(DataError, match="anew"):
        LatencyPredictor.from_json({**old, "report": {}})


@pytest.mark.parametrize(
    "change",
    [
        {"schema": 1},
        {"report": {}},
        {"report": None},
        {"features": [[1], [1, 2]]},
        {"features": "x"},
        {"ms": []},
        {"ms": [None] * 20},
        {"ms": [-1.0] * 20},
        {"weights": [1.0] * 19},
        {"weights": [0.0] * 20},
        {"weights": [[1.0]] * 20},
    ],
)
def test_damaged_json_is_refused(change: dict[str, Any]) -> None:
    data = LatencyPredictor.fit(*networks(20)).to_json()
    with pytest.raises(DataError):
        LatencyPredictor.from_json({**data, **change})


def test_json_with_an_unknown_candidate_is_refused() -> None:
    data = LatencyPredictor.fit(*networks(20)).to_json()
    data["report"]["chosen"] = "oracle"
    with pytest.raises(DataError, match="oracle"):
        LatencyPredictor.from_json(data)


def test_eight_networks_are_enough_and_seven_are_not() -> None:
    features, ms = networks(8)
    assert LatencyPredictor.fit(features, ms).report.num_observations == 8
    with pytest.raises(UsageError, match=r"at least 8 .* given 7"):
        LatencyPredictor.fit(features[:7], ms[:7])


def test_equal_latencies_are_predicted_exactly() -> None:
    predictor = LatencyPredictor.fit(networks(20)[0], np.full(20, 2.5))
    mean, std = predictor.predict(networks(5)[0])
    np.testing.assert_allclose(mean, 2.5)
    assert (std < 1e-6).all() and predictor.report.kendall_tau == 0


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite_are_refused(bad: float) -> None:
    features, ms = networks(20)
    spoilt_features, spoilt_ms = features.copy(), ms.copy()
    spoilt_features[4, 1] = spoilt_ms[4] = bad
    for pair in ((spoilt_features, ms), (features, spoilt_ms)):
        with pytest.raises(DataError, match="row 4"):
            LatencyPredictor.fit(*pair)
    with pytest.raises(DataError, match="row 4"):
        LatencyPredictor.fit(features, ms).predict(spoilt_features)


@pytest.mark.parametrize("value", [0.0, -1.0])
def test_latencies_that_are_not_positive_are_refused(value: float) -> None:
    features, ms = networks(20)
    ms[3] = value
    with pytest.raises(DataError, match="positive; row 3"):
        LatencyPredictor.fit(features, ms)


@pytest.mark.parametrize("shape", [(20,), (19, 3), (20, 0), (20, 3, 1)])
def test_features_of_another_shape_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(DataError):
        LatencyPredictor.fit(np.ones(shape), networks(20)[1])


def test_predicting_checks_the_columns_and_allows_no_rows() -> None:
    predictor = LatencyPredictor.fit(*networks(20))
    with pytest.raises(DataError, match="knows 3 features"):
        predictor.predict(np.ones((5, 4)))
    mean, std = predictor.predict(np.ones((0, 3)))
    assert mean.shape == std.shape == (0,)


def test_groups_are_left_out_together() -> None:
    rng = np.random.default_rng(0)
    groups = np.repeat(np.arange(10), 6)
    level = rng.uniform(1, 10, 10)[groups]
    features = np.eye(10)[groups]
    free = LatencyPredictor.fit(features, level).report
    together = LatencyPredictor.fit(features, level, groups).report
    assert free.mape < 0.01 < 0.2 < together.mape


def test_groups_that_cannot_be_split_are_refused() -> None:
    features, ms = networks(20)
    with pytest.raises(UsageError, match="at least 2 groups"):
        LatencyPredictor.fit(features, ms, np.zeros(20))
    with pytest.raises(DataError, match="one label per network"):
        LatencyPredictor.fit(features, ms, np.zeros(19))
    lopsided = LatencyPredictor.fit(features, ms, np.arange(20) == 0)
    assert lopsided.report.num_folds == 2


def test_trees_of_few_networks_do_not_give_up() -> None:
    # With a least weight of 0 in a leaf LightGBM stopped here, at a side without any network.
    space, rng = load_space("listops"), np.random.default_rng(14)
    rows = sample_distinct(space, rng, 19)
    ms = space.depths(rows, "encoder") * np.exp(rng.normal(0.0, 0.1, 19))
    features = encode_features(space, rows)
    assert np.isfinite(CANDIDATES["trees"]().fit(features, ms).predict(features)).all()


def test_trees_are_no_candidate_where_lightgbm_does_not_load(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    features, ms = networks(40)
    assert "trees" in LatencyPredictor.fit(features, ms).report.candidates
    (tmp_path / "lightgbm.py").write_text("raise OSError('no libgomp.so.1')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "lightgbm", raising=False)
    without = LatencyPredictor.fit(features, ms)
    assert set(CANDIDATES) - set(without.report.candidates) == {"trees"}
    assert np.isfinite(without.mean(features)).all()
    with pytest.raises(NasError, match=r"does not load on this machine \(no libgomp.so.1\)"):
        CANDIDATES["trees"]().fit(features, ms)
