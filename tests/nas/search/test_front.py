"""The front: what is kept, how it is sorted, read, picked from, and its published form."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jsonschema import Draft202012Validator
from referencing import Registry, Resource

from nas.objectives import OBJECTIVES, QUALITIES
from nas.search.front import Baseline, Front, FrontEntry, build_front, pick, read_front
from search_spaces.architecture import (
    ATTENTION_KINDS,
    SKIP,
    Architecture,
    DecoderLayer,
    DecoderStack,
    EncoderLayer,
    EncoderStack,
)
from search_spaces.errors import DamagedRunError, NasError, UnknownNameError, UsageError
from tests.support.pipeline_cases import ROOT, finished, tiny

GOALS = [OBJECTIVES["quality"], OBJECTIVES["flops"]]
PARETO = json.loads((ROOT / "docs" / "pareto.schema.json").read_text())
RETRAINED = json.loads((ROOT / "docs" / "retrained.schema.json").read_text())
ARCHITECTURE = {"$ref": f"{PARETO['$id']}#/$defs/architecture"}


def entry(quality: float, flops: int, ffn_dim: int = 0) -> FrontEntry:
    layer = EncoderLayer("softmax", 1, ffn_dim or round(1000 * quality) + flops)
    network = Architecture(encoder=EncoderStack(4, (layer,)))
    measured = {"quality": quality, "valid_accuracy": 0.5, "flops": flops, "params": 10}
    return FrontEntry(network.id, network, measured, {"quality": quality})


def front(*entries: FrontEntry, **limits: float) -> Front:
    return build_front(entries, GOALS, (1.0, 100.0), limits)


def valid(schema: dict[str, Any], value: Any) -> bool:
    resources = [(s["$id"], Resource.from_contents(s)) for s in (PARETO, RETRAINED)]
    registry: Registry[Any] = Registry().with_resources(resources)
    return bool(Draft202012Validator(schema, registry=registry).is_valid(value))


THREE = (entry(0.1, 90), entry(0.2, 30), entry(0.8, 10))


def test_dominated_networks_are_left_out() -> None:
    made = front(*THREE, entry(0.3, 31), entry(0.2, 30, 7))
    assert [e.measured["quality"] for e in made.entries] == [0.1, 0.2, 0.2, 0.8]


def test_one_network_twice_counts_once() -> None:
    assert len(front(*THREE, *THREE).entries) == 3


def test_the_order_is_quality_then_id() -> None:
    equal = [entry(0.2, 30, width) for width in (3, 1, 2)]
    made = front(*equal, *reversed(THREE[:1]))
    ids = [e.id for e in made.entries]
    assert ids == [THREE[0].id, *sorted(e.id for e in equal)]


def test_hypervolume_is_a_share() -> None:
    assert front(entry(0.5, 50)).hypervolume == pytest.approx(0.25)
    assert front(entry(0.5, 100)).hypervolume == 0.0
    assert front(entry(1.5, 50)).hypervolume == 0.0
    assert 0.25 < front(*THREE).hypervolume < 1.0


def test_limits_hold_and_the_edge_is_within() -> None:
    assert [e.measured["flops"] for e in front(*THREE, flops=30).entries] == [30, 10]
    assert [e.measured["flops"] for e in front(*THREE, flops=29.9).entries] == [10]


def test_limits_nobody_keeps_are_told() -> None:
    with pytest.raises(NasError, match=r"none of the 3 measured networks keeps flops ≤ 9"):
        front(*THREE, flops=9)


@pytest.mark.parametrize(
    ("flops", "roles"),
    [(30, [("largest",), ("nearest",)]), (88, [("largest", "nearest")])],
)
def test_of_the_nearest_ones_a_network_has_its_own(flops: int, roles: list[Any]) -> None:
    large, small = entry(0.3, 80), entry(0.6, 40)
    plain = (Baseline(large, ("largest", "nearest")), Baseline(small, ("nearest",)))
    held = replace(front(*THREE), baselines=plain).held_against(entry(0.2, flops))
    assert [one.roles for one in held.baselines] == roles
    assert held.held_against(entry(0.2, flops)) == held
    own = replace(front(*THREE), baselines=(Baseline(large, ("own",)),))
    assert own.held_against(small) == own


def test_json_and_back() -> None:
    made = front(*THREE)
    again = Front.from_json(json.loads(json.dumps(made.to_json())))
    assert again == made
    assert np.array_equal(again.points(), [[0.1, 90], [0.2, 30], [0.8, 10]])


def drop(name: str) -> Callable[[Any], None]:
    return lambda data: data.pop(name)


def put(name: str, value: Any) -> Callable[[Any], None]:
    return lambda data: data["front"][0].update({name: value})


@pytest.mark.parametrize(
    "damage",
    [
        *(drop(name) for name in ("schema", "objectives", "front", "hypervolume")),
        *(put(name, None) for name in ("architecture", "id", "measured", "predicted")),
        put("measured", {"quality": 0.1}),
        put("measured", {"quality": "0.1", "flops": 1}),
        put("measured", {"quality": float("nan"), "flops": 1}),
        put("measured", [1, 2]),
        lambda data: data.update(schema=2),
        lambda data: data.update(predicted_for={"latency_ms": "board"}),
        lambda data: data.update(front=[]),
        lambda data: data.update(hypervolume="much"),
        lambda data: data["objectives"][0].update(name="speed"),
        lambda data: data["objectives"][0].pop("reference"),
    ],
)
def test_a_damaged_front_is_refused(damage: Callable[[Any], None]) -> None:
    data = copy.deepcopy(front(*THREE).to_json())
    damage(data)
    with pytest.raises(DamagedRunError, match=r"pareto\.json"):
        Front.from_json(data)


@pytest.mark.parametrize("data", [None, [], 3, "front", {}])
def test_no_front_at_all_is_refused(data: Any) -> None:
    with pytest.raises(DamagedRunError):
        Front.from_json(data)


def test_picking() -> None:
    made = front(*THREE)
    assert pick(made, "best").id == THREE[0].id
    assert pick(made, "knee").id == THREE[1].id
    assert pick(made, THREE[2].id).id == THREE[2].id
    assert pick(made, THREE[2].id[:6]).id == THREE[2].id


def test_the_sensible_pick_pays_for_no_noise() -> None:
    close, far = entry(0.1009, 20), entry(0.102, 10)
    assert pick(front(*THREE, close, far), "sensible").id == close.id  # within 1 % of the loss
    of_accuracy = [QUALITIES["accuracy"].objective, OBJECTIVES["flops"]]
    made = build_front([*THREE, entry(0.109, 20), far], of_accuracy, (1.0, 100.0), {})
    assert pick(made, "sensible").id == far.id  # a point of accuracy is none
    unsure = replace(close, doubtful={"flops": "other work"})
    assert pick(front(*THREE, unsure), "sensible").id == THREE[0].id


@pytest.mark.parametrize("how", ["", "Knee", "abc", "zzzzzzzzzzzz"])
def test_an_unknown_pick_names_the_nearest(how: str) -> None:
    with pytest.raises(UsageError, match="nearest id is"):
        pick(front(*THREE), how)
    almost = THREE[1].id[:-1] + ("0" if THREE[1].id[-1] != "0" else "1")
    with pytest.raises(UsageError, match=THREE[1].id):
        pick(front(*THREE), almost)


@pytest.mark.parametrize(
    ("how", "which"),
    [
        ("cheapest", 2),
        ("flops<=30", 1),  # the best quality under a limit
        ("flops=89", 1),
        ("quality<=0.5", 1),  # the cheapest with a quality
        ("quality<=0.1", 0),
        ("valid_accuracy>=0.5", 2),
        ("params<=10,flops<=1e9", 0),
        ("quality<=0.9,flops<=40", 1),  # all objectives have one: the best
    ],
)
def test_picking_by_conditions(how: str, which: int) -> None:
    assert pick(front(*THREE), how).id == THREE[which].id


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("flops<=9", rf"flops ≤ 9; the nearest is {THREE[2].id} with flops 10"),
        ("quality<=0.05", rf"nearest is {THREE[0].id} with quality 0.1"),
        ("quality<=0.15,flops<=30", rf"≤ 0.15 and flops ≤ 30; the nearest is {THREE[1].id}"),
        ("latency_ms<=3", "latency_ms was not measured in this run; there are quality, flops"),
    ],
)
def test_conditions_that_no_network_meets_name_the_nearest(how: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        pick(front(*THREE), how)


def test_a_run_without_a_front_is_told(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="has no front yet"):
        read_front(tiny(tmp_path / "run"))


# -- the published form -------------------------------------------------------------------------


def test_the_schemas_are_schemas() -> None:
    Draft202012Validator.check_schema(PARETO)
    Draft202012Validator.check_schema(RETRAINED)


def test_every_kind_of_attention_fits_the_schema() -> None:
    """`skip` but in cross-attention, where it cannot stand."""
    for kind in (*ATTENTION_KINDS, "window:64", "linear:gated_delta"):
        encoder = EncoderStack(4, (EncoderLayer(kind, 1, 4),))
        cross = "softmax" if kind == SKIP else kind
        decoder = DecoderStack(4, (DecoderLayer(kind, 1, 4, cross, 1, 1),))
        network = Architecture(encoder, decoder).to_json()
        assert valid(ARCHITECTURE, network), kind
        network["decoder"]["layers"][0]["cross_attention"] = SKIP
        assert not valid(ARCHITECTURE, network)


@pytest.mark.usefixtures("few_regressors")
@pytest.mark.parametrize("cost", ["flops", "latency_ms"])
def test_real_results_fit_the_schemas(tmp_path: Path, cost: str) -> None:
    run = finished(tmp_path / "run", objectives=("quality", cost))
    data = run.read_json("pareto.json")
    (result,) = run.path.glob("retrained/*/result.json")
    trained = json.loads(result.read_text())
    assert valid(PARETO, data) and valid(RETRAINED, trained)
    assert read_front(run).to_json() == data
    for name in ("id", "test_accuracy", "seed", "architecture"):
        assert not valid(RETRAINED, {k: v for k, v in trained.items() if k != name})
    assert not valid(PARETO, data | {"time": 1}) and not valid(RETRAINED, trained | {"schema": 1})
    assert not valid(RETRAINED, trained | {"architecture": {"encoder": {}}})
    assert valid(RETRAINED, trained | {"schema": 5, "asked_epochs": 7})
    assert not valid(RETRAINED, trained | {"asked_epochs": 7})


@pytest.mark.parametrize(
    ("text", "flops"), [("1x", 90), ("1.5x", 30), ("3x", 30), ("3.1x", 10), ("9x", 10), ("20x", 10)]
)
def test_the_best_that_saves_so_much(text: str, flops: int) -> None:
    """Beside the network with the lowest loss; the cheapest where none saves as much."""
    assert pick(front(*THREE), text).measured["flops"] == flops


@pytest.mark.parametrize(("text", "flops"), [("1.5x", 30), ("2x", 10), ("4x", 10)])
def test_a_saving_counts_from_the_checkpoint(text: str, flops: int) -> None:
    """Which need not be on the front: another one may be as good by chance, and dearer."""
    made = replace(front(*THREE), checkpoint=entry(0.11, 50))
    assert pick(made, text).measured["flops"] == flops
    assert pick(made, "best").measured["flops"] == 90


def test_a_front_with_a_checkpoint_is_read_again() -> None:
    made = replace(front(*THREE), checkpoint=entry(0.11, 50))
    data = made.to_json()
    assert valid(PARETO, data) and data["schema"] == 5 and Front.from_json(data) == made
    foreign = replace(made, predicted_for={"latency_ms": "board"}).to_json()
    assert valid(PARETO, foreign) and foreign["schema"] == 5


@pytest.mark.parametrize("change", [{"schema": 1}, {"schema": 4}, {"checkpoint": None}])
def test_a_checkpoint_has_its_own_schema(change: dict[str, Any]) -> None:
    data = replace(front(*THREE), checkpoint=entry(0.11, 50)).to_json() | change
    with pytest.raises(DamagedRunError, match="(checkpoint is|baselines are) a part of schema"):
        Front.from_json(data)
    assert not valid(PARETO, data)


@pytest.mark.parametrize(
    ("predicted", "doubtful", "flops"),
    [
        ((90.0, 30.0), (False, True), 30),  # what was predicted says the same
        ((90.0, 70.0), (False, True), 10),
        ((90.0, 70.0), (False, False), 30),  # nobody doubts what was measured
        ((60.0, 50.0), (True, False), 10),
        (None, (False, True), 10),
        (None, (True, False), 30),
    ],
)
def test_a_doubtful_saving_is_believed_where_it_was_predicted(
    predicted: tuple[float, float] | None, doubtful: tuple[bool, bool], flops: int
) -> None:
    made = [
        replace(
            one,
            predicted={} if predicted is None else {"flops": predicted[number]},
            doubtful={"flops": "other work"} if doubtful[number] else {},
        )
        for number, one in enumerate(THREE[:2])
    ]
    assert pick(front(*made, THREE[2]), "2x").measured["flops"] == flops


def test_a_condition_on_a_cost_that_an_evaluator_tells_and_that_is_only_limited() -> None:
    with_energy = [
        replace(one, measured={**one.measured, "energy": 9.0 - n}) for n, one in enumerate(THREE)
    ]
    assert pick(front(*with_energy), "energy<=8.5").id == THREE[1].id
    with pytest.raises(UnknownNameError, match="energy"):
        pick(front(*THREE), "energy<=8.5")
