"""Pruning: what is useless goes, what helps at some price stays, and every cut can be defended."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace

import numpy as np
import pytest

from nas.request.protected_choices import everything
from nas.search.evolution import EvolutionSettings, Scores, archive, evolve
from nas.search.pareto import hypervolume
from nas.search.pruning.evidence import Candidate, _wilson_high, candidates, draw, elite, lift
from nas.search.pruning.prune import PruningSettings, prune
from nas.search.ranking.report_card import Fidelity, ReportCard
from search_spaces.encoding import encode_features, feature_names
from search_spaces.errors import UsageError
from search_spaces.settings import ImageInput, ModelSettings
from search_spaces.space import SearchSpace, Slot
from search_spaces.variation import enumerate_all, sample

KINDS = ("softmax", "linear", "omni")
QUICK = PruningSettings(sample=4096)


def make_space(depth=3):
    slots = [
        Slot("encoder", "embed_dim", None, (8, 16, 32)),
        Slot("encoder", "num_layers", None, tuple(range(1, depth + 1))),
    ]
    for layer in range(depth):
        slots.append(Slot("encoder", "attention", layer, KINDS))
        slots.append(Slot("encoder", "num_heads", layer, (1, 2)))
        slots.append(Slot("encoder", "ffn_dim", layer, (8, 16, 32)))
    model = ModelSettings(ImageInput(8, 2, 1), max_length=16, num_classes=10, head_dim=8)
    return SearchSpace("toy", "classification", model, tuple(slots))


SPACE = make_space()


def make_card(tau=0.9, accuracy=0.95, error=0.0):
    held_out = Fidelity(tau, tau, accuracy, 50)
    return ReportCard("any", 50, 5, held_out, {}, {}, (), {}, error=error)


def landscape(genotypes, omni=0.1, limit=np.inf):
    """Size buys quality; linear is cheap and a little worse; omni is dear and `omni` worse."""
    features = encode_features(SPACE, genotypes)
    names = feature_names(SPACE)

    def column(name):
        return features[:, names.index(f"encoder.{name}")]

    depth = column("num_layers")
    size = column("embed_dim") * (column("sum.ffn_dim") + 4 * column("sum.num_heads"))
    linear, many = column("count.attention=linear"), column("count.attention=omni")
    loss = 2 / np.log(size) + (0.03 * linear + omni * many) / depth
    cost = size * (1 - 0.5 * linear / depth + 1.0 * many / depth)
    return Scores(np.column_stack([loss, cost]), np.maximum(0, cost - limit))


def observe(count=40, omni=0.1):
    rows = sample(SPACE, np.random.default_rng(7), count)
    return rows, landscape(rows, omni).objectives


def run(evaluate=landscape, settings=QUICK, card=None, **more):
    observed, objectives = observe()
    return prune(
        SPACE, evaluate, card or make_card(), observed, objectives, 0, settings=settings, **more
    )


def names(parts):
    return {(part.name, part.choice) for part in parts}


def test_a_choice_that_is_dear_and_bad_goes_and_no_other():
    pruned = run()
    assert ("encoder.attention", "omni") in names(pruned.cuts)
    for slot in pruned.space.slots:
        kept = set(SPACE.slot(slot.name).choices) & {"softmax", "linear", 8, 1}
        assert kept <= set(slot.choices), slot.name


def test_a_choice_that_pays_for_its_price_stays():
    def evaluate(rows):
        return landscape(rows, omni=-0.4)

    observed, objectives = observe(omni=-0.4)
    pruned = prune(SPACE, evaluate, make_card(), observed, objectives, 0, settings=QUICK)
    assert "omni" not in {cut.choice for cut in pruned.cuts}


def test_sizes_and_shares_are_exact_and_fall():
    pruned = run()
    sizes = [SPACE.size] + [cut.size for cut in pruned.cuts]
    assert all(after < before for before, after in itertools.pairwise(sizes))
    assert sizes[-1] == pruned.space.size == len(enumerate_all(pruned.space))
    assert pruned.cuts[-1].share == pruned.space.size / SPACE.size
    assert pruned.space.parent_digest == SPACE.digest


def test_the_evidence_of_a_cut():
    cut = next(cut for cut in run().cuts if cut.choice == "omni")
    evidence = cut.evidence
    assert evidence.lift.ratio < evidence.lift.high < 0.5
    assert evidence.lift.sampled_share == pytest.approx(1 / 3, abs=0.03)
    assert evidence.predicted_effects[0] == pytest.approx(0.085, abs=0.005)
    assert evidence.predicted_effects[1] > 0
    assert evidence.observed_effect > 0
    assert evidence.observed_t > 0
    assert cut.hypervolume_ratio > 0.99


def test_the_pruned_space_holds_as_good_a_front():
    pruned = run().space
    settings = EvolutionSettings(32, 25)
    volumes = []
    for space in (SPACE, pruned):
        search = evolve(space, lambda g, s=space: landscape(s.translate(g, SPACE)), settings, 0)
        points = archive(search).objectives
        volumes.append(hypervolume(np.log(points), np.log([3.0, 9000.0])))
    assert volumes[1] > 0.995 * volumes[0]


@pytest.mark.parametrize(
    ("tau", "accuracy", "word"), [(0.3, 0.9, "Kendall tau is 0.30"), (0.9, 0.6, "pairwise")]
)
def test_a_ranker_below_the_threshold_cuts_nothing(tau, accuracy, word):
    pruned = run(card=make_card(tau, accuracy))
    assert word in pruned.refused
    assert pruned.space is SPACE
    assert pruned.cuts == pruned.kept == ()


def test_a_ranker_at_the_threshold_may_cut():
    assert run(card=make_card(0.5, 0.7)).refused is None


@pytest.mark.parametrize("name", ["encoder.attention", "encoder.1.attention"])
def test_what_the_caller_wants_stays(name):
    pruned = run(keep={name: ("omni",)})
    assert "omni" in pruned.space.slot("encoder.1.attention").choices
    assert ("encoder.attention", "omni") in names(pruned.kept)
    assert "asked" in pruned.kept[0].reason
    others = {cut.name for cut in pruned.cuts if cut.choice == "omni"}
    assert ("encoder.0.attention" in others) == (name == "encoder.1.attention")


@pytest.mark.parametrize("keep", [{"encoder.colour": ("red",)}, {"encoder.ffn_dim": (7,)}])
def test_wanting_what_is_not_there_is_refused(keep):
    with pytest.raises(UsageError, match="nas space show"):
        run(keep=keep)


def test_protecting_all_undoes_every_cut_and_keep_the_evidence():
    pruned = run(keep=everything(SPACE))
    assert pruned.space is SPACE and pruned.cuts == ()
    assert names(pruned.kept) >= names(run().cuts)
    assert {one.reason for one in pruned.kept} == {"It was asked to be kept."}
    assert pruned.to_json()["vetoes"]["encoder.attention"] == list(KINDS)


def test_a_kept_choice_keeps_its_layer():
    def shallow(rows):
        scores = landscape(rows)
        deep = SPACE.depths(rows, "encoder") == 3
        return Scores(scores.objectives * (1 + 5.0 * deep[:, None]), scores.violations)

    def depths(**more):
        nothing = observe()[0][:0], np.zeros((0, 2))
        return prune(SPACE, shallow, make_card(), *nothing, 0, settings=QUICK, **more)

    assert ("encoder.num_layers", 3) in names(depths().cuts)
    kept = {(k.name, k.choice): k.reason for k in depths(keep={"encoder.2.ffn_dim": (8,)}).kept}
    assert "A layer" in kept["encoder.num_layers", 3]
    # Of a gene that is kept in all layers, others remain.
    assert ("encoder.num_layers", 3) in names(depths(keep={"encoder.ffn_dim": (8,)}).cuts)


def test_choices_of_the_best_observed_networks_stay():
    observed, objectives = observe()
    hero = np.flatnonzero((observed == KINDS.index("omni")).any(axis=1))[0]
    omni = [2 + 3 * layer for layer in range(3)]
    observed[hero, omni] = np.where(SPACE.active(observed)[hero, omni], 2, 0)
    objectives[hero, 0] = 0.0
    pruned = prune(SPACE, landscape, make_card(), observed, objectives, 0, settings=QUICK)
    assert ("encoder.attention", "omni") in names(pruned.kept)
    assert "omni" in pruned.space.slot("encoder.0.attention").choices


def test_what_is_beyond_the_limits_protects_nothing():
    """A network that is good because it may cost what no other may keeps no choice."""

    def cuts(missed):
        observed, objectives = observe()
        hero = np.flatnonzero((observed == KINDS.index("omni")).any(axis=1))[0]
        omni = [2 + 3 * layer for layer in range(3)]
        observed[hero, omni] = np.where(SPACE.active(observed)[hero, omni], 2, 0)
        objectives[hero, 0] = 0.0

        def evaluate(rows):
            same = (rows == observed[hero]).all(axis=1)
            return Scores(landscape(rows).objectives, missed * same)

        return names(prune(SPACE, evaluate, make_card(), observed, objectives, 0, QUICK).cuts)

    assert ("encoder.attention", "omni") not in cuts(0.0)
    assert ("encoder.attention", "omni") in cuts(1.0)


def test_a_card_of_an_older_version_justifies_no_cut():
    pruned = run(card=make_card(error=None))
    assert pruned.space is SPACE and "older version" in pruned.refused


def test_nothing_observed_protects_nothing():
    rows, objectives = observe()
    pruned = prune(SPACE, landscape, make_card(), rows[:0], objectives[:0], 0, settings=QUICK)
    cut = next(cut for cut in pruned.cuts if cut.choice == "omni")
    assert cut.evidence.observed_effect is cut.evidence.observed_t is None


def test_the_last_choice_of_a_slot_is_never_cut():
    single = SPACE.restrict({f"encoder.{layer}.attention": ("omni",) for layer in range(3)})

    def evaluate(rows):
        return landscape(single.translate(rows, SPACE))

    observed = np.zeros((0, len(SPACE.slots)), dtype=np.int16)
    impatient = replace(QUICK, max_lift=1e9, tolerance=1.0)
    pruned = prune(single, evaluate, make_card(), observed, np.zeros((0, 2)), 0, impatient)
    assert all(slot.choices for slot in pruned.space.slots)
    assert any("last choice" in choice.reason for choice in pruned.kept)
    assert pruned.space.size >= 1


def test_the_last_choice_in_one_layer_saves_it_there_and_not_in_the_others():
    narrow = SPACE.restrict({"encoder.0.attention": ("omni",)})

    def evaluate(rows):
        return landscape(narrow.translate(rows, SPACE))

    nothing = np.zeros((0, len(SPACE.slots)), dtype=np.int16), np.zeros((0, 2))
    for settings in (QUICK, replace(QUICK, max_lift=2.0)):
        pruned = prune(narrow, evaluate, make_card(), *nothing, 0, settings=settings)
        assert pruned.space.slot("encoder.0.attention").choices == ("omni",)
        assert "omni" not in pruned.space.slot("encoder.2.attention").choices
    reasons = {one.reason for one in pruned.kept if one.choice == "omni"}
    assert reasons == {"It is the last choice of encoder.0.attention."}


@pytest.mark.parametrize("seed", range(5))
def test_however_impatient_every_slot_keeps_a_choice(seed):
    rng = np.random.default_rng(seed)
    impatient = replace(QUICK, sample=512, min_elite=1, max_lift=1e9, tolerance=1.0)
    weights = rng.normal(size=(len(SPACE.slots), 2))

    def evaluate(rows):
        return Scores(np.exp(rows @ weights / 4), np.zeros(len(rows)))

    nothing = np.zeros((0, len(SPACE.slots)), dtype=np.int16), np.zeros((0, 2))
    pruned = prune(SPACE, evaluate, make_card(), *nothing, seed, settings=impatient)
    assert len(pruned.cuts) > 5 and pruned.space.size >= 1
    assert all(slot.choices for slot in pruned.space.slots)


def test_a_cut_that_loses_hypervolume_is_taken_back():
    strict = replace(QUICK, max_lift=3.0, tolerance=0.0)
    rows, objectives = observe()
    nothing = rows[:0], objectives[:0]  # which protects nothing
    pruned = prune(SPACE, landscape, make_card(), *nothing, 0, settings=strict)
    assert any("hypervolume" in choice.reason for choice in pruned.kept)
    assert all(cut.hypervolume_ratio >= 1 for cut in pruned.cuts)


def test_limits_that_almost_nothing_meets_are_a_reason_to_refuse():
    pruned = run(evaluate=lambda rows: landscape(rows, limit=1.0))
    assert "meet the limits" in pruned.refused
    assert pruned.space is SPACE


def test_a_tight_limit_draws_more_and_judges_by_what_meets_it():
    free, tight = run(), run(evaluate=lambda rows: landscape(rows, limit=190.0))
    too_wide = ("encoder.embed_dim", 32)  # costs at least 192
    assert too_wide in names(tight.cuts) | names(tight.kept)
    assert too_wide not in names(free.cuts) | names(free.kept)


def test_same_seed_same_audit_as_json():
    one, two = run(), run()
    text = json.dumps(one.to_json(), allow_nan=False)
    assert text == json.dumps(two.to_json())
    assert json.loads(text)["size"] == one.space.size


def test_each_observed_network_needs_objectives():
    rows, objectives = observe()
    with pytest.raises(UsageError, match="40 networks and 39"):
        prune(SPACE, landscape, make_card(), rows, objectives[1:], 0)


@pytest.mark.parametrize("wrong", [{"elite_share": 0}, {"elite_share": 1}, {"sample": 0}])
def test_settings_out_of_range_are_refused(wrong):
    with pytest.raises(UsageError):
        PruningSettings(**wrong)


def test_candidates_are_genes_then_slots_each_choice_once():
    found = candidates(SPACE)
    assert len(found) == 3 + 2 + 3 + sum(len(slot.choices) for slot in SPACE.slots)
    assert [len(candidate.places) for candidate in found[:8]] == [3] * 8
    assert {len(candidate.places) for candidate in found[8:]} == {1}


def test_absent_layers_do_not_count_as_their_first_choice():
    rows = enumerate_all(make_space(depth=2))
    deep = Candidate("encoder.1.attention", "softmax", ((5, 0),))
    found = lift(make_space(depth=2), deep, rows, rows)
    assert found.sampled_share == found.elite_share == pytest.approx(1 / 3)
    assert found.ratio == 1


def test_elite_spans_the_costs_and_is_ordered_by_loss():
    drawn = draw(SPACE, SPACE, landscape, 2000, 0)
    points = landscape(elite(drawn, 200)).objectives
    assert len(points) == 200
    assert (np.diff(points[:, 0]) >= 0).all()
    everyone = drawn.scores.objectives
    assert (points.min(axis=0) == everyone.min(axis=0)).all()
    assert points[:, 1].max() > np.quantile(everyone[:, 1], 0.8)


def test_wilson_interval_by_table():
    assert _wilson_high(0, 10) == pytest.approx(0.2775, abs=1e-3)
    assert _wilson_high(5, 10) == pytest.approx(0.7634, abs=1e-3)
    assert _wilson_high(0, 0) == 1
