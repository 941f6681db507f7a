"""What each task predicts from which batches, and what it refuses to be trained with."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from search_spaces.errors import UsageError
from search_spaces.loading import load_space
from supernet.data import sources
from supernet.loss import IGNORED
from supernet.tasks.base import Task
from supernet.tasks.opening import open_task
from supernet.training_settings import TrainingSettings
from tests.support.task_cases import (
    SEGMENT,
    SETTINGS,
    SPACES,
    TOKENIZER,
    each_kind,
    first_batch,
    networks_of,
    supernet_of,
    task_of,
)

# -- what is predicted ------------------------------------------------------------------------


@each_kind
def test_every_prediction_has_its_label(kind: str) -> None:
    task, space = task_of(kind), SPACES[kind]
    batch = first_batch(task)
    logits, labels, *_ = task.predict(supernet_of(space), batch, networks_of(space, 1)[0])
    assert logits.shape == (len(labels), task.num_outcomes) and labels.dtype == torch.int64
    real = labels != IGNORED
    assert int(labels[real].min()) >= 0 and int(labels[real].max()) < task.num_outcomes
    assert int(real.sum()) == getattr(batch, "num_tokens", len(batch))


def test_padding_of_a_batch_is_not_predicted() -> None:
    task = task_of("translation")
    batch = first_batch(task)
    space = SPACES["translation"]
    labels = task.predict(supernet_of(space), batch, networks_of(space, 1)[0]).labels
    found = labels.view(batch.targets.shape)
    assert (found[batch.target_mask] == batch.targets[batch.target_mask]).all()
    assert (found[~batch.target_mask] == IGNORED).all() and (~batch.target_mask).any()


def test_the_end_of_a_text_is_not_predicted_beyond() -> None:
    task, space = task_of("language_modelling"), SPACES["language_modelling"]
    *_, last = task.evaluation(
        supernet_of(space), networks_of(space, 1)[0], task.valid, device="cpu"
    )
    ignored = (last.labels == IGNORED).nonzero().flatten()
    length = len(task.valid)
    assert len(ignored) == -length % SEGMENT > 0
    assert ignored.tolist() == list(range(len(last.labels) - len(ignored), len(last.labels)))


def test_lists_are_judged_shortest_first(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, count in {"TRAIN": 2, "VALID": 70}.items():
        monkeypatch.setattr(sources, f"LISTOPS_{name}", count)
    task = open_task(load_space("listops"), "listops", None, 0)
    shapes: list[tuple[int, ...]] = []

    def model(inputs: Tensor, network: object) -> Tensor:
        shapes.append(tuple(inputs.shape))
        return torch.zeros(len(inputs), 10)

    found: Any = list(task.evaluation(model, None, task.valid, "cpu"))  # type: ignore[arg-type]
    sizes, lengths = zip(*shapes, strict=True)
    assert sizes == (32, 32, 6) and list(lengths) == sorted(lengths) and lengths[0] < lengths[-1]
    labels = torch.cat([part.labels for part in found])
    assert labels.sort().values.equal(task.valid.labels.sort().values)


# -- batches ----------------------------------------------------------------------------------


def contents(task: Task[Any, Any], seed: int, epoch: int) -> list[bytes]:
    stream = task.batches(SETTINGS, seed=seed, epoch=epoch, device="cpu")
    return [batch.inputs.numpy().tobytes() for batch in stream]


@each_kind
def test_seed_and_epoch_decide_the_batches(kind: str) -> None:
    task = task_of(kind)
    first = contents(task, 0, 0)
    assert first == contents(task_of(kind), 0, 0)
    assert first != contents(task, 0, 1) and first != contents(task, 1, 0)


@each_kind
def test_the_batches_of_the_first_pass_are_counted(kind: str) -> None:
    task = task_of(kind)
    assert task.num_batches(SETTINGS) == len(contents(task, 0, 0)) > 2


def test_augmentation_is_drawn_anew_in_every_epoch() -> None:
    task = task_of("classification")
    settings = TrainingSettings(batch_size=64, augmentation="shift=2")
    passes = [
        next(iter(task.batches(settings, seed=seed, epoch=epoch, device="cpu"))).inputs
        for seed, epoch in ((0, 0), (0, 0), (0, 1), (1, 0))
    ]
    plain = first_batch(task, TrainingSettings(batch_size=64)).inputs
    assert torch.equal(passes[0], passes[1]) and not torch.equal(passes[0], plain)
    assert len({tuple(sorted(x.sum(dim=(1, 2, 3)).tolist())) for x in passes}) == 3


# -- descriptions and refusals ----------------------------------------------------------------


def test_descriptions_count_what_is_there() -> None:
    assert task_of("classification").describe() == {
        "num_train": 40,
        "num_valid": 12,
        "num_classes": 10,
    }
    task = task_of("translation")
    size = TOKENIZER.vocab_size
    assert task.describe() == {
        "num_train": 40,
        "num_valid": 12,
        "num_source_tokens": sum(len(row) for row in task.train.source),
        "num_target_tokens": sum(len(row) for row in task.train.target),
        "source_vocab_size": size,
        "target_vocab_size": size,
    }
    task = task_of("language_modelling")
    tokens = sum(len(row) for row in task.train.rows)
    expected = {"num_train": 40, "num_valid": 12, "num_tokens": tokens, "vocab_size": size}
    assert task.describe() == expected


@pytest.mark.parametrize(
    ("kind", "settings", "words"),
    [
        ("translation", {"max_tokens": 8}, "cannot hold the longest pair"),
        ("language_modelling", {"segment_length": 64, "max_tokens": 32}, "do not fit"),
        ("language_modelling", {"segment_length": 65}, "at most 64 tokens.*max_length"),
        ("classification", {"augmentation": "shift=99"}, "shift"),
        ("classification", {"augmentation": "spin=1"}, "spin"),
        ("classification", {"loss_chunk": 8}, "loss_chunk is for networks that write tokens"),
        ("translation", {"augmentation": "flip"}, "'flip' needs images, .* leave it empty"),
        ("language_modelling", {"augmentation": "spin=1"}, "'spin=1' needs images"),
    ],
)
def test_settings_that_cannot_be_trained_with(
    kind: str, settings: dict[str, Any], words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        task_of(kind).check(TrainingSettings(**settings))


@each_kind
def test_settings_of_other_tasks_do_not_matter(kind: str) -> None:
    wrong: dict[str, dict[str, Any]] = {
        "classification": {"max_tokens": 1, "segment_length": 9999},
        "translation": {"batch_size": 1, "segment_length": 9999},
        "language_modelling": {"batch_size": 1, "segment_length": 64, "loss_chunk": 8},
    }
    task_of(kind).check(TrainingSettings(**wrong[kind]))
