"""Whole searches for translation and for language models, on the generated corpus."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from referencing import Registry, Resource
from rich.console import Console

from nas.console.tables import front_table, retrained_table
from nas.report.page import render
from nas.results.reader import read_contents
from nas.results.state import read_state
from nas.run.folder import RunFolder
from nas.run.stages import search_stages
from nas.search.front import pick, read_front
from nas.stages.base import Run
from nas.stages.retrain import retrain
from search_spaces.architecture import Architecture
from search_spaces.errors import DataError, UsageError
from supernet.building import build_network
from supernet.tasks.evaluation import evaluate
from supernet.training.checkpoint import load
from tests.support import trained_cases
from tests.support.pipeline_cases import (
    NUMBERS,
    ROOT,
    done_twice,
    logged,
    named,
    results,
    tiny,
    work,
)
from tests.support.report_cases import trace, words_of
from tests.support.task_cases import with_memory
from tests.support.trained_cases import LANGUAGE, TRANSLATION

SMALL = NUMBERS | {
    "valid_examples": "6",
    "supernet.epochs": "9",
    "supernet.max_updates": "12",
    "supernet.max_tokens": "512",
    "supernet.segment_length": "32",
    "supernet.learning_rate": "0.02",
    "supernet.num_probes": "3",
    "supernet.sampling": "uniform",
    "supernet.num_random": "1",
    "retrain.epochs": "9",
    "retrain.max_updates": "12",
    "retrain.max_tokens": "512",
    "retrain.segment_length": "32",
    "retrain.average_last": "2",
}
# Networks that have learnt little write on to the end: the shorter, the sooner.
PAIRS = TRANSLATION.replace("max_length = 64", "max_length = 32")
WRITES = "[workload]\nbatch = 1\nsource = 6\ntarget = 4\n"
RUNS: dict[str, tuple[str, dict[str, Any]]] = {
    "translation": (f"{PAIRS}{WRITES}beam = 2\n", {"objectives": ("quality", "latency_ms")}),
    "by BLEU": (PAIRS, {"objectives": ("quality", "flops"), "quality": "bleu"}),
    "language": (
        f'{LANGUAGE}{WRITES}mode = "generate"\n',
        {"objectives": ("quality", "latency_ms", "params")},
    ),
    "language with a memory": (with_memory(LANGUAGE), {"objectives": ("quality", "flops")}),
}
LANGUAGE_SCORES = (
    "loss",
    "perplexity",
    "perplexity_per_word",
    "word_perplexity",
    "bits_per_character",
)
HEADLINES = {"translation": "bleu", "language_modelling": "perplexity"}
each_run = pytest.mark.parametrize("name", RUNS)
Made = Callable[[str], RunFolder]


def request(path: Path, name: str, **changes: Any) -> RunFolder:
    text, values = RUNS[name]
    numbers = SMALL | changes.pop("numbers", {})
    return tiny(path, text, numbers=numbers, **(values | changes))


small_corpus = trained_cases.small_corpus


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Finished runs by name, each made once."""
    folders: dict[str, RunFolder] = {}

    def get(name: str) -> RunFolder:
        if name not in folders:
            folders[name] = request(tmp_path_factory.mktemp("runs") / "run", name)
            work(folders[name])
        return folders[name]

    return get


def result(folder: RunFolder) -> dict[str, Any]:
    (file,) = folder.path.glob("retrained/*/result.json")
    found: dict[str, Any] = json.loads(file.read_text("utf-8"))
    return found


def valid(schema: str, value: Any) -> bool:
    schemas = [
        json.loads((ROOT / "docs" / f"{name}.schema.json").read_text("utf-8"))
        for name in ("pareto", "retrained")
    ]
    known: Registry[Any] = Registry().with_resources(
        (one["$id"], Resource.from_contents(one)) for one in schemas
    )
    chosen = next(one for one in schemas if one["$id"] == f"{schema}.schema.json")
    return bool(Draft202012Validator(chosen, registry=known).is_valid(value))


def printed(table: Any, width: int = 200) -> str:
    console = Console(width=width)
    with console.capture() as capture:
        console.print(table)
    return capture.get()


@each_run
def test_it_ends_with_a_front_and_a_network_trained_from_scratch(made: Made, name: str) -> None:
    run = made(name)
    ended = [event["stage"] for event in logged(run) if event["event"] == "StageFinished"]
    wanted = {stage.name for stage in search_stages(run.spec)}
    assert wanted <= set(ended) and ended[-1] == "report" and done_twice(run) == []
    front, found = read_front(run), result(run)
    assert pick(front, run.spec.pick).id == found["id"]
    assert valid("pareto", run.read_json("pareto.json")) and valid("retrained", found)
    assert front.entries and 0.0 <= front.hypervolume <= 1.0


@each_run
def test_results_name_the_scores_of_their_task(made: Made, name: str) -> None:
    found = result(made(name))
    scores = [key.removeprefix("test_") for key in found if key.startswith("test_")]
    assert scores == [key.removeprefix("valid_") for key in found if key.startswith("valid_")]
    assert scores[0] == HEADLINES[found["task"]]
    assert ("bleu_signature" in found) == (found["task"] == "translation")
    assert not valid("retrained", {**found, "task": "classification"})
    assert not valid("retrained", {k: v for k, v in found.items() if k != f"test_{scores[0]}"})


@pytest.mark.parametrize("name", ["language", "language with a memory"])
@pytest.mark.parametrize("split", ["test", "valid"])
def test_words_and_characters_are_those_of_the_lines_scored(
    made: Made, name: str, split: str
) -> None:
    """A token is a word or the end of a line here; a word has one to seven characters."""
    found = {key: result(made(name))[f"{split}_{key}"] for key in LANGUAGE_SCORES}
    assert found["perplexity"] < found["word_perplexity"] < found["perplexity"] ** 1.3
    bits_per_token = found["loss"] / math.log(2)
    assert bits_per_token / 8 < found["bits_per_character"] < bits_per_token


@each_run
def test_the_weights_are_those_of_the_network(made: Made, name: str) -> None:
    run, found = made(name), result(made(name))
    space = run.spec.space
    network = build_network(
        space.model, space.task, pick(read_front(run), found["id"]).architecture
    )
    network.network.load_state_dict(load(run.path / f"retrained/{found['id']}/weights.pt")["model"])
    assert sum(p.numel() for p in network.parameters()) == found["params"]


@pytest.mark.parametrize(
    ("name", "stops"),
    [("by BLEU", {"observe": 6, "retrain": 2}), ("language with a memory", {"supernet": 3})],
)
def test_interrupted_in_its_stages_it_ends_the_same(
    made: Made, tmp_path: Path, name: str, stops: dict[str, int]
) -> None:
    from nas.stages.pipeline import run_search

    run = request(tmp_path / "run", name)
    for stage, count in stops.items():
        stream = run_search(RunFolder.open(run.path))
        steps = (event for event in stream if event.stage.startswith(stage))
        for _ in range(count):  # its start, and some steps
            next(steps)
        stream.close()  # type: ignore[attr-defined]
    work(RunFolder.open(run.path))
    assert results(run) == results(made(name)) and done_twice(run) == []


def test_another_network_is_trained_beside_the_first(made: Made, tmp_path: Path) -> None:
    shutil.copytree(made("translation").path, tmp_path / "run")
    run = RunFolder.open(tmp_path / "run")
    other = next(e.id for e in read_front(run).entries if e.id != result(run)["id"])
    assert named(list(retrain(run, other)), "StageFinished") == [f"retrain-{other}", "report"]
    assert f"#network-{other}" in (run.path / "report.html").read_text("utf-8")


# -- quality ----------------------------------------------------------------------------------


def test_by_bleu_quality_is_what_it_lacks(made: Made) -> None:
    run = made("by BLEU")
    lines = run.read_journal("observations.jsonl")
    assert len({line["valid_bleu"] for line in lines}) > 1
    for line in lines:
        assert line["quality"] == 100.0 - line["valid_bleu"] and line["valid_loss"] > 0
    data = run.read_json("pareto.json")
    quality = data["objectives"][0]
    assert (quality["metric"], quality["unit"]) == ("100 - valid_bleu", "BLEU")
    assert quality["reference"] == 100.0
    for entry in data["front"]:
        assert {"quality", "valid_bleu", "valid_loss", "valid_accuracy"} <= set(entry["measured"])
    assert read_front(run).to_json() == data


@pytest.mark.parametrize("name", ["by BLEU", "language with a memory"])
def test_networks_are_compared_on_as_many_examples_as_asked_for(made: Made, name: str) -> None:
    run = Run(made(name))
    assert run.task.describe()["num_valid"] == 12
    assert run.quick_task.describe()["num_valid"] == 6
    line = made(name).read_journal("observations.jsonl")[0]
    found = evaluate(
        run.task.with_valid(6),
        run.supernet,
        Architecture.from_json(line["architecture"]),
        run.quick_task.valid,
    )
    assert line.get("valid_loss", line["quality"]) == found.loss
    assert line["valid_accuracy"] == found.accuracy


@pytest.mark.parametrize(("name", "outcomes"), [("translation", 160), ("language", 100)])
def test_otherwise_it_is_the_loss_of_a_token(made: Made, name: str, outcomes: int) -> None:
    """With that of a network that guesses as the worst that is of any use."""
    data = made(name).read_json("pareto.json")
    assert data["objectives"][0]["metric"] == "valid_loss"
    assert data["objectives"][0]["reference"] == pytest.approx(math.log(outcomes))
    assert all("valid_bleu" not in entry["measured"] for entry in data["front"])


def test_networks_that_translate_nothing_right_are_no_reason_to_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All have a BLEU of zero: there is nothing to learn from, and nothing to gain."""
    monkeypatch.setattr(
        "supernet.tasks.translation.translate_tokens",
        lambda _, rows, *__, **___: ["?"] * len(rows),
    )
    run = request(tmp_path / "run", "by BLEU")
    work(run)
    assert {line["quality"] for line in run.read_journal("observations.jsonl")} == {100.0}
    assert read_front(run).hypervolume == 0.0 and "BLEU" in words_of(page(run))


@pytest.mark.parametrize("name", ["language", "classification"])
def test_bleu_of_other_tasks_is_refused_first(tmp_path: Path, name: str) -> None:
    if name == "language":
        run = request(tmp_path / "run", name, quality="bleu")
    else:
        run = tiny(tmp_path / "run", quality="bleu")
    with pytest.raises(UsageError, match="--quality bleu is for translation.*leave it out"):
        work(run)
    assert {event["stage"] for event in logged(run)} == {"declare"}


@pytest.mark.parametrize(
    ("name", "numbers", "words"),
    [
        ("translation", {"retrain.max_tokens": "9"}, "longest pair"),
        ("language", {"supernet.segment_length": "65"}, "segment_length is 65"),
        ("language", {"retrain.max_tokens": "31"}, "do not fit"),
    ],
)
def test_settings_that_the_data_cannot_be_trained_with_are_refused_first(
    tmp_path: Path, name: str, numbers: dict[str, str], words: str
) -> None:
    run = request(tmp_path / "run", name, numbers=numbers)
    with pytest.raises(UsageError, match=words):
        work(run)
    assert {event["stage"] for event in logged(run)} == {"declare"}


def test_without_data_nothing_is_begun(tmp_path: Path) -> None:
    run = request(tmp_path / "run", "translation", dataset="europarl")
    with pytest.raises(DataError, match="nas data prepare --task translation"):
        work(run)
    assert not list(run.path.glob("stages/*.json"))


# -- what people read -------------------------------------------------------------------------


def page(run: RunFolder) -> str:
    return render(read_contents(run))


@each_run
def test_report_and_tables_use_the_words_of_the_task(made: Made, name: str) -> None:
    run = made(name)
    text = words_of(page(run))
    score = {"bleu": "BLEU", "perplexity": "perplexity"}[HEADLINES[run.spec.space.task]]
    assert f"reached a {score} of" in text and f"test {score}, retrained" in text
    assert "tokens right" in text and "test accuracy" not in text and "None" not in text
    state = read_state(run, thorough=True)
    assert state.front is not None and state.problems == ()
    table = printed(front_table(state.front, result(run)["id"]))
    assert "tokens right" in table and "accuracy" not in table
    trained = printed(retrained_table(state.retrained))
    number = result(run)[f"test_{HEADLINES[run.spec.space.task]}"]
    assert f"{score} {number:.2f}" in trained and f"valid {score}" in trained


def test_a_run_by_bleu_says_so_everywhere(made: Made) -> None:
    run = made("by BLEU")
    text = words_of(page(run))
    assert "with a high BLEU and little FLOPs" in text and "gets no BLEU" in text
    assert "100 − BLEU predicted" in text and "low validation loss" not in text
    assert "--quality bleu" in text and "--data synthetic" in text and "--dataset" not in text
    star = trace(page(run), "front-flops", "retrained")
    assert star["y"] == [pytest.approx(100.0 - result(run)["valid_bleu"], rel=1e-4)]
    table = printed(front_table(read_front(run), None))
    assert "100−BLEU" in table and " loss " in table


@pytest.mark.parametrize("name", ["translation", "language"])
def test_a_run_by_the_loss_says_so(made: Made, name: str) -> None:
    text = words_of(page(made(name)))
    assert "with a low validation loss" in text and "100 − BLEU" not in text
    assert "--quality" not in text


def test_a_language_model_is_told_by_word_and_character_too(made: Made) -> None:
    text = words_of(page(made("language")))
    assert "perplexity per word" in text and "bits per character" in text
