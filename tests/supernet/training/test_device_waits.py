"""How often a device is waited for: once an update, and once an evaluation."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from supernet.tasks.evaluation import evaluate
from supernet.training.loop import Trainer
from supernet.training.sampling import build_sampler
from supernet.training_settings import TrainingSettings
from tests.support.device_waits import CountedOperations
from tests.support.task_cases import (
    KINDS,
    SEGMENT,
    SPACES,
    TEXTS,
    networks_of,
    supernet_of,
    task_of,
)

SETTINGS = TrainingSettings(
    max_tokens=256, segment_length=SEGMENT, batch_size=16, accumulate=2, sampling="uniform"
)


def trained(kind: str, settings: TrainingSettings, counted: CountedOperations) -> None:
    """Train one update and count it."""
    space, task = SPACES[kind], task_of(kind)
    model = supernet_of(space, settings.dropout)
    sampler = build_sampler(space, settings, 0)
    trainer = Trainer(model, sampler, networks_of(space, 2), task, settings, seed=0)
    batches = list(task.batches(settings, seed=0, epoch=0, device="cpu"))[: settings.accumulate]
    with counted:
        trainer._update(batches)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("distillation", [0.0, 0.5])
def test_an_update_is_waited_for_once(
    kind: str, distillation: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = CountedOperations(monkeypatch)
    taught = replace(SETTINGS, sampling="sandwich", distillation=distillation)
    trained(kind, taught if distillation else SETTINGS, counted)
    assert sum(counted.calls.values()) > 100
    assert dict(counted.waits) == {"tolist": 1}


@pytest.mark.parametrize("kind", TEXTS)
def test_chunks_of_the_loss_are_not_waited_for(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    counted = CountedOperations(monkeypatch)
    trained(kind, replace(SETTINGS, loss_chunk=16), counted)
    assert dict(counted.waits) == {"tolist": 1}


@pytest.mark.parametrize("kind", KINDS)
def test_an_evaluation_is_waited_for_once(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    counted = CountedOperations(monkeypatch)
    task, (network,) = task_of(kind), networks_of(SPACES[kind], 1)
    with counted:
        evaluate(task, supernet_of(SPACES[kind]), network, task.valid)
    assert dict(counted.waits) == {"tolist": 1}


def test_waits_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The counter itself: numbers, masks and lists are what Python waits for."""
    with CountedOperations(monkeypatch) as counted:
        values = torch.arange(4.0)
        _ = values.sum().item(), values[values > 1.0], (values > 1.0).nonzero(), values.tolist()
        if values.any():
            values.add_(1.0)
    assert sum(counted.waits.values()) == 5
