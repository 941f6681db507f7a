"""Searches whose networks an evaluator knows, from Python: good evaluators and others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest

import nas.results
from nas.executors.base import ExecutorSettings
from nas.run.folder import RunFolder
from nas.search.front import Front, pick, read_front
from nas.search.pareto import non_dominated
from nas.searching import search
from nas.stages.pipeline import run_search
from search_spaces.errors import DataError, EvaluationError, NasError, UsageError
from search_spaces.genes import Gene, GeneSpace, parse_genes
from search_spaces.variation import enumerate_all
from tests.support.external_cases import (
    GENES,
    NUMBERS,
    Accuracy,
    Exact,
    Good,
    Short,
    Wrong,
    asked_twice,
    failed_lines,
    loss,
    ms,
)
from tests.support.pipeline_cases import ROOT

pytestmark = pytest.mark.usefixtures("few_regressors")

SPACE = parse_genes(GENES, "mine.toml")
SCHEMA = json.loads((ROOT / "docs" / "pareto_genes.schema.json").read_text("utf-8"))


def searched(path: Path, evaluator: Any, **asked: Any) -> Front:
    values: dict[str, Any] = {"settings": NUMBERS, **asked}
    return search(SPACE, evaluator, ["quality", "ms"], out=path, **values)


@pytest.mark.parametrize("make", [Good, Exact, Accuracy])
def test_a_search_finds_a_front_and_asks_for_nothing_twice(tmp_path: Path, make: Any) -> None:
    evaluator = make()
    front = searched(tmp_path / "run", evaluator)
    assert 20 <= len(evaluator.asked) <= 24 and not asked_twice(evaluator.asked)
    less = 10 if make is Accuracy else 0
    for entry in front.entries:
        network = entry.network.to_json()
        assert entry.measured["quality"] == pytest.approx(loss(network) - less)
        assert entry.measured["ms"] == pytest.approx(ms(network))
        assert entry.id == SPACE.network(network).id
    points = np.array([[e.value("quality"), e.value("ms")] for e in front.entries])
    assert non_dominated(points).all() and 0 < front.hypervolume < 1
    assert (front.origin < 0) == (make is Accuracy)
    assert Front.from_json(front.to_json(), SPACE.network) == front
    jsonschema.validate(front.to_json(), SCHEMA)
    again = searched(tmp_path / "run", make())
    assert again == front


def test_the_front_is_near_that_of_all_networks(tmp_path: Path) -> None:
    numbers = {**NUMBERS, "observations": "48", "rounds.patience": "0"}
    front = searched(tmp_path / "run", Exact(), settings=numbers)
    networks = [network.to_json() for network in SPACE.decode(enumerate_all(SPACE))]
    points = np.array([[loss(network), ms(network)] for network in networks])
    best = {tuple(point) for point in points[non_dominated(points)].round(6).tolist()}
    found = {(round(e.value("quality"), 6), round(e.value("ms"), 6)) for e in front.entries}
    assert len(found & best) >= 0.7 * len(best)


@pytest.mark.parametrize("searcher", ["random", "nsga2", "tpe", "ranknas"])
def test_all_searchers_run(tmp_path: Path, searcher: str) -> None:
    evaluator = Good()
    front = searched(tmp_path / "run", evaluator, searcher=searcher)
    assert front.entries and not asked_twice(evaluator.asked)


def test_limits_are_kept(tmp_path: Path) -> None:
    front = searched(tmp_path / "run", Good(), limits={"ms": 3.0})
    assert front.entries and all(entry.value("ms") <= 3.0 for entry in front.entries)
    with pytest.raises(NasError, match=r"none of the \d+ measured networks keeps ms ≤ 0.5"):
        searched(tmp_path / "other", Good(), limits={"ms": 0.5})


def test_conditions_on_told_costs_pick(tmp_path: Path) -> None:
    front = searched(tmp_path / "run", Good(), pick="ms<=3")
    assert pick(front, "ms<=3").value("ms") <= 3
    with pytest.raises(UsageError, match="no 'energy' is measured"):
        pick(front, "energy<=3")
    with pytest.raises(UsageError, match="an evaluator tells quality and costs alone"):
        searched(tmp_path / "other", Good(), pick="valid_bleu>=30")


USELESS = """
[space]
name = "useless"

[genes.width]
integer = { from = 1, to = 12 }

[genes.layers]
integer = { from = 1, to = 3 }

[genes.act]
category = ["good", "bad", "worse"]
per_layer = "layers"

[genes.norm]
category = ["layer", "rms"]

[genes.eps]
real = [0.1, 0.2]
when = { norm = ["rms"] }
"""


class Plain(Good):
    """Of whose space the last two of ``act`` and the second of ``eps`` only do harm."""

    batch = 8

    def answer(self, network: dict[str, Any]) -> Any:
        harm = sum({"good": 0.0, "bad": 0.5, "worse": 1.0}[act] for act in network["act"])
        return 1 + 4 / network["width"] / network["layers"] + harm + network.get("eps", 0.0)

    def costs(self, networks: Any) -> dict[str, list[float]]:
        return {"ms": [float(one["width"] * one["layers"]) for one in networks]}


def test_choices_that_only_harm_are_cut_and_those_that_decide_stay(tmp_path: Path) -> None:
    space = parse_genes(USELESS, "useless.toml")
    numbers = {**NUMBERS, "observations": "64", "rounds.first": "40"}
    front = search(space, Plain(), ["quality", "ms"], out=tmp_path / "run", settings=numbers)
    folder = RunFolder.open(tmp_path / "run")
    cuts = {(cut["name"], cut["choice"]) for cut in folder.read_json("pruning.json")["cuts"]}
    assert {("act", "worse"), ("act", "bad")} <= cuts
    assert {name for name, _ in cuts} <= {"width", "act", "eps"}
    left = parse_genes((tmp_path / "run" / "pruned_space.toml").read_text("utf-8"), "pruned.toml")
    assert left.gene("act").choices == ("good",) and left.size < space.size / 3
    assert left.gene("norm") == space.gene("norm") and left.parent_digest is None
    assert all(set(entry.network.to_json()["act"]) == {"good"} for entry in front.entries)
    page = (tmp_path / "run" / "report.html").read_text("utf-8")
    assert "act = worse" in page


# -- interrupted ----------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [Good, Exact])
def test_a_search_killed_anywhere_asks_for_nothing_twice(tmp_path: Path, make: Any) -> None:
    whole = searched(tmp_path / "whole", make())
    spec = RunFolder.open(tmp_path / "whole").spec
    folder, evaluator = RunFolder.create(tmp_path / "run", spec), make()
    for count in (3, 15, 30, 40):
        events = run_search(folder, evaluator=evaluator)
        for _ in range(count):
            next(events, None)
        events.close()
    assert list(run_search(folder, evaluator=evaluator))
    assert read_front(folder) == whole
    assert not asked_twice(evaluator.asked)


# -- wrong evaluators -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("raises", "the evaluator raised ValueError: no such layer"),
        ("exits", "the evaluator raised SystemExit: 3"),
        ("nan", "no finite number as the quality: nan"),
        ("no cost", "told no cost 'ms'"),
        ("bad cost", "gave the cost ms=0: not above 0"),
        ("hangs", "it took longer than 0.2 s"),
    ],
)
def test_what_is_wrong_is_recorded_and_ends_no_search(tmp_path: Path, how: str, words: str) -> None:
    evaluator = Wrong(how)
    front = searched(tmp_path / "run", evaluator, evaluation_timeout_s=0.2)
    assert front.entries and all(entry.network["width"] != 16 for entry in front.entries)
    lines = failed_lines(RunFolder.open(tmp_path / "run"))
    assert lines and all(words in line["failed"]["reason"] for line in lines)
    assert {line["architecture"]["width"] for line in lines} == {16}
    assert not asked_twice(evaluator.asked)
    kinds = {line["failed"]["kind"] for line in lines}
    assert kinds == {"timeout" if how == "hangs" else "error"}


@pytest.mark.parametrize("evaluator", [Wrong("raises", None), Wrong("nan", None), Short()])
def test_too_many_failures_end_in_a_sentence_and_can_be_mended(
    tmp_path: Path, evaluator: Any
) -> None:
    with pytest.raises(EvaluationError, match=r"8 of 8 networks could not be .*mend that and resu"):
        searched(tmp_path / "run", evaluator)
    if isinstance(evaluator, Wrong):
        evaluator.width = 16
        assert searched(tmp_path / "run", evaluator).entries


class Tired(Good):
    """Fails after some networks, until it is mended."""

    left = 7

    def answer(self, network: dict[str, Any]) -> Any:
        self.left -= 1
        if self.left < 0:
            raise OSError("the rig is off")
        return super().answer(network)


def test_what_was_told_before_many_failures_is_not_asked_for_again(tmp_path: Path) -> None:
    evaluator = Tired()
    with pytest.raises(EvaluationError, match="8 of 15 networks"):
        searched(tmp_path / "run", evaluator)
    told = evaluator.asked[:7]
    evaluator.left = 10_000
    assert searched(tmp_path / "run", evaluator).entries
    again = [network for network in evaluator.asked[7:] if network in told]
    assert again == [] and not failed_lines(RunFolder.open(tmp_path / "run"))


class Loud(Good):
    def answer(self, network: dict[str, Any]) -> Any:
        print("evaluating")
        return super().answer(network)


def test_what_an_evaluator_prints_is_kept_apart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    searched(tmp_path / "run", Loud())
    said = capsys.readouterr()
    assert "evaluating" not in said.out and "evaluating" in said.err


class Changing(Exact):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def costs(self, networks: Any) -> dict[str, list[float]]:
        return {"ms": [self.factor * ms(network) for network in networks]}


def test_costs_that_change_between_sessions_are_noticed(tmp_path: Path) -> None:
    searched(tmp_path / "run", Changing(1.0))
    (tmp_path / "run" / "stages" / "verify.json").unlink()
    with pytest.raises(DataError, match="is not what it was when this run began: its costs was"):
        searched(tmp_path / "run", Changing(2.0))
    assert searched(tmp_path / "run", Changing(1.0)).entries


class Versioned(Good):
    def __init__(self, digest: Any) -> None:
        super().__init__()
        self.digest = digest


def test_an_evaluator_says_which_version_it_is(tmp_path: Path) -> None:
    for first, second in (("v1", "v2"), (1, 2)):
        run = tmp_path / f"run-{first}"
        searched(run, Versioned(first))
        (run / "stages" / "verify.json").unlink()
        with pytest.raises(DataError, match=f"its digest was {first} and is {second}"):
            searched(run, Versioned(second))
        assert searched(run, Versioned(first)).entries


@pytest.mark.parametrize("digest", [b"v1", ("v", 1), len])
def test_a_digest_that_is_no_version_says_nothing(tmp_path: Path, digest: Any) -> None:
    searched(tmp_path / "run", Versioned(digest))
    assert RunFolder.open(tmp_path / "run").read_json("data.json")["digest"] is None
    (tmp_path / "run" / "stages" / "verify.json").unlink()
    assert searched(tmp_path / "run", Versioned(digest)).entries


class Contrary(Exact):
    def answer(self, network: dict[str, Any]) -> Any:
        return {"quality": loss(network), "costs": {"ms": 1.0}}


def test_an_evaluator_that_contradicts_its_costs_fails(tmp_path: Path) -> None:
    with pytest.raises(EvaluationError, match="gave ms=1, and .* among its costs"):
        searched(tmp_path / "run", Contrary())


@pytest.mark.parametrize(
    ("told", "words"),
    [
        ({"ms": [1.0]}, "has 1 numbers above 0 for 2 networks"),
        ({"ms": ["1", "2"]}, "has 0 numbers above 0"),
        ([1.0], "have to be a mapping"),
        (ValueError("no table"), "cannot be told: ValueError: no table"),
    ],
)
def test_wrong_costs_end_in_a_sentence(
    tmp_path: Path, told: Any, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def costs(self: Exact, networks: Any) -> Any:
        if len(networks) == 1:
            return {"ms": [1.0]}
        if isinstance(told, Exception):
            raise told
        return told

    monkeypatch.setattr(Exact, "costs", costs)
    with pytest.raises(EvaluationError, match=words):
        searched(tmp_path / "run", Exact())


# -- requests -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"quality": "bleu"}, "--quality is for networks that are trained here"),
        ({"keep": "all"}, "--keep is for networks that are trained here"),
        ({"device": "cuda"}, "--device is for networks that are trained here"),
        ({"limits": {"id": 3}}, "cannot be called 'id'"),
        ({"limits": {"ms": -1}}, "must be above 0"),
        ({"limits": {"ms_std": 3}}, "cannot be called 'ms_std' beside 'ms', whose uncertainty"),
        (
            {"limits": {"latency_ms": 3, "latency_upper_ms": 3}},
            "'latency_upper_ms' beside 'latency_ms', whose upper bound",
        ),
        ({"settings": {"rounds.prune": "true"}}, "rounds.prune is for networks that are trained"),
        ({"pick": "energy<=3"}, "no 'energy' is measured"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_wrong_requests_are_told(tmp_path: Path, asked: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        searched(tmp_path / "run", Good(), **asked)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "names",
    [["quality"], ["ms"], ["quality", "tokens_per_s"], ["quality", "ms_std", "ms"]],
)
def test_wrong_objectives_are_told(tmp_path: Path, names: list[str]) -> None:
    with pytest.raises(UsageError, match="objectives need quality and|cannot be called"):
        search(SPACE, Good(), names, out=tmp_path / "run")


def test_a_space_of_few_networks_is_refused(tmp_path: Path) -> None:
    few = GeneSpace("few", (Gene("width", (1, 2, 3)),))
    with pytest.raises(UsageError, match="holds 3 networks"):
        search(few, Good(), ["quality", "ms"], out=tmp_path / "run")
    with pytest.raises(UsageError, match="holds 1 network, and"):
        search(few.restrict({"width": [2]}), Good(), ["quality", "ms"], out=tmp_path / "other")


def test_a_name_that_no_folder_can_begin_with_needs_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    odd = GeneSpace("../few", (Gene("width", (1, 2, 3)),))
    with pytest.raises(UsageError, match="space.name: found '../few', allowed are 1 to 64"):
        search(odd, Good(), ["quality", "ms"])
    with pytest.raises(UsageError, match="holds 3 networks"):
        search(odd, Good(), ["quality", "ms"], out="run")
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_evaluators_say_their_batch_rightly(tmp_path: Path) -> None:
    evaluator = Good()
    evaluator.batch = 0  # type: ignore[attr-defined]
    with pytest.raises(UsageError, match="batch is a whole number of at least 1; it is 0"):
        searched(tmp_path / "run", evaluator)


def test_what_was_told_before_a_rig_broke_is_kept_when_it_is_mended(tmp_path: Path) -> None:
    """The mended one is asked for other networks than the broken one was."""

    class Flaky(Good):
        broken = True

        def answer(self, network: dict[str, Any]) -> Any:
            if self.broken and len(self.asked) > 6 and len(self.asked) != 12:
                raise OSError("the rig is off")
            return super().answer(network)

    evaluator = Flaky()
    with pytest.raises(EvaluationError, match="the rig is off"):
        searched(tmp_path / "run", evaluator)
    told = [network for n, network in enumerate(evaluator.asked) if n < 6 or n == 11]
    evaluator.broken, evaluator.asked = False, []
    searched(tmp_path / "run", evaluator)
    assert not asked_twice([*told, *evaluator.asked])
    lines = RunFolder.open(tmp_path / "run").read_journal("observations.jsonl")
    known = [line["architecture"] for line in lines]
    assert all(network in known for network in told) and len(known) >= 20


def test_an_evaluator_at_hand_is_asked_in_this_process(tmp_path: Path) -> None:
    searched(tmp_path / "run", Good())
    folder = RunFolder.create(tmp_path / "other", RunFolder.open(tmp_path / "run").spec)
    with pytest.raises(UsageError, match="--executor ray asks an evaluator that has a name"):
        list(run_search(folder, ExecutorSettings("ray"), evaluator=Good()))
    with pytest.raises(UsageError, match="--executor ray asks an evaluator that has a name"):
        searched(tmp_path / "third", Good(), executor="ray")


# -- what is left ---------------------------------------------------------------------------------


def test_names_of_known_costs_are_only_names(tmp_path: Path) -> None:
    class Known(Good):
        def answer(self, network: dict[str, Any]) -> Any:
            return {
                "quality": loss(network),
                "costs": {"latency_ms": ms(network), "params": 10.5 * size_of(network)},
            }

    def size_of(network: dict[str, Any]) -> float:
        return float(network["width"] * network["layers"])

    front = search(
        SPACE,
        Known(),
        ["quality", "latency_ms", "params"],
        limits={"latency_ms": 6},
        settings=NUMBERS,
        out=tmp_path / "run",
    )
    assert front.entries and (tmp_path / "run" / "report.html").exists()
    assert nas.results.open(tmp_path / "run").front["params"].notna().all()


def test_nothing_is_to_be_timed_anew_of_a_cost_that_is_called_like_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Known(Good):
        def answer(self, network: dict[str, Any]) -> Any:
            return {"quality": loss(network), "costs": {"latency_ms": ms(network)}}

    for place in ("nas.stages.verify", "nas.search.doubtful"):
        monkeypatch.setattr(f"{place}.predictions_off", lambda entries: "predictions are off")
    path = tmp_path / "run"
    search(SPACE, Known(), ["quality", "latency_ms"], settings=NUMBERS, out=path)
    told = (path / "events.jsonl").read_text("utf-8") + (path / "report.html").read_text("utf-8")
    assert "redictions are off" not in told
    with pytest.raises(UsageError, match="is told by the evaluator .*Known: leave out --retime"):
        list(run_search(RunFolder.open(path), retime=True, evaluator=Known()))


def test_tables_hold_genes_and_costs(tmp_path: Path) -> None:
    front = searched(tmp_path / "run", Wrong("raises"))
    run = nas.results.open(tmp_path / "run")
    assert run.final and list(run.front.index) == [entry.id for entry in front.entries]
    columns = {"quality", "quality_std", "ms", "width", "ratio.0", "norm", "eps"}
    assert columns <= set(run.networks.columns)
    assert set(run.networks["norm"].dropna()) <= {"layer", "rms"}
    assert run.observations["failed"].notna().any()
    states = run.timeline["state"].drop("report")  # which the command writes
    assert states.eq("done").all() and "supernet" not in states.index
    unfinished = RunFolder.create(tmp_path / "some", RunFolder.open(tmp_path / "run").spec)
    events = run_search(unfinished, evaluator=Accuracy())
    for _ in range(40):
        next(events)
    events.close()
    assert not nas.results.open(tmp_path / "some").final
    assert len(nas.results.open(tmp_path / "some").front)


def test_the_report_shows_networks_as_lines(tmp_path: Path) -> None:
    front = searched(tmp_path / "run", Good())
    page = (tmp_path / "run" / "report.html").read_text("utf-8")
    assert all(entry.network.line in page for entry in front.entries)
    assert (
        "tests.support.external_cases:Good" in page
        and "supernet" not in page.partition("<main>")[2]
    )
    data = json.loads((tmp_path / "run" / "pareto.json").read_text("utf-8"))
    assert [one["metric"] for one in data["objectives"]] == ["quality", "ms"]
