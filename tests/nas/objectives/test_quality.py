"""Quality: the table of what it may be, and what a search does by each."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import pytest

from nas.objectives import MORE_IS_BETTER, OBJECTIVES, QUALITIES, QualityMetric, objective
from nas.objectives.quality import copies
from nas.run.evaluator import check_data, validation_quality
from nas.search.front import Front
from nas.stages.feasibility import check_quality
from search_spaces.errors import DataError, UsageError
from search_spaces.loading import parse_space
from search_spaces.tasks import TASKS, TaskName
from supernet.building import build_supernet
from supernet.tasks.evaluation import evaluate
from supernet.tasks.opening import open_task
from tests.support.pipeline_cases import TINY, spec_of
from tests.support.task_cases import SPACES as KINDS
from tests.support.task_cases import networks_of, supernet_of, task_of
from tests.support.trained_cases import LANGUAGE, TRANSLATION

WINDOW = LANGUAGE + "recall_window = 6\n"


def test_every_name_has_a_line_and_tasks_that_know_it() -> None:
    assert set(QUALITIES) == set(get_args(QualityMetric))
    assert {one.objective.name for one in QUALITIES.values()} == {"quality"}
    for name in ("objective", "winner"):
        assert len({getattr(one, name) for one in QUALITIES.values()}) == len(QUALITIES)
    for one in QUALITIES.values():
        if one.name != "accuracy":  # which most tasks have, and few are known by
            assert [task for task in TASKS if one.name in TASKS[task].metrics] == list(one.tasks)


@pytest.mark.parametrize(
    ("name", "metric", "unit"),
    [
        ("loss", "valid_loss", "nats"),
        ("bleu", "100 - valid_bleu", "BLEU"),
        ("accuracy", "1 - valid_accuracy", "share"),
        ("recall_nats", "valid_recall_nats", "nats"),
        ("kl", "valid_kl", "nats"),
        ("similarity", "1 - valid_similarity", "correlation"),
        ("recall_at_10", "1 - valid_recall_at_10", "share"),
    ],
)
def test_what_stands_in_a_front(name: Any, metric: str, unit: str) -> None:
    written = objective("quality", name).to_json()
    assert written == {"name": "quality", "metric": metric, "unit": unit, "goal": "minimise"}
    assert objective("flops", name) is OBJECTIVES["flops"]


@pytest.mark.parametrize("name", QUALITIES)
def test_a_front_that_was_read_knows_its_quality(name: Any) -> None:
    (one,) = networks_of(KINDS["classification"], 1)
    entry = {
        "id": one.id,
        "architecture": one.to_json(),
        "measured": {"quality": 0.5, "valid_accuracy": 0.5, "params": 10, "flops": 20},
        "predicted": {"quality": 0.1},
    }
    goals = [{**objective(goal, name).to_json(), "reference": 9.0} for goal in ("quality", "flops")]
    data = {"schema": 1, "objectives": goals, "front": [entry], "hypervolume": 0.5}
    assert Front.from_json(data).objectives[0] == objective("quality", name)


def test_less_is_better_of_each() -> None:
    near = {"similarity": 0.75, "recall_at_10": 0.5}
    near["kl"] = 0.125
    scores = {"loss": 2.5, "accuracy": 0.75, "bleu": 30.0, "recall_nats": 1.25, **near}
    worth = {name: one.of(scores) for name, one in QUALITIES.items()}
    far = {"kl": 0.125, "similarity": 0.25, "recall_at_10": 0.5}
    assert worth == {"loss": 2.5, "accuracy": 0.25, "bleu": 70.0, "recall_nats": 1.25, **far}
    blind = {name: one.of_guessing(3.0) for name, one in QUALITIES.items()}
    assert blind == {
        "loss": 3.0,
        "accuracy": 1.0,
        "bleu": 100.0,
        "recall_nats": 3.0,
        "kl": 3.0,
        "similarity": 1.0,
        "recall_at_10": 1.0,
    }
    more = ("valid_accuracy", "valid_bleu", "valid_similarity", "valid_recall_at_10")
    assert (*more, "tokens_per_s") == MORE_IS_BETTER


@pytest.mark.parametrize(
    ("task", "quality", "begun", "copy"),
    [
        ("embedding", "loss", True, True),
        ("language_modelling", "kl", True, True),
        ("language_modelling", "loss", True, False),
        ("embedding", "loss", False, False),
    ],
)
def test_only_networks_that_began_with_a_checkpoint_copy_it(
    task: TaskName, quality: str, begun: bool, copy: bool
) -> None:
    assert copies(task, quality, begun=begun) is copy


def test_by_accuracy_it_is_the_share_of_wrong_ones() -> None:
    task, space = task_of("classification"), KINDS["classification"]
    model, (one,) = supernet_of(space), networks_of(space, 1)
    plain = evaluate(task, model, one, task.valid)
    assert validation_quality(task, model, one, "accuracy", "cpu") == {
        "quality": 1.0 - plain.accuracy,
        "valid_accuracy": plain.accuracy,
        "valid_loss": plain.loss,
    }


@pytest.mark.parametrize("metric", ["loss", "recall_nats"])
def test_loss_and_recall_are_both_reported(metric: Any) -> None:
    space = parse_space(WINDOW, "space")
    task: Any = open_task(space, "synthetic", None, 0).with_valid(20)
    model, (one,) = build_supernet(space), networks_of(space, 1)
    plain = evaluate(task, model, one, task.valid)
    found = validation_quality(task, model, one, metric, "cpu")
    apart = {"valid_loss": plain.loss} if metric == "recall_nats" else {}
    assert found == {
        "quality": plain.loss if metric == "loss" else plain.recall_nats,
        "valid_accuracy": plain.accuracy,
        "valid_recall_nats": plain.recall_nats,
        **apart,
    }


@pytest.mark.parametrize(
    ("text", "quality", "words"),
    [
        (TINY, "bleu", "bleu is for translation, but the space tiny is for classification"),
        (TRANSLATION, "recall_nats", "is for language modelling, but the space tiny-translation"),
        (LANGUAGE, "recall_nats", "the space tiny-language has none: set recall_window"),
    ],
)
def test_a_quality_that_networks_do_not_have_is_refused(
    tmp_path: Path, text: str, quality: str, words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        check_quality(spec_of(tmp_path / "run", text, quality=quality))
    check_quality(spec_of(tmp_path / "run", text, quality="accuracy"))


def test_texts_without_a_recalled_token_are_refused() -> None:
    task = open_task(parse_space(WINDOW.replace("= 6", "= 60"), "space"), "synthetic", None, 0)
    check_data(task, "loss")
    with pytest.raises(DataError, match="no token of the validation split of synthetic repeats"):
        check_data(task.with_valid(2), "recall_nats")
    check_data(
        open_task(parse_space(WINDOW, "space"), "synthetic", None, 0).with_valid(9), "recall_nats"
    )
