"""A whole search for an encoder of texts: a folder of texts and a checkpoint, one command."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from nas.console.app import app
from nas.results.networks import choose_trained
from nas.results.reader import read_contents
from nas.run.folder import RunFolder
from nas.run.opened import OpenedRun
from search_spaces.architecture import Architecture
from tests.nas.results.test_card_lines import answers_of
from tests.nas.stages.test_pipeline_texts import valid
from tests.support.export_cases import export_to, hub_without_net
from tests.support.pretrained_cases import sentence_encoder

pytestmark = pytest.mark.export

NUMBERS = {
    "threads": 1,
    "distil.updates": 3,
    "supernet.epochs": 1,
    "supernet.epoch_updates": 3,
    "supernet.batch_size": 16,
    "observations": 12,
    "rounds.first": 8,
    "rounds.batch": 4,
    "evolution.population": 16,
    "evolution.generations": 2,
    "verified": 4,
    "valid_examples": 12,
    "retrain.epochs": 2,
    "retrain.epoch_updates": 3,
    "retrain.batch_size": 16,
}
WORDS = "The cat sat On a mat Dogs run at 7 o'clock why".split()


@pytest.fixture(autouse=True, scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    yield from hub_without_net(tmp_path_factory)


def searched(hub: Any, folder: Path, paired: bool) -> RunFolder:
    """A run on texts, or on pairs of them."""
    model = sentence_encoder(hub, folder / "model")
    rng = np.random.default_rng(0)
    lines = [" ".join(rng.choice(WORDS, size)) for size in rng.integers(2, 20, 400)]
    (folder / "texts").mkdir()
    if paired:
        pairs = zip(lines[::2], lines[1::2], strict=True)
        lines = [json.dumps({"query": query, "passage": passage}) for query, passage in pairs]
    (folder / "texts" / ("pairs.jsonl" if paired else "lines.txt")).write_text("\n".join(lines))
    options = [f"--set={name}={value}" for name, value in NUMBERS.items()]
    given = ["search", "--from", str(model), "--data", str(folder / "texts")]
    more = ["--preset", "smoke", "--objectives", "quality,params", "--quality", "recall_at_10"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NAS_CACHE_DIR", str(folder / "cache"))
        done = CliRunner().invoke(app, [*given, *more, *options, "--out", str(folder / "run")])
        assert done.exit_code == 0, done.output
        assert "recall@10" in done.stdout and "Winner" in done.stdout
        return RunFolder.open(folder / "run")


@pytest.fixture(scope="module")
def run(hub: Any, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return searched(hub, tmp_path_factory.mktemp("embedding"), paired=False)


@pytest.fixture(scope="module")
def paired(hub: Any, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return searched(hub, tmp_path_factory.mktemp("pairs"), paired=True)


def test_the_checkpoint_finds_all_its_own_neighbours(run: RunFolder) -> None:
    values = run.read_json("inherited/baseline.json")["values"]
    assert values["quality"] == pytest.approx(0.0, abs=0.1)
    assert values["valid_similarity"] == pytest.approx(1.0, abs=1e-4)
    assert values["valid_loss"] == pytest.approx(0.0, abs=1e-6)
    assert values["valid_recall_at_10"] == 1.0 - values["quality"]


def test_networks_are_observed_and_one_is_retrained(run: RunFolder) -> None:
    for line in run.read_journal("observations.jsonl"):
        assert {"valid_loss", "valid_similarity", "valid_recall_at_10"} <= set(line)
        assert "valid_accuracy" not in line
    (result,) = [json.loads(path.read_text()) for path in run.path.glob("retrained/*/result.json")]
    assert next(name for name in result if name.startswith("test_")) == "test_similarity"
    assert {"test_recall_at_10", "test_loss", "valid_similarity"} <= set(result)
    assert result["test_similarity"] > 0.2
    assert valid("retrained", result) and valid("pareto", run.read_json("pareto.json"))
    assert not valid("retrained", {**result, "task": "classification"})


def test_half_of_the_first_networks_are_the_checkpoint_with_one_layer_changed(
    run: RunFolder,
) -> None:
    space, first = run.spec.space, NUMBERS["rounds.first"]
    lines = run.read_journal("observations.jsonl")[:first]
    rows = space.encode([Architecture.from_json(line["architecture"]) for line in lines])
    kinds = [slot.gene == "attention" for slot in space.slots]
    changed = rows != rows[0]
    alone = (changed.sum(axis=1) == 1) & changed[:, kinds].any(axis=1)
    assert alone.sum() >= first // 2
    assert lines[0]["valid_loss"] == pytest.approx(0.0, abs=0.1)


def test_the_report_speaks_of_neighbours_and_not_of_nats(run: RunFolder) -> None:
    contents = read_contents(run)
    assert (
        contents.retrained[0].headline == "similarity" and contents.quality.name == "recall_at_10"
    )
    text = (run.path / "report.html").read_text("utf-8")
    assert "recall at 10" in text and "(nats)" not in text and "tokens right" not in text
    assert "the checkpoint&#x27;s</th>" not in text  # an empty column


def test_the_network_is_scored_again(run: RunFolder) -> None:
    done = CliRunner().invoke(app, ["evaluate", str(run.path), "--split", "valid"])
    assert done.exit_code == 0, done.output
    (result,) = [json.loads(path.read_text()) for path in run.path.glob("retrained/*/result.json")]
    found = dict(line.rsplit(maxsplit=1) for line in done.stdout.splitlines() if line)
    names = {" ".join(key.split()): value for key, value in found.items()}
    split = len(OpenedRun(run).task.valid)
    assert split > 12  # of which the search looked at twelve
    assert {"similarity", "recall at 10", "loss"} <= set(names)
    assert float(names["similarity"]) == pytest.approx(result["valid_similarity"], abs=0.3)


def test_of_pairs_the_checkpoint_is_scored_on_the_same(paired: RunFolder) -> None:
    values = paired.read_json("inherited/baseline.json")["values"]
    assert values["valid_recall_at_10"] == 1.0 - values["quality"]
    (result,) = [
        json.loads(path.read_text()) for path in paired.path.glob("retrained/*/result.json")
    ]
    assert result["valid_checkpoint_recall_at_10"] == pytest.approx(values["valid_recall_at_10"])
    assert 0.0 <= result["test_checkpoint_recall_at_10"] <= 1.0
    assert valid("retrained", result)
    text = (paired.path / "report.html").read_text("utf-8")
    assert "validation recall at 10" in text
    done = CliRunner().invoke(app, ["evaluate", str(paired.path), "--split", "valid"])
    assert done.exit_code == 0 and "the checkpoint's" in done.stdout, done.output


@pytest.mark.slow
def test_lines_of_cards_give_the_same_vector(run: RunFolder, tmp_path: Path) -> None:
    forms = ("torch", "onnx", "huggingface")
    for form in forms:
        export_to(run, form, tmp_path / form, arch=choose_trained(run, None))
    found = [json.loads(text) for text in answers_of([tmp_path / form for form in forms], tmp_path)]
    assert len({len(vector) for vector in found}) == 1 and any(found[0])
    for vector in found[1:]:
        assert vector == pytest.approx(found[0], abs=1e-4)
