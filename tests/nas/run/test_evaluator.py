"""What a network is worth with the supernet's weights: the validation loss, or BLEU."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from nas.run.evaluator import validation_quality
from supernet.beam_search import BeamSettings
from supernet.tasks.evaluation import evaluate
from supernet.tasks.translation import split_bleu
from tests.support.task_cases import KINDS, SPACES, networks_of, supernet_of, task_of


@pytest.mark.parametrize("kind", KINDS)
def test_the_loss_is_quality_for_every_task(kind: str) -> None:
    task, model, (one,) = task_of(kind), supernet_of(SPACES[kind]), networks_of(SPACES[kind], 1)
    found = validation_quality(task, model, one, "loss", "cpu")
    plain = evaluate(task, model, one, task.valid)
    assert found == {"quality": plain.loss, "valid_accuracy": plain.accuracy}


def echoing() -> Any:
    """A supernet whose networks write something other than nothing."""
    model = supernet_of(SPACES["translation"])
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2.0)
    return model


def test_bleu_is_counted_by_what_it_lacks() -> None:
    task, model, (one,) = task_of("translation"), echoing(), networks_of(SPACES["translation"], 1)
    found = validation_quality(task, model, one, "bleu", "cpu")
    plain = evaluate(task, model, one, task.valid)
    greedy: Any = split_bleu(task, model, one, task.valid, "cpu", BeamSettings(beam_size=1))  # type: ignore[arg-type]
    assert found == {
        "quality": 100.0 - greedy.score,
        "valid_accuracy": plain.accuracy,
        "valid_loss": plain.loss,
        "valid_bleu": greedy.score,
    }


def test_perfect_translations_lack_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    task = task_of("translation")
    lines = list(task.valid.target_lines)
    monkeypatch.setattr("supernet.tasks.translation.translate_tokens", lambda *_, **__: lines)
    (one,) = networks_of(SPACES["translation"], 1)
    found = validation_quality(task, supernet_of(SPACES["translation"]), one, "bleu", "cpu")
    assert found["quality"] == 0.0 and found["valid_bleu"] == 100.0


def test_only_the_pairs_that_are_looked_at_are_translated() -> None:
    task, model, (one,) = task_of("translation"), echoing(), networks_of(SPACES["translation"], 1)
    fewer = task.with_valid(3)
    found = validation_quality(fewer, model, one, "bleu", "cpu")
    wanted: Any = split_bleu(task, model, one, fewer.valid, "cpu", BeamSettings(beam_size=1))  # type: ignore[arg-type]
    assert found["valid_bleu"] == wanted.score
