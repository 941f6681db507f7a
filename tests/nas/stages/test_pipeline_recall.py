"""Whole searches on data with recall in them, and what they are known by."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from referencing import Registry, Resource

from nas.report.page import render
from nas.results.reader import read_contents
from nas.run.folder import RunFolder
from search_spaces.errors import DataError
from tests.supernet.data.test_recall import SPACE
from tests.support.pipeline_cases import NUMBERS, ROOT, logged, tiny, work
from tests.support.report_cases import words_of
from tests.support.trained_cases import LANGUAGE

pytestmark = pytest.mark.slow

SMALL = NUMBERS | {
    "supernet.max_updates": "8",
    "supernet.max_tokens": "192",
    "supernet.segment_length": "32",
    "supernet.num_probes": "2",
    "retrain.max_updates": "8",
    "retrain.max_tokens": "192",
    "retrain.segment_length": "32",
}
# Eight networks are as few as can be searched.
ANSWERS = SPACE.replace("ffn_dim = [8]", "ffn_dim = [8, 12]").replace(
    "embed_dim = [8]", "embed_dim = [8, 12]"
)
TEXT = LANGUAGE + "recall_window = 6\n"


def searched(path: Path, text: str, **values: Any) -> RunFolder:
    """A search that has ended, and its best network retrained."""
    folder = tiny(path, text, numbers=SMALL, pick="best", **values)
    work(folder)
    return folder


def result(folder: RunFolder) -> dict[str, Any]:
    (file,) = folder.path.glob("retrained/*/result.json")
    found: dict[str, Any] = json.loads(file.read_text("utf-8"))
    return found


def check(schema: str, value: Any) -> None:
    names = ("pareto", "retrained")
    schemas = {
        name: json.loads((ROOT / "docs" / f"{name}.schema.json").read_text("utf-8"))
        for name in names
    }
    known: Registry[Any] = Registry().with_resources(
        (one["$id"], Resource.from_contents(one)) for one in schemas.values()
    )
    Draft202012Validator(schemas[schema], registry=known).validate(value)


def test_answers_are_what_a_search_of_recall_is_about(tmp_path: Path) -> None:
    run = searched(tmp_path / "run", ANSWERS, quality="accuracy")
    front, scores = run.read_json("pareto.json"), result(run)
    check("pareto", front)
    check("retrained", scores)
    assert front["objectives"][0]["metric"] == "1 - valid_accuracy"
    for entry in front["front"]:
        measured = entry["measured"]
        assert measured["quality"] == 1.0 - measured["valid_accuracy"]
        assert {"valid_loss", "valid_recall_nats"} <= set(measured)
    assert next(name for name in scores if name.startswith("test_")) == "test_accuracy"
    assert {"test_accuracy", "test_loss", "test_recall_nats"} == {
        name for name in scores if name.startswith("test_")
    }
    contents = read_contents(run)
    assert contents.retrained[0].headline == "accuracy"
    text = words_of(render(contents))
    assert "with a high validation accuracy" in text and "1 − accuracy" in text


def test_a_text_is_searched_by_its_recall(tmp_path: Path) -> None:
    run = searched(tmp_path / "run", TEXT, quality="recall_nats")
    front, scores = run.read_json("pareto.json"), result(run)
    check("pareto", front)
    check("retrained", scores)
    for entry in front["front"]:
        assert entry["measured"]["quality"] == entry["measured"]["valid_recall_nats"]
        assert entry["measured"]["valid_loss"] > 0
    assert scores["test_recall_nats"] > 0 and scores["test_perplexity"] > 1
    text = words_of(render(read_contents(run)))
    assert "with a low loss on recalled tokens" in text and "--quality recall_nats" in text


def test_a_search_for_recall_that_is_not_there_ends_at_once(tmp_path: Path) -> None:
    run = tiny(
        tmp_path / "run",
        TEXT.replace("recall_window = 6", "recall_window = 60"),
        numbers=SMALL | {"valid_examples": "2"},
        quality="recall_nats",
    )
    with pytest.raises(DataError, match="no token of the validation split"):
        work(run)
    assert {event["stage"] for event in logged(run)} == {"declare"}
