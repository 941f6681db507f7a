"""Rankers: one contract for all, mathematics against slow twins, and the report card."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest
from scipy import optimize
from sklearn.gaussian_process import GaussianProcessRegressor

import nas.search.ranking.report_card as report_card
from nas.search.ranking import (
    Ensemble,
    GaussianProcess,
    PairwiseLinear,
    PairwiseTrees,
    ReportCard,
    choose_ranker,
    ranker_from_json,
)
from nas.search.ranking.base import Calibration, fitted_rows, with_logs, worse_pairs
from nas.search.ranking.pairwise import _pairwise_weights
from nas.search.ranking.report_card import _folds, fidelity, held_out_predictions, quick_card
from search_spaces.errors import DamagedRunError, NasError, UsageError

RANKERS = {
    "linear": PairwiseLinear,
    "quadratic": lambda: PairwiseLinear(interactions=True),
    "trees": lambda: PairwiseTrees(rounds=40),
    "gaussian process": GaussianProcess,
    "ensemble": Ensemble,
}
PAIRWISE = ["linear", "quadratic", "trees"]
NAMES = ["size", "kind", "constant", "other"]


def make_data(count=60, seed=0, noise=0.0):
    """Loss falls with size, rises with kind; one constant and one useless feature."""
    rng = np.random.default_rng(seed)
    size, kind = rng.choice([8, 16, 32, 64], count), rng.integers(0, 2, count)
    features = np.column_stack([size, kind, np.ones(count), rng.integers(0, 5, count)])
    losses = 1 / np.log(size) + 0.2 * kind + noise * rng.normal(size=count)
    return features.astype(float), losses


@pytest.fixture(scope="module", autouse=True)
def few_rankers():
    """Here the choice is made among all."""


@pytest.fixture(params=RANKERS, name="make")
def fixture_make(request):
    return RANKERS[request.param]


class TestContract:
    """Every ranker, the same promises."""

    def test_orders_networks_it_has_not_seen(self, make):
        ranker = make().fit(*make_data())
        features, losses = make_data(seed=1)
        assert fidelity(ranker.scores(features), losses).pairwise_accuracy > 0.95
        assert fidelity(ranker.scores(features), -losses).pairwise_accuracy < 0.05

    @pytest.mark.parametrize("kind", PAIRWISE)
    def test_only_the_order_of_the_losses_matters_to_pairwise_scores(self, kind):
        make = RANKERS[kind]
        features, losses = make_data(noise=0.05)
        one, other = make().fit(features, losses), make().fit(features, np.exp(5 * losses))
        assert (one.scores(features) == other.scores(features)).all()
        assert not np.allclose(one.predict(features), other.predict(features))

    def test_predictions_rise_with_scores_and_are_in_the_unit_of_losses(self, make):
        features, losses = make_data()
        ranker = make().fit(features, 3 + losses)
        order = np.argsort(ranker.scores(features), kind="stable")
        scores, predicted = ranker.scores(features)[order], ranker.predict(features)[order]
        assert ((np.diff(predicted) > 0) | (np.diff(scores) < 1e-9)).all()
        assert np.abs(predicted - 3 - losses[order]).mean() < 0.5 * losses.std()

    def test_json_gives_the_same_ranker(self, make):
        features, losses = make_data(noise=0.1)
        ranker = make().fit(features, losses, NAMES)
        again = ranker_from_json(json.loads(json.dumps(ranker.to_json(), allow_nan=False)))
        assert (again.predict(features) == ranker.predict(features)).all()
        assert again.importances() == ranker.importances()
        assert again.to_json() == ranker.to_json()
        assert again.name == ranker.name

    def test_fitting_twice_gives_the_same(self, make):
        data = make_data(noise=0.1)
        assert make().fit(*data).to_json() == make().fit(*data).to_json()

    def test_importances_find_the_features_that_matter(self, make):
        found = make().fit(*make_data(), NAMES).importances()
        assert sum(found.values()) == pytest.approx(1)
        assert set(list(found)[:2]) == {"size", "kind"}
        assert found["constant"] == 0
        assert min(found.values()) >= 0

    @pytest.mark.parametrize("least", [0.0, 3.6e-14])
    def test_a_loss_of_nearly_nought_does_not_make_the_others_look_alike(self, make, least):
        features, losses = make_data()
        ranker = make().fit(features, np.where(np.arange(60) == 7, least, losses))
        features, losses = make_data(seed=1)
        assert fidelity(ranker.predict(features), losses).pairwise_accuracy > 0.95

    def test_losses_that_all_tie_give_one_finite_prediction(self, make):
        features, _ = make_data()
        ranker = make().fit(features, np.full(60, 0.7))
        assert ranker.predict(features) == pytest.approx(np.full(60, 0.7))
        assert sum(ranker.importances().values()) == 0

    @pytest.mark.parametrize("count", [2, 3, 5])
    def test_very_few_networks(self, make, count):
        features, losses = make_data(count)
        assert np.isfinite(make().fit(features, losses).predict(make_data()[0])).all()

    def test_features_that_never_vary(self, make):
        ranker = make().fit(np.ones((9, 3)), np.arange(9.0))
        assert ranker.predict(np.ones((2, 3))) == pytest.approx([4.0, 4.0])
        assert ranker_from_json(ranker.to_json()).to_json() == ranker.to_json()

    @pytest.mark.parametrize("value", [np.nan, np.inf])
    def test_numbers_that_are_not_finite_are_refused(self, make, value):
        features, losses = make_data()
        with pytest.raises(UsageError, match="loss 3"):
            make().fit(features, np.where(np.arange(60) == 3, value, losses))
        with pytest.raises(UsageError, match="features must be finite"):
            make().fit(np.where(features == 64, value, features), losses)

    def test_wrong_shapes_are_refused(self, make):
        features, losses = make_data()
        for wrong in ((features, losses[1:]), (features[:1], losses[:1]), (losses, losses)):
            with pytest.raises(UsageError):
                make().fit(*wrong)
        with pytest.raises(UsageError, match="names"):
            make().fit(features, losses, ["one"])
        with pytest.raises(UsageError, match="4 features; given 3"):
            make().fit(features, losses).scores(features[:, 1:])

    def test_asking_before_fitting_is_refused(self, make):
        with pytest.raises(UsageError, match="not fitted"):
            make().predict(make_data()[0])
        with pytest.raises(UsageError, match="not fitted"):
            make().to_json()

    @pytest.mark.parametrize("part", ["state", "calibration", "importances", "num_features"])
    def test_damaged_json_is_reported(self, make, part):
        saved = make().fit(*make_data()).to_json()
        with pytest.raises(DamagedRunError, match="damaged"):
            ranker_from_json(saved | {part: None})
        with pytest.raises(DamagedRunError, match="damaged"):
            ranker_from_json({key: saved[key] for key in saved if key != part})


@pytest.mark.parametrize("make", [GaussianProcess, Ensemble])
def test_deviations_grow_away_from_what_was_observed(make):
    features, losses = make_data(40, noise=0.05)
    ranker = make().fit(features[:, [0, 1, 3]], losses)
    near = ranker.deviations(features[:, [0, 1, 3]])
    far = ranker.deviations(features[:, [0, 1, 3]] + [500, 3, 20])
    assert (near > 0).all()
    assert far.min() > near.max()


def test_deviations_are_as_large_as_the_errors():
    ranker = GaussianProcess().fit(*make_data(60, noise=0.1))
    features, clean = make_data(200, seed=1)
    errors = np.abs(ranker.predict(features) - clean) / ranker.deviations(features)
    assert 0.3 < np.sqrt(np.mean(errors**2)) < 3


@pytest.mark.parametrize("kind", PAIRWISE)
def test_pairwise_rankers_say_nothing_of_deviations(kind):
    features, losses = make_data()
    assert RANKERS[kind]().fit(features, losses).deviations(features) is None


def test_posterior_equals_the_learners_own():
    features, losses = make_data(30, noise=0.1)
    ranker = GaussianProcess().fit(features, losses)
    own = GaussianProcessRegressor(ranker._signal, alpha=ranker.noise, optimizer=None)
    target = (np.log(losses) - np.log(losses).mean()) / np.log(losses).std()
    mean, spread = own.fit(ranker._rows, target).predict(ranker._rows[:9], return_std=True)
    found = ranker._posterior(features[:9], with_deviation=True)
    assert found[0] == pytest.approx(mean, abs=1e-6)
    assert found[1] == pytest.approx(spread, rel=1e-3)


def test_an_ensemble_lies_between_its_members():
    features, losses = make_data(noise=0.1)
    ensemble = Ensemble().fit(features, losses)
    votes = ensemble._votes(features)
    scores = ensemble.scores(features)
    assert ((votes.min(axis=0) <= scores) & (scores <= votes.max(axis=0))).all()


class Wrong(PairwiseLinear):
    """Says that good networks are bad."""

    kind = "wrong"

    def predict(self, features):
        return 10.0 - super().predict(features)


def test_who_predicts_the_last_networks_badly_hardly_counts(monkeypatch):
    kinds = {"gaussian-process": GaussianProcess, "wrong": Wrong}
    monkeypatch.setattr("nas.search.ranking.ensemble.MEMBERS", kinds)
    features, losses = make_data()
    ensemble = Ensemble().fit(features, losses)
    assert ensemble._weights[1] < 1e-6 and ensemble._weights.sum() == pytest.approx(1.0)
    assert ensemble.scores(features) == pytest.approx(losses, abs=0.05)


def test_members_that_predict_alike_count_alike(monkeypatch):
    twins = {"one": PairwiseLinear, "other": PairwiseLinear}
    monkeypatch.setattr("nas.search.ranking.ensemble.MEMBERS", twins)
    assert Ensemble().fit(*make_data(noise=0.1))._weights == pytest.approx([0.5, 0.5])


def test_too_few_networks_judge_nobody():
    features, losses = make_data(count=3)
    assert np.ptp(Ensemble().fit(features, losses)._weights) == 0.0


def test_ensembles_of_earlier_versions_have_equal_weights():
    features, losses = make_data(noise=0.1)
    state = Ensemble().fit(features, losses)._state()
    del state["weights"]
    old = Ensemble._from_state(state)
    assert old._scores(features) == pytest.approx(old._votes(features).mean(axis=0))


def test_an_ensemble_does_without_trees(monkeypatch):
    monkeypatch.setattr(PairwiseTrees, "available", lambda: False)
    ensemble = Ensemble().fit(*make_data())
    assert {member.kind for member in ensemble._members} == {"gaussian-process", "pairwise-linear"}


@pytest.mark.parametrize("make", [PairwiseTrees, Ensemble])
def test_trees_that_cannot_be_read_end_in_a_sentence(make, monkeypatch):
    kept = make().fit(*make_data(20)).to_json()
    assert isinstance(ranker_from_json(kept), make)
    monkeypatch.setitem(sys.modules, "lightgbm", None)
    with pytest.raises(NasError, match="need LightGBM, which does not load on this machine"):
        ranker_from_json(kept)
    assert not PairwiseTrees.available()


def test_unknown_kind_is_reported():
    with pytest.raises(DamagedRunError, match="'oracle'"):
        ranker_from_json({"kind": "oracle"})
    with pytest.raises(DamagedRunError):
        ranker_from_json([])


def test_equal_losses_form_no_pair():
    pairs = worse_pairs(np.array([1.0, 2.0, 1.0]))
    assert np.argwhere(pairs).tolist() == [[1, 0], [1, 2]]


def test_newton_weights_equal_a_general_minimiser():
    features, losses = make_data(25, noise=0.2)
    design = (features - features.mean(axis=0)) / (features.std(axis=0) + 1)
    pairs = [(i, j) for i in range(25) for j in range(25) if losses[i] > losses[j]]

    def objective(weights):
        gaps = [design[i] @ weights - design[j] @ weights for i, j in pairs]
        return np.mean([np.log1p(np.exp(-gap)) for gap in gaps]) + 0.01 * weights @ weights

    expected = optimize.minimize(objective, np.zeros(4), tol=1e-10).x
    assert _pairwise_weights(design, worse_pairs(losses), 0.02) == pytest.approx(expected, abs=1e-4)


def test_quadratic_kernel_equals_written_out_products():
    features, losses = make_data(30, noise=0.1)
    ranker = PairwiseLinear(0.1, interactions=True).fit(features, losses)
    x = with_logs(features)
    spread = x.std(axis=0)
    x = (x - x.mean(axis=0)) / np.where(spread > 1e-9, spread, np.inf)
    products = np.stack([np.outer(row, row).ravel() for row in x]) / np.sqrt(x.shape[1])
    design = np.hstack([x, products])
    expected = design @ _pairwise_weights(design, worse_pairs(losses), 0.1)
    assert ranker.scores(features) == pytest.approx(expected, abs=1e-4)


def test_interactions_are_seen_by_quadratic_rankers_only():
    rng = np.random.default_rng(0)
    features = rng.choice([-1.0, 1.0], (200, 3))
    losses = features[:, 0] * features[:, 1]
    plain = PairwiseLinear().fit(features[:100], losses[:100])
    products = PairwiseLinear(interactions=True).fit(features[:100], losses[:100])
    assert fidelity(plain.scores(features[100:]), losses[100:]).pairwise_accuracy < 0.75
    assert fidelity(products.scores(features[100:]), losses[100:]).pairwise_accuracy > 0.95


def test_calibration_rises_strictly_even_where_the_losses_fall():
    scores = np.linspace(0, 1, 40)
    rising = Calibration.fit(scores, scores**2)
    assert rising(scores) == pytest.approx(scores**2, abs=0.05)
    for losses in (-scores, np.sin(9 * scores), np.ones(40)):
        mapped = Calibration.fit(scores, losses)(np.linspace(-2, 3, 50))
        assert (np.diff(mapped) > 0).all()
        assert mapped.min() > losses.min() - 5


def test_calibration_of_tied_scores_is_the_mean():
    losses = np.arange(40.0)
    assert Calibration.fit(np.zeros(40), losses)(np.zeros(1)) == pytest.approx([19.5])
    halves = Calibration.fit(np.repeat([0.0, 1.0], 20), losses)
    assert halves(np.array([0.0, 1.0])) == pytest.approx([9.5, 29.5])


def test_fidelity_by_hand():
    result = fidelity([1, 2, 3, 4], [10, 30, 20, 40])
    assert result.kendall_tau == pytest.approx(4 / 6)
    assert result.pairwise_accuracy == pytest.approx(5 / 6)
    assert result.spearman == pytest.approx(0.8)
    assert fidelity([1, 1], [5, 6]).pairwise_accuracy == 0.5
    flat = fidelity([1, 2], [5, 5])
    assert (flat.kendall_tau, flat.spearman, flat.pairwise_accuracy) == (0, 0, 0.5)


def choose(features, losses, seed=0, **more):
    makers = [PairwiseLinear, lambda: PairwiseLinear(interactions=True)]
    baselines = {"params": features[:, 0]}
    rng = np.random.default_rng(seed)
    return choose_ranker(features, losses, baselines, rng, NAMES, **{"candidates": makers, **more})


def test_report_card_tells_a_good_ranker_from_noise():
    features, losses = make_data(80)
    good = choose(features, losses)[1]
    noise = choose(features, np.random.default_rng(1).normal(size=80))[1]
    assert good.held_out.kendall_tau > 0.8 > 0.3 > abs(noise.held_out.kendall_tau)
    assert good.held_out.kendall_tau > good.baselines["params"].kendall_tau > 0.3
    low, high = good.held_out.interval
    assert low <= good.held_out.kendall_tau <= high
    assert noise.held_out.interval[0] < 0 < 0.6 < low


@pytest.mark.parametrize("make", [GaussianProcess, PairwiseLinear])
def test_the_error_of_a_card_is_on_networks_the_ranker_had_not_seen(make):
    features, losses = make_data(60, noise=0.3)
    ranker, card = choose(features, losses, candidates=[make])
    folds = _folds(60, np.random.default_rng(0))
    errors = held_out_predictions(make, features, losses, folds) - losses
    assert card.error == pytest.approx(np.sqrt(np.mean(errors**2)))
    known = np.sqrt(np.mean((ranker.predict(features) - losses) ** 2))
    assert card.error > known
    quick = quick_card(features, losses, make, 0)
    assert (quick.error, quick.held_out.kendall_tau) == (card.error, card.held_out.kendall_tau)


def test_cards_of_older_versions_know_no_error():
    card = choose(*make_data(40), candidates=[PairwiseLinear])[1].to_json()
    del card["error"]
    assert ReportCard.from_json(card).error is None


def test_report_card_is_complete_and_survives_json():
    ranker, card = choose(*make_data(40, noise=0.1))
    assert card.ranker == ranker.name in card.candidates
    assert [point.observations for point in card.curve] == [8, 16, 24, 32]
    assert card.curve[-1].fidelity == card.held_out
    assert card.importances == ranker.importances()
    assert ReportCard.from_json(json.loads(json.dumps(card.to_json()))) == card
    with pytest.raises(DamagedRunError, match="report card"):
        ReportCard.from_json(card.to_json() | {"curve": 3})


def test_the_candidate_with_the_best_held_out_tau_wins():
    rng = np.random.default_rng(0)
    features = rng.choice([-1.0, 1.0], (60, 4)) + 0.05 * rng.normal(size=(60, 4))
    ranker, card = choose(features, features[:, 0] * features[:, 1])
    assert "quadratic" in ranker.name
    assert card.held_out.kendall_tau == max(c.kendall_tau for c in card.candidates.values())


def test_same_seed_same_card_other_seed_other_folds():
    data = make_data(40, noise=0.2)
    assert choose(*data, seed=1)[1] == choose(*data, seed=1)[1]
    assert choose(*data, seed=1)[1] != choose(*data, seed=2)[1]


def test_every_network_is_held_out_once_and_never_trained_on():
    folds = report_card._folds(23, np.random.default_rng(0))
    assert sorted(row for _, held_out in folds for row in held_out) == list(range(23))
    for train, held_out in folds:
        assert not set(train) & set(held_out)
        assert len(train) + len(held_out) == 23


def test_losses_that_all_tie_give_a_card_that_trusts_nothing():
    features, _ = make_data(20)
    card = choose(features, np.ones(20))[1]
    assert card.held_out.kendall_tau == 0
    assert card.held_out.pairwise_accuracy == 0.5
    assert card.held_out.interval is None


def test_trees_are_left_out_with_a_note_where_they_do_not_load(monkeypatch):
    monkeypatch.setattr(PairwiseTrees, "available", staticmethod(lambda: False))
    card = choose(*make_data(20), candidates=None)[1]
    assert "pairwise trees" not in card.candidates
    assert "left out" in card.notes[0]


def test_default_candidates_include_trees():
    card = choose(*make_data(12), candidates=None)[1]
    assert "pairwise trees" in card.candidates
    assert card.notes == ()


def test_too_few_observations_are_refused():
    with pytest.raises(UsageError, match="at least 8"):
        choose(*make_data(7))
    with pytest.raises(UsageError, match="at least 8"):
        quick_card(*make_data(3), PairwiseLinear, 0)
    assert choose(*make_data(8))[1].observations == 8


def test_a_baseline_of_another_length_is_refused():
    features, losses = make_data(20)
    with pytest.raises(UsageError, match="'flops' has 3 numbers"):
        choose_ranker(features, losses, {"flops": [1, 2, 3]}, np.random.default_rng(0))


def test_of_very_many_networks_the_best_and_some_of_all_times_are_fitted():
    losses = np.random.default_rng(0).permutation(50).astype(np.float64)
    assert fitted_rows(losses, 50).tolist() == list(range(50))
    chosen = fitted_rows(losses, 20)
    assert len(set(chosen.tolist())) == 20 and (np.diff(chosen) > 0).all()
    assert set(np.argsort(losses)[:10]) <= set(chosen.tolist())
    rest = [n for n in chosen if losses[n] >= 10]
    assert min(rest) < 10 and max(rest) > 40
