"""What the winner is held against: chosen, measured, trained and told."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from jsonschema import Draft202012Validator

from nas.console.commands.results import final_lines
from nas.console.commands.search import Here
from nas.objectives.size import network_costs
from nas.report.baseline_section import sentences
from nas.request.resolve import resolve
from nas.request.spec import SearchRequest
from nas.results.baselines import MainScore, _at_cost, comparisons, difference
from nas.results.reader import read_contents
from nas.results.state import read_state
from nas.run.events import Event
from nas.run.folder import RunFolder
from nas.search.front import Baseline, FrontEntry, pick, read_front, read_left
from nas.stages import baseline
from nas.stages.halve import candidates
from search_spaces.architecture import Architecture
from search_spaces.errors import UsageError
from search_spaces.genotypes import Genotypes
from search_spaces.loading import dump_space, load_space, parse_space
from search_spaces.plain import plain_rows
from tests.nas.search.test_front import THREE, front
from tests.support.pipeline_cases import (
    ROOT,
    TINY,
    edited,
    finished,
    finished_once,
    logged,
    named,
    tiny,
    work,
)

PARETO = json.loads((ROOT / "docs" / "pareto.schema.json").read_text())
KINDS = 'attention = ["softmax", "linear", "omni"]'


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A tiny search with plain baselines."""
    return finished(tmp_path_factory.mktemp("plain") / "run", baseline="plain")


def test_the_front_is_that_of_a_search_without(run: RunFolder, tmp_path: Path) -> None:
    with_them = run.read_json("pareto.json")
    assert Draft202012Validator(PARETO).is_valid(with_them)
    baselines = with_them.pop("baselines")
    assert with_them.pop("schema") == 4
    assert not Draft202012Validator(PARETO).is_valid({**with_them, "schema": 4})
    without = finished_once(tmp_path / "run").read_json("pareto.json")
    assert with_them == {name: without[name] for name in without if name != "schema"}
    assert [one["roles"] for one in baselines] in (
        [["largest"], ["nearest"]],
        [["largest", "nearest"]],
    )
    assert baselines[0]["measured"]["flops"] == max(one["measured"]["flops"] for one in baselines)


def test_all_are_trained_and_told_beside_each_other(run: RunFolder) -> None:
    front, state = read_front(run), read_state(run, thorough=True)
    assert state.summary == "finished"
    wanted = {pick(front, "knee").id, *(one.entry.id for one in front.baselines)}
    assert {one["id"] for one in state.retrained} == wanted
    seeds = {(one["seed"], one["epochs"]) for one in state.retrained}
    assert len(seeds) == 1
    told = [one.sentence for one in state.comparisons(run.spec)]
    assert len(told) == len(front.baselines)
    assert all(sentence.startswith(("Against the", "The winner is")) for sentence in told)
    contents = read_contents(run)
    assert sentences(contents) == told
    assert contents.trained_winner == state.trained_winner(run.spec) is not None
    assert all(any(sentence in line for line in final_lines(run)) for sentence in told)


def test_the_nearest_is_that_of_the_candidate_that_is_left(tmp_path: Path) -> None:
    """Each candidate has its own; one of them is trained, and told of."""
    numbers = {"retrain.epochs": "4"}
    folder = finished(
        tmp_path / "run", numbers=numbers, baseline="plain", pick="sensible", retrain=3
    )
    written = folder.read_json("pareto.json")["baselines"]
    front, left = read_front(folder), read_left(folder)
    assert left is not None
    space = folder.spec.space
    flops = network_costs(space, plain_rows(space))[:, 1]

    def missed(one: str) -> float:
        cost = pick(front, one).value("flops")
        return float(np.abs(np.log(flops / cost)).min())

    costs = [one["measured"]["flops"] for one in written if "nearest" in one["roles"]]
    for one in candidates(front, "sensible", 3):
        cost = pick(front, one).value("flops")
        assert np.abs(np.log(np.array(costs) / cost)).min() == pytest.approx(missed(one))
    (nearest,) = [one.entry for one in front.baselines if "nearest" in one.roles]
    own = nearest.value("flops") / pick(front, left).value("flops")
    assert abs(np.log(own)) == pytest.approx(missed(left))
    trained = {one["id"] for one in read_state(folder, thorough=True).retrained}
    assert trained == {left, *(one.entry.id for one in front.baselines)}
    assert read_contents(folder).front == front


def test_what_is_lost_is_trained_again_and_nothing_else(tmp_path: Path) -> None:
    folder = finished(tmp_path / "run", baseline="plain")
    before = folder.read_json("pareto.json")
    largest = read_front(folder).baselines[0].entry.id
    (folder.path / "baselines.json").unlink()
    (folder.path / f"retrained/{largest}/result.json").unlink()
    again = named(work(RunFolder.open(folder.path)), "StageStarted")
    assert set(again) == {"baseline", f"retrain-{largest}"}  # the report has the same inputs
    assert folder.read_json("pareto.json") == before


def test_limits_leave_no_plain_network(tmp_path: Path) -> None:
    """Of networks this small those with softmax attention have no more parameters: fewer FLOPs."""
    folder = tiny(tmp_path / "run", baseline="plain", limits={"flops": 1e9})
    work(folder)
    most = read_front(folder).baselines[0].entry
    tight = tiny(
        tmp_path / "tight", baseline="plain", limits={"params": most.measured["params"] - 1}
    )
    work(tight)
    smaller = read_front(tight).baselines[0].entry
    assert smaller.measured["params"] < most.measured["params"]
    assert "largest plain network within the limits" in " ".join(final_lines(tight))


def test_a_network_of_sizes_that_the_space_has_not(tmp_path: Path) -> None:
    layer = {"attention": "softmax", "num_heads": 3, "ffn_dim": 5}
    own = {"encoder": {"embed_dim": 6, "layers": [layer] * 3}}
    file = tmp_path / "mine.json"
    file.write_text(json.dumps(own))
    space = tmp_path / "tiny.toml"
    space.write_text(TINY)
    request = SearchRequest(space=str(space), baseline=str(file))
    assert resolve(request, Here()).spec.baseline == own
    folder = finished(tmp_path / "run", baseline=own)
    (baseline,) = read_front(folder).baselines
    assert baseline.roles == ("own",) and baseline.entry.predicted == {}
    assert baseline.entry.id == Architecture.from_json(own).id
    assert (folder.path / f"retrained/{baseline.entry.id}/weights.pt").exists()
    assert Draft202012Validator(PARETO).is_valid(folder.read_json("pareto.json"))
    assert not [one for one in logged(folder) if one["event"] == "EvaluationFailed"]


@pytest.mark.parametrize(
    ("name", "given", "words"),
    [
        ("python-source", "D64m8: s2/128", "the baseline, decoder.memory_length: a memory"),
        ("wmt14", "E64: s8/64 | D64: o8+s8@1/64", "the baseline, decoder.self_attention: .*linf"),
        ("wmt14", "E64: s8/64 | D64: s8+s7@1/64", "the baseline, decoder.cross_num_heads: found 7"),
        ("wmt14", "E64: o8/64 | D64: s8+s8@1/64", None),
    ],
)
def test_a_network_that_cannot_be_built_is_refused_at_once(
    name: str, given: str, words: str | None
) -> None:
    space = load_space(name)
    kinds = [one.name for one in space.slots if one.stack == "decoder" and "attention" in one.gene]
    space = space.restrict({kind: ["softmax"] for kind in kinds})
    text = dump_space(replace(space, model=replace(space.model, omni_kernel="linformer")))
    request = SearchRequest(space_toml=text, data="synthetic", baseline=given)
    if words is None:
        assert resolve(request, Here()).spec.baseline
        return
    with pytest.raises(UsageError, match=words):
        resolve(request, Here())


def test_where_there_can_be_none_it_is_said(tmp_path: Path) -> None:
    linear = tmp_path / "linear.toml"
    linear.write_text(edited((KINDS, 'attention = ["linear"]')))
    spec = resolve(SearchRequest(space=str(linear), data="synthetic"), Here()).spec
    assert spec.baseline is None
    for given in ({"encoder": {"embed_dim": 4}}, {"decoder": {"embed_dim": 4, "layers": []}}):
        with pytest.raises(ValueError, match="baseline"):
            SearchRequest(space=str(linear), baseline=given)
    with pytest.raises(UsageError, match="no such file"):
        resolve(SearchRequest(space=str(linear), baseline=str(tmp_path / "none.json")), Here())
    decoder = {
        "decoder": {
            "embed_dim": 4,
            "layers": [{"self_attention": "softmax", "self_num_heads": 1, "ffn_dim": 4}],
        }
    }
    with pytest.raises(UsageError, match="decoder"):
        resolve(SearchRequest(space=str(linear), baseline=decoder), Here())
    asked = {"evaluator": "a:B", "objectives": ("quality", "cost"), "baseline": decoder}
    with pytest.raises(UsageError, match="--baseline is for networks that are trained here"):
        resolve(SearchRequest(space="genes.toml", **asked), Here())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("measured", "chosen"),
    [({}, 0), ({"latency_ms": 10.5}, 1), ({"peak_memory_mb": 110.0}, 2), (None, 3)],
)
def test_the_largest_gives_way_in_the_limits_that_it_breaks(
    monkeypatch: pytest.MonkeyPatch, measured: dict[str, float] | None, chosen: int
) -> None:
    """A tenth less of one limited cost is enough where the other is kept."""
    space = parse_space(TINY, "space")
    rows = plain_rows(space)
    params, flops = network_costs(space, rows).T
    rows = rows[np.lexsort((-flops, -params))][:4]
    values = {
        "latency_ms": np.array([10.0, 8.0, 9.9, 8.0]),
        "peak_memory_mb": np.array([100.0, 95.0, 80.0, 80.0]),
    }
    ids = [network.id for network in space.decode(rows)]

    def predicted(asked: Genotypes) -> dict[str, Any]:
        places = [ids.index(network.id) for network in space.decode(asked)]
        return {name: known[places] for name, known in values.items()}

    def told(run: Any, networks: Sequence[Architecture]) -> Iterator[Event]:
        (network,) = networks
        off = {"latency_ms": 10.5, "peak_memory_mb": 110.0} if measured is None else measured
        own = {name: float(known[ids.index(network.id)]) for name, known in values.items()}
        own |= off if network.id == ids[0] else {}
        yield from ()
        return [FrontEntry(network.id, network, own, {})]

    monkeypatch.setattr(baseline, "_with_costs", told)
    limits = {"latency_ms": 10.2, "peak_memory_mb": 105.0}
    run: Any = SimpleNamespace(
        space=space,
        spec=SimpleNamespace(limits=limits),
        costs=SimpleNamespace(predict=predicted),
    )
    steps = baseline._largest(run, rows)
    with pytest.raises(StopIteration) as ended:
        next(steps)
    assert ended.value.value.id == ids[chosen]


def test_what_was_measured_costs_what_it_did_then(monkeypatch: pytest.MonkeyPatch) -> None:
    """A doubtful time is taken anew whenever it is asked for, and would come out another one."""
    space = parse_space(TINY, "space")
    networks = space.decode(plain_rows(space)[:3])
    there = networks[1]
    doubt = {"latency_ms": "its calm sessions differ by 6%"}
    known = replace(THREE[0], id=there.id, measured={"latency_ms": 1.9}, doubtful=doubt)
    asked: list[list[Architecture]] = []

    def measure(some: list[Architecture]) -> Any:
        asked.append(some)
        return SimpleNamespace(values=[SimpleNamespace(value=7.0, doubtful="")] * len(some))

    meter = SimpleNamespace(measure=measure)
    monkeypatch.setattr(baseline, "measured_entries", lambda run: [])
    monkeypatch.setattr(baseline, "with_confirmed", lambda run, entries: [*entries, known])
    monkeypatch.setattr(baseline, "run_meter", lambda run, one: meter)
    monkeypatch.setattr(baseline, "disturbances", lambda stage, timed: ())
    monkeypatch.setattr(baseline, "predicted_values", lambda run, rows: [{}])
    monkeypatch.setattr(baseline, "exact_costs", lambda run, rows, space: [{}])
    objectives = ("quality", "latency_ms")
    spec = SimpleNamespace(needs=objectives.__contains__, objectives=objectives, limits={})
    run: Any = SimpleNamespace(space=space, spec=spec, elsewhere=None, domain=None)
    with pytest.raises(StopIteration) as ended:
        next(baseline._with_costs(run, networks))
    assert [(one.measured["latency_ms"], one.doubtful) for one in ended.value.value] == [
        (7.0, {}),
        (1.9, doubt),
        (7.0, {}),
    ]
    assert asked == [[networks[0], networks[2]]], "timed together"


@pytest.mark.parametrize(
    ("own", "other", "words"),
    [
        (("accuracy", 0.974), ("accuracy", 0.962), "accuracy 1.2 points better (97.4 % against"),
        (("accuracy", 0.962), ("accuracy", 0.974), "accuracy 1.2 points worse"),
        (("accuracy", 0.970), ("accuracy", 0.965), "equal accuracy (97.0 % against 96.5 %)"),
        (("perplexity", 9.0), ("perplexity", 10.0), "perplexity 10.0 % better (9 against 10)"),
        (("perplexity", 11.0), ("perplexity", 10.0), "perplexity 10.0 % worse"),
        (("bleu", 31.0), ("bleu", 29.0), "bleu 2 better"),
    ],
)
def test_a_difference_in_words(
    own: tuple[str, float], other: tuple[str, float], words: str
) -> None:
    assert difference(MainScore(*own), MainScore(*other)).startswith(words)


def test_a_winner_that_was_trained_longer_is_said_to_be() -> None:
    winner, plain = THREE[:2]
    made = replace(front(*THREE), baselines=(Baseline(plain, ("largest",)),))
    scores = {winner.id: MainScore("accuracy", 0.97), plain.id: MainScore("accuracy", 0.95)}
    (alike,) = comparisons(made, winner, scores, limited=False)
    assert "trained" not in alike.sentence
    scores[winner.id] = MainScore("accuracy", 0.97, 1200)
    (longer,) = comparisons(made, winner, scores, limited=False)
    assert longer.sentence == alike.sentence.removesuffix(".") + (
        ", trained for 1,200 epochs where that one trained as long as the request says."
    )


def test_a_ratio_of_doubtful_costs_is_called_doubtful() -> None:
    winner, plain = THREE[:2]
    cost = front(*THREE).objectives[1].name
    scores = {winner.id: MainScore("accuracy", 0.97), plain.id: MainScore("accuracy", 0.95)}
    for doubtful in ({}, {cost: "0 of 7 sessions were calm"}):
        beside = Baseline(replace(plain, doubtful=doubtful), ("largest",))
        made = replace(front(*THREE), baselines=(beside,))
        (told,) = comparisons(made, winner, scores, limited=False)
        assert told.sentence.endswith(", which is doubtful.") == bool(doubtful)


def test_costs_that_are_nought_are_compared_without_a_ratio() -> None:
    winner, plain = THREE[:2]
    cost = "full_attention_layers"
    for mine, theirs, words in (
        (0.0, 0.0, "at equal layers of full attention"),
        (2.0, 0.0, "at 2 layers of full attention for none"),
        (0.0, 2.0, "at 0.00 of the layers of full attention"),
        (3.0, 2.0, "at 1.50 times the layers of full attention"),
    ):
        entries = [replace(one, measured={cost: v}) for one, v in ((winner, mine), (plain, theirs))]
        assert _at_cost(cost, *entries) == words
    entries = [replace(one, measured={"kv_cache_mb": v}) for one, v in ((winner, 1.5), (plain, 0))]
    assert _at_cost("kv_cache_mb", *entries) == "at 1.5 MB for none"


def test_the_nearest_is_that_of_the_smallest_ratio_or_to_nought_of_the_smallest_cost() -> None:
    costs = np.array([1.0, 2.0, 8.0, 0.0])
    assert baseline._distances(costs, 4.0).tolist() == [0.75, 0.5, 0.5, 1.0]
    assert baseline._distances(costs, 0.0).tolist() == costs.tolist()
