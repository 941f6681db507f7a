"""What training and evaluation have to know of a task: its batches, and what is predicted.

A `Task` is a kind of work together with its data. Everything that is the same for all tasks, the
loss, the schedule, the sampling of networks, the checks, stands in `supernet.training`.

Shapes: P predictions, C outcomes (classes, or tokens of the vocabulary).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

from torch import Tensor

from search_spaces.architecture import Architecture
from search_spaces.settings import Task as TaskName
from supernet.extraction import Supernet
from supernet.training_settings import TrainingSettings

BatchT = TypeVar("BatchT")
SplitT = TypeVar("SplitT")


class Predictions(NamedTuple):
    """Logits ``(P, C)`` and labels ``(P,)``; a label may be `supernet.loss.IGNORED`."""

    logits: Tensor
    labels: Tensor


class Task(ABC, Generic[BatchT, SplitT]):
    """One kind of work and its training and validation data.

    Attributes:
        kind: the task's name in a space file.
        name: of the data, for people.
        digest: of the data that a search sees.
        num_outcomes: classes, or tokens of the networks' vocabulary: a network that guesses has a
            loss of its logarithm.
        train: what networks learn from.
        valid: what they are compared on.
    """

    kind: ClassVar[TaskName]
    name: str
    digest: str
    num_outcomes: int
    train: SplitT
    valid: SplitT

    @abstractmethod
    def describe(self) -> Mapping[str, int]:
        """Sizes of the data, for the run folder."""

    @abstractmethod
    def first_valid(self, count: int) -> Task[BatchT, SplitT]:
        """The same task with the first `count` validation examples only; all when there are less.

        Args:
            count: images, pairs or lines, at least 1.
        """

    @abstractmethod
    def check(self, settings: TrainingSettings) -> None:
        """Refuse settings that the data cannot be trained with.

        Raises:
            UsageError: saying what is wrong with them.
        """

    @abstractmethod
    def num_batches(self, settings: TrainingSettings) -> int:
        """Batches of the first pass; later ones may differ by a few."""

    @abstractmethod
    def batches(
        self, settings: TrainingSettings, *, seed: int, epoch: int, device: str
    ) -> Iterator[BatchT]:
        """One pass over the training split, which (seed, epoch) alone decide."""

    @abstractmethod
    def predict(self, model: Any, batch: BatchT, architecture: Architecture) -> Predictions:
        """What a network of the model says about a batch."""

    @abstractmethod
    def evaluation(
        self, model: Supernet, architecture: Architecture, split: SplitT, device: str
    ) -> Iterator[Predictions]:
        """What a network of the model says about a whole split, piece by piece."""

    @abstractmethod
    def open_test(self) -> SplitT:
        """The test split: for the last step of retraining, and for evaluation asked for by name.

        Raises:
            DataError: when it cannot be read.
        """
