"""Classification of images and of texts."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from search_spaces.architecture import Architecture
from search_spaces.space import SearchSpace
from supernet.data.augment import augment
from supernet.data.augmentation import Augmentation, parse_augmentation
from supernet.data.examples import (
    Batch,
    SearchData,
    Split,
    batches,
    load_search_data,
    load_test_split,
    num_batches,
)
from supernet.data.sources import Scale, holdout
from supernet.data.tokenizer import PAD
from supernet.extraction import Supernet
from supernet.seeds import mixed_seed
from supernet.tasks.base import Predictions, Task
from supernet.training_settings import TrainingSettings

EVALUATION_BATCH = 512
TEXT_BATCH = 32  # texts of like lengths; on a CPU 512 take two to three times as long each


class ClassificationTask(Task[Batch, Split]):
    """Predict the class of each example.

    Args:
        data: the splits of a search.
        open_test: reads the test split.

    Attributes:
        label_names: one name for each class.
        reading: how an example becomes an input, see `SearchData`.
        tokenizer: of a checkpoint, where texts were prepared with it.
    """

    kind = "classification"
    augments = True
    one_each = True

    def __init__(self, data: SearchData, open_test: Callable[[], Split]) -> None:
        self.name, self.digest = data.name, data.digest
        self.train, self.valid = data.train, data.valid
        self.num_outcomes = data.num_classes
        self.label_names, self.reading = data.label_names, data.reading
        self.tokenizer = data.tokenizer
        self._background = data.background
        self._open_test = open_test

    @classmethod
    def open(
        cls, space: SearchSpace, dataset: str, path: str | None, seed: int
    ) -> ClassificationTask:
        """See `Task.open`."""
        asked = dataset, path, space.model, seed, Scale.read(space.data, space.model.input)
        return cls(load_search_data(*asked), lambda: load_test_split(*asked))

    def describe(self) -> Mapping[str, int]:
        """Examples and classes."""
        sizes = {"num_train": len(self.train), "num_valid": len(self.valid)}
        return sizes | {"num_classes": self.num_outcomes}

    def with_valid(self, count: int) -> ClassificationTask:
        """See `Task.with_valid`; each class in its share, since data may lie class by class."""
        split = self.valid
        if count >= len(split):
            return self
        task, chosen = copy.copy(self), torch.from_numpy(holdout(split.labels.numpy(), count, 0)[1])
        task.valid = replace(split, inputs=split.inputs[chosen], labels=split.labels[chosen])
        return task

    def check(self, settings: TrainingSettings) -> None:
        """See `Task.check`; the augmentation is tried on one example."""
        super().check(settings)
        if settings.augmentation:
            example = next(iter(batches(self.train, 1, seed=0, epoch=0, shuffle=False))).inputs
            augment(example, settings.augmentation, torch.Generator(), self._background)

    def num_batches(self, settings: TrainingSettings) -> int:
        """Batches of every pass."""
        return num_batches(self.train, settings.batch_size)

    def batches(
        self, settings: TrainingSettings, *, seed: int, epoch: int, device: str
    ) -> Iterator[Batch]:
        """Examples in random order, augmented."""
        return batches(
            self.train,
            settings.batch_size,
            seed=seed,
            epoch=epoch,
            device=device,
            transform=self._transform(settings, mixed_seed(seed, epoch)),
        )

    def _transform(
        self, settings: TrainingSettings, seed: int
    ) -> Callable[[Tensor], Tensor] | None:
        chosen = parse_augmentation(settings.augmentation)
        if chosen == Augmentation():
            return None
        generator = torch.Generator().manual_seed(seed)
        return lambda images: augment(images, chosen, generator, self._background)

    def inputs(self, batch: Batch) -> Tensor:
        """Images, or padded texts."""
        return batch.inputs

    def predict(self, model: Supernet, batch: Batch, architecture: Architecture) -> Predictions:
        """One prediction for each example."""
        return Predictions(model(batch.inputs, architecture), batch.labels)

    def evaluation(
        self, model: Supernet, architecture: Architecture, split: Split, device: str
    ) -> Iterator[Predictions]:
        """See `Task.evaluation`; texts come shortest first, so that little is padding."""
        size = EVALUATION_BATCH
        if split.inputs.ndim == 2:
            split, size = _by_length(split), min(TEXT_BATCH, EVALUATION_BATCH)
        parts = batches(split, size, seed=0, epoch=0, shuffle=False, device=device)
        return (self.predict(model, batch, architecture) for batch in parts)


def _by_length(split: Split) -> Split:
    """The texts of a split, shortest first."""
    order = (split.inputs != PAD).sum(dim=1).argsort(stable=True)
    return replace(split, inputs=split.inputs[order], labels=split.labels[order])
