"""The model card, and the facts it tells."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from latency.device import DeviceFingerprint
from latency.timings import TimingHeader, open_timings
from latency.workload import Workload
from nas.objectives.size import network_costs
from nas.report.network_section import parts_section
from nas.request.presets import budget_for
from nas.results.model_card import gather_facts, model_card
from nas.results.networks import choose_inherited
from nas.results.reader import read_contents
from nas.run.folder import RunFolder
from nas.search.front import Baseline, FrontEntry, read_front
from search_spaces.architecture import Architecture
from search_spaces.costs import cost
from search_spaces.errors import UsageError
from search_spaces.loading import parse_space
from search_spaces.measurement import Measurement
from tests.support.trained_cases import SPACES, TRANSLATION, begun, networks, trained

SIGNATURE = "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.6.0"
RESULT: dict[str, Any] = {
    "schema": 2,
    "test_bleu": 31.254,
    "valid_bleu": 32.0,
    "test_loss": 1.5,
    "valid_loss": 1.4,
    "bleu_signature": SIGNATURE,
    "epochs": 7,
    "seed": 0,
}
DEVICE = DeviceFingerprint("cpu", "Some Processor", 4, 1, "2.13.0+cpu", "Linux-x86_64")


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    folder = trained(tmp_path / "run")
    one = network(folder)
    folder.write_json(f"retrained/{one.id}/result.json", {"id": one.id, **RESULT})
    return folder


def network(folder: RunFolder) -> Architecture:
    return networks(folder.spec.space, 1)[0]


def facts_of(folder: RunFolder, inherited: bool = False) -> dict[str, Any]:
    facts = gather_facts(folder, network(folder), inherited)
    reading = {"kind": "sentencepiece", "source": "source.model", "target": "target.model"}
    more = {"format": "safetensors", "difference": 1.2e-7, "tolerance": 1e-4, "reading": reading}
    return facts | more


def timed(folder: RunFolder) -> None:
    header = TimingHeader(DEVICE, Workload(1, 14, 14, 4, mode="generate"), "settings")
    value = Measurement("latency_ms", 12.34, 0.1, 5, "ms", "cpu", None)
    profile = open_timings(folder.path / "latency" / "profile.jsonl", header)
    profile.record([(network(folder), value)])


def test_the_card_tells_everything(run: RunFolder) -> None:
    timed(run)
    card = model_card(facts_of(run), "Run it.")
    data = run.read_json("data.json")
    for words in [
        "Run it.",
        "tiny-translation",
        'model_file="source.model").encode',
        "synthetic (sha256 " + data["digest"][:12],
        "| seed | 0 |",
        "| BLEU | 31.25 | 32 |",
        SIGNATURE,
        "12.3 ms, measured: batch 1, source 14, target 14, beam 4, float32, generate; "
        "cpu: Some Processor, 1 thread, torch 2.13.0+cpu",
        "convention `true`",
        "Apache-2.0",
        "Trained from scratch",
        "at most 1.2e-07 (allowed: 0.0001)",
    ]:
        assert words in card, words


def test_parameters_and_flops_are_those_counted(run: RunFolder) -> None:
    facts, space = facts_of(run), run.spec.space
    counted = cost(space.model, space.task, network(run))
    assert (facts["params"], facts["flops"]["value"]) == (counted.params, counted.flops)
    assert f"{counted.params:,}" in model_card(facts, "")


def test_card_and_page_say_what_the_search_counted(tmp_path: Path) -> None:
    workload = "[workload]\nbatch = 1\nsource = 14\ntarget = 14\n"
    folder = begun(tmp_path / "run", TRANSLATION + workload)
    one, space = network(folder), folder.spec.space
    result = {"id": one.id, "architecture": one.to_json(), **RESULT}
    folder.write_json(f"retrained/{one.id}/result.json", result)
    number = int(network_costs(space, space.encode([one]))[0, 1])
    lengths = {"source_length": 14, "target_length": 14}
    facts = facts_of(folder)
    assert facts["flops"] == {"value": number, "convention": "true", **lengths}
    assert f"{number:,} for one example of 14 input tokens, 14 target" in model_card(facts, "")
    page = str(parts_section(read_contents(folder), one))
    assert f"{number:,}" in page
    assert "Counted for one input of 14 tokens and 14 target tokens." in page


@pytest.mark.parametrize(
    ("task", "words"),
    [
        ("translation", "first 5 of the validation split"),
        ("classification", "5 of the validation split"),  # of each class its share
    ],
)
def test_a_part_of_a_split_is_called_so(tmp_path: Path, task: str, words: str) -> None:
    space = parse_space(SPACES[task], "a space")
    budget = budget_for(space, "smoke", {"threads": "1", "valid_examples": "5"})
    folder = begun(tmp_path / "run", SPACES[task], budget=budget)
    folder.write_json(f"retrained/{network(folder).id}/result.json", RESULT)
    assert f"| test split | {words} |" in model_card(facts_of(folder), "")
    folder.write_json("data.json", {**folder.read_json("data.json"), "num_valid": 5})
    assert "| test split | validation split |" in model_card(facts_of(folder), "")


def test_a_baseline_is_no_choice_of_the_search(run: RunFolder) -> None:
    front, plain = read_front(run), networks(run.spec.space, 4)[3]
    own = Baseline(FrontEntry(plain.id, plain, {}, {}), ("own",))
    found = Baseline(front.entries[0], ("nearest",))  # which the search has found as well
    run.write_json("pareto.json", replace(front, baselines=(own, found)).to_json())
    run.write_json(f"retrained/{plain.id}/result.json", {"id": plain.id, **RESULT})
    chosen, compared = "after the search had chosen", "to compare the search's with"
    card = model_card(facts_of(run) | gather_facts(run, plain, inherited=False), "")
    assert compared in card and chosen not in card
    assert front.entries[0].id == network(run).id
    card = model_card(facts_of(run), "")
    assert chosen in card and compared not in card


def test_what_was_not_measured_is_said(run: RunFolder) -> None:
    facts = facts_of(run)
    assert facts["latency"] is None
    assert "| latency | not measured in this search |" in model_card(facts, "")
    assert "Nothing was measured." in model_card({**facts, "scores": {}}, "")


def test_a_predicted_latency_is_marked(run: RunFolder) -> None:
    latency = {"value_ms": 3.0, "measured": False, "device": "board", "workload": "batch 1"}
    card = model_card({**facts_of(run), "latency": latency}, "")
    assert "3 ms, predicted: batch 1; board" in card


def test_inherited_scores_are_those_of_the_search(run: RunFolder) -> None:
    facts = facts_of(run, inherited=True)
    assert facts["scores"] == {"valid_loss": 1.0}  # of the front
    card = model_card(facts, "")
    assert "not trained further" in card and "test split" not in card


def test_settings_of_a_tuned_network_are_no_scores(run: RunFolder) -> None:
    scores = facts_of(run)["scores"]
    name = f"retrained/{network(run).id}/result.json"
    tuned = {"settings": {"learning_rate": 0.001}, "tuning": {"trials": 8}}
    run.write_json(name, run.read_json(name) | tuned)
    assert facts_of(run)["scores"] == scores


def test_a_line_in_a_description_does_not_break_the_table(run: RunFolder) -> None:
    facts = facts_of(run)
    facts["space"] = {**facts["space"], "description": "a | b\nc"}
    assert "| about it | a \\| b c |" in model_card(facts, "")


@pytest.mark.parametrize("elsewhere", [False, True])
def test_the_latency_of_a_baseline_is_that_of_the_search(run: RunFolder, elsewhere: bool) -> None:
    timed(run)
    front, plain = read_front(run), networks(run.spec.space, 4)[3]
    times = {"latency_ms": 4.5}
    entry = FrontEntry(plain.id, plain, {} if elsewhere else times, times if elsewhere else {})
    device = {"latency_ms": "board"} if elsewhere else {}
    run.write_json(f"retrained/{plain.id}/result.json", {"id": plain.id, **RESULT})
    assert gather_facts(run, plain, inherited=False)["latency"] is None
    beside = replace(front, baselines=(Baseline(entry, ("largest",)),), predicted_for=device)
    run.write_json("pareto.json", beside.to_json())
    latency = gather_facts(run, plain, inherited=False)["latency"]
    assert (latency["value_ms"], latency["measured"]) == (4.5, not elsewhere)
    with pytest.raises(UsageError, match="has measured"):
        choose_inherited(run, plain.id)
    assert choose_inherited(run, network(run).id) == network(run).id
