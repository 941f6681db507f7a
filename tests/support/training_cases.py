"""Trainings of a small classifier on striped images."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

import pytest
import torch

from supernet.building import build_supernet
from supernet.data.examples import SearchData, Split
from supernet.encoder_models import EncoderClassifier
from supernet.tasks.classification import ClassificationTask
from supernet.training.loop import EpochReport, Trainer
from supernet.training.sampling import build_sampler
from supernet.training_settings import TrainingSettings
from tests.support.supernet_cases import IMAGES, random_networks, space_of

SPACE = space_of(replace(IMAGES, num_classes=3))
PROBES = random_networks(SPACE, 4)
SHORT = TrainingSettings(epochs=4, batch_size=16, check_every=2, num_random=1)
VARIANTS = {
    "sandwich": SHORT,
    "uniform": replace(SHORT, sampling="uniform", num_random=2),
    "fair": replace(SHORT, sampling="fair", num_random=2),
    "averaged": replace(SHORT, ema_decay=0.9),
    "augmented": replace(SHORT, augmentation="shift=1"),
    "bfloat16": replace(SHORT, bfloat16=True),
}


def striped(count: int, seed: int) -> Split:
    """Images whose bright third tells the class, under noise."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(3, (count,), generator=generator)
    images = 0.1 * torch.randn(count, 2, 8, 8, generator=generator)
    for number, label in enumerate(labels.tolist()):
        images[number, :, 3 * label : 3 * label + 2] += 2.0
    return Split(images, labels)


DATA = SearchData(
    "striped", striped(56, 0), striped(30, 1), 3, ("a", "b", "c"), "digest", (0.0, 0.0)
)


def supernet(dropout: float = 0.0) -> EncoderClassifier:
    """Of all networks of the space, always with the same weights."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return build_supernet(SPACE, dropout)


def trainer(settings: TrainingSettings = SHORT, *, seed: int = 0, **options: Any) -> Trainer:
    """A training of the supernet, unless told otherwise."""
    dropout = options.pop("dropout", 0.0)
    model = options.pop("model", None) or supernet(dropout)
    sampler = options.pop("sampler", None) or build_sampler(SPACE, settings, seed)
    task = task_of(options.pop("data", DATA))
    return Trainer(model, sampler, PROBES, task, settings, seed=seed, **options)


def task_of(data: SearchData) -> ClassificationTask:
    """A task whose test split stays shut."""
    return ClassificationTask(data, lambda: pytest.fail("training opened the test split"))


TASK = task_of(DATA)


def finished(training: Trainer) -> list[EpochReport]:
    """Train to the end."""
    return list(training.run())


def weights(training: Trainer) -> str:
    """A digest of the final weights, bit by bit."""
    total = hashlib.sha256()
    for name, tensor in training.model.state_dict().items():
        total.update(name.encode() + tensor.cpu().numpy().tobytes())
    return total.hexdigest()
