"""What training and evaluation have to know of a task: its batches, and what is predicted.

A `Task` is a kind of work together with its data. Everything that is the same for all tasks, the
loss, the schedule, the sampling of networks, the checks, stands in `supernet.training`.

Shapes: P predictions, C outcomes (classes, or tokens of the vocabulary).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, NamedTuple, Self, TypeVar

import numpy as np
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from search_spaces.architecture import Architecture
from search_spaces.errors import UsageError
from search_spaces.space import SearchSpace
from search_spaces.tasks import TASKS, TaskName
from supernet.beam_search import BeamSettings
from supernet.extraction import Supernet
from supernet.loss import IGNORED, smoothed_cross_entropy
from supernet.tasks.teacher import Teacher
from supernet.training_settings import TrainingSettings

BatchT = TypeVar("BatchT")
SplitT = TypeVar("SplitT")


def spread(count: int, total: int) -> NDArray[np.int64]:
    """Numbers of `count` of `total` examples, at equal distances; both at least 1."""
    numbers: NDArray[np.int64] = np.arange(min(count, total)) * total // min(count, total)
    return numbers


class Predictions(NamedTuple):
    """Logits ``(P, C)`` and labels ``(P,)``; a label may be `supernet.loss.IGNORED`.

    Of texts that are embedded: embeddings ``(P, D)``, and those that they should be ``(P, D)``;
    and `states`, those of their tokens behind the last layer ``(P, N, D)``, 0 at padding.

    `recalled`, bool ``(P,)``, tells which labels only recall can tell, where that is known;
    `teacher` are the logits ``(P, C)`` of a network to compare with, where there is one.
    """

    logits: Tensor
    labels: Tensor
    recalled: Tensor | None = None
    teacher: Tensor | None = None
    states: Tensor | None = None


class States(NamedTuple):
    """`Predictions` before the output layer.

    Attributes:
        states: ``(P, D)``.
        tell: the output layer: states ``(K, D)`` → logits ``(K, C)``.
        labels: as of `Predictions`.
    """

    states: Tensor
    tell: Callable[[Tensor], Tensor]
    labels: Tensor


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What the predictions of a network are worth.

    A prediction is an example's class, one token of a text with all before it given, or the
    embedding of a text.

    Attributes:
        loss: mean cross-entropy in nats without label smoothing; of embeddings 1 − cosine.
        accuracy: share of right predictions; None where they are neither right nor wrong.
        count: predictions.
        recall_nats: the mean over the recalled tokens; None where none are known.
        kl: mean divergence from the teacher, in nats; None where there is none.
        compared: scores of all predictions together, see `Task.compared`.
    """

    loss: float
    accuracy: float | None
    count: int
    recall_nats: float | None = None
    kl: float | None = None
    compared: Mapping[str, float] = field(default_factory=dict)

    @property
    def scores(self) -> dict[str, float]:
        """All of them by name, those that are known."""
        known = {"loss": self.loss, "accuracy": self.accuracy, "recall_nats": self.recall_nats}
        known["kl"] = self.kl
        return {name: v for name, v in known.items() if v is not None} | dict(self.compared)


@dataclass(frozen=True)
class Scores:
    """A network's scores on a split.

    Attributes:
        values: name → value: ``loss`` (nats per prediction) and ``accuracy`` for every task but
            embedding, which has a ``loss`` (1 − cosine), ``similarity`` and ``recall_at_10``, of
            pairs with the checkpoint's own beside it (``checkpoint_recall_at_10``); a ``bleu``
            for translation; ``perplexity`` (per token) for both tasks on texts, and for
            language models ``perplexity_per_word``, ``bits_per_character`` and
            ``word_perplexity``. Per word is the published convention: all tokens' nats are shared
            out among the words and the ends of lines, as papers on WikiText-103 count its <eos>.
            ``word_perplexity`` shares the same nats out among the words alone and so is larger the
            shorter the lines are; it stays for comparison with results of older versions.
            ``recall_nats``, where a window is known, is the loss on recalled tokens, see
            `supernet.data.repeated_bigrams`; ``kl``, where there is a teacher, the divergence from
            it. Of data of which only answers are predicted there are
            loss, accuracy and ``recall_nats`` alone.
        headline: the name that the task is known by.
        count: predictions.
        bleu_signature: sacreBLEU's; translation only.
    """

    values: Mapping[str, float]
    headline: str
    count: int
    bleu_signature: str | None = field(default=None)


class Stretch(NamedTuple):
    """Tokens at like distances, and their loss.

    Attributes:
        first: the shortest distance, in tokens.
        last: the longest one; None for any.
        tokens: how many they are.
        nats: their mean cross-entropy.
    """

    first: int
    last: int | None
    tokens: int
    nats: float


class Task(ABC, Generic[BatchT, SplitT]):
    """One kind of work and its training and validation data.

    Attributes:
        kind: the task's name in a space file.
        augments: whether training examples may be changed at random.
        compares: whether predictions are compared with each other, see `compared`.
        one_each: whether each prediction is an example of its own, and no token of a text.
        name: of the data, for people.
        digest: of the data that a search sees.
        num_outcomes: classes, tokens of the networks' vocabulary, or numbers of an embedding.
        train: what networks learn from.
        valid: what they are compared on.
    """

    kind: ClassVar[TaskName]
    augments: ClassVar[bool] = False
    compares: ClassVar[bool] = False
    one_each: ClassVar[bool] = False
    name: str
    digest: str
    num_outcomes: int
    train: SplitT
    valid: SplitT
    _open_test: Callable[[], SplitT]

    @classmethod
    @abstractmethod
    def open(
        cls, space: SearchSpace, dataset: str, path: str | None, seed: int
    ) -> Task[BatchT, SplitT]:
        """Open the training and validation data of a search; see `open_task`."""

    @property
    def guessing_loss(self) -> float:
        """The loss of a network that knows nothing: to it all outcomes are as likely."""
        known = TASKS[self.kind].guessing_loss
        return math.log(self.num_outcomes) if known is None else known

    @property
    def has_recall(self) -> bool:
        """Whether some tokens of the validation split are known to be recalled."""
        return False

    @property
    def cuts_texts(self) -> bool:
        """Whether an example has as many tokens as `TrainingSettings.segment_length` says."""
        return False

    def beside(self, teacher: Teacher) -> Self:
        """The same task, in which networks are also compared with what a teacher says.

        Raises:
            UsageError: for a task whose networks write no tokens.
        """
        raise UsageError(
            f"networks of {self.kind} are not compared with a teacher's predictions; "
            "those of language modelling are"
        )

    @abstractmethod
    def describe(self) -> Mapping[str, int]:
        """Sizes of the data, for the run folder."""

    @abstractmethod
    def with_valid(self, count: int) -> Task[BatchT, SplitT]:
        """The same task with `count` validation examples only, always the same ones.

        They lie all over the split, whose files or classes may follow one another (`spread`); all
        when there are less.

        Args:
            count: images, pairs or lines, at least 1.
        """

    def check(self, settings: TrainingSettings) -> None:
        """Refuse settings that the data cannot be trained with.

        Raises:
            UsageError: saying what is wrong with them.
        """
        if settings.loss_chunk and self.one_each:
            raise self._no_chunks()
        if settings.augmentation and not self.augments:
            raise UsageError(
                f"augmentation {settings.augmentation!r} needs images, and there are none in "
                f"{self.kind}; leave it empty"
            )

    @abstractmethod
    def num_batches(self, settings: TrainingSettings) -> int:
        """Batches of the first pass; later ones may differ by a few."""

    @abstractmethod
    def batches(
        self, settings: TrainingSettings, *, seed: int, epoch: int, device: str
    ) -> Iterator[BatchT]:
        """One pass over the training split, which (seed, epoch) alone decide."""

    @abstractmethod
    def inputs(self, batch: BatchT) -> Tensor:
        """What a model is given first of a batch: tokens ``(B, N)`` or images."""

    @abstractmethod
    def predict(self, model: Any, batch: BatchT, architecture: Architecture) -> Predictions:
        """What a network of the model says about a batch."""

    def states(self, model: Any, batch: BatchT, architecture: Architecture) -> States:
        """What a network of the model says about a batch, without the output layer.

        Raises:
            UsageError: for a task whose networks have few outcomes.
        """
        raise self._no_chunks()

    def _no_chunks(self) -> UsageError:
        return UsageError(
            f"loss_chunk is for networks that write tokens; those of {self.kind} tell one thing of "
            "an input: set it to 0"
        )

    def loss(self, found: Predictions, soft: Tensor | None, settings: TrainingSettings) -> Tensor:
        """The mean loss of a batch's predictions that networks are trained with; a scalar.

        Args:
            found: as `predict` gives them.
            soft: what a teacher says of the batch, see `soft_labels`, if there is one.
            settings: how much labels are smoothed, and what the teacher weighs.
        """
        hard = smoothed_cross_entropy(found.logits, found.labels, settings.label_smoothing)
        if soft is None:
            return hard
        real = found.labels != IGNORED
        losses = F.cross_entropy(found.logits.float(), soft, reduction="none")
        taught = losses.masked_fill(~real, 0.0).sum() / real.sum().clamp(min=1)
        return (1.0 - settings.distillation) * hard + settings.distillation * taught

    def soft_labels(self, found: Predictions) -> Tensor:
        """What others learn from a network: the probabilities ``(P, C)`` of the outcomes, fp32."""
        return found.logits.float().softmax(dim=-1)

    def kept_labels(self, batch: BatchT) -> Tensor | None:
        """The `soft_labels` of a batch where its data hold them: no teacher has to run for it."""
        return None

    def summed_loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The loss of all predictions that an evaluation reports: cross-entropy, in nats.

        A float64 on the device, as the numbers of the next two methods: nobody waits for it yet.
        """
        sums = F.cross_entropy(logits.float(), labels, reduction="sum", ignore_index=IGNORED)
        return sums.double()

    def num_labels(self, labels: Tensor) -> Tensor:
        """Predictions that count."""
        return (labels != IGNORED).sum()

    def num_right(self, logits: Tensor, labels: Tensor) -> Tensor | None:
        """Predictions that count and are right; None where they are neither right nor wrong."""
        return (logits.argmax(dim=-1) == labels).sum()

    def compared(self, split: SplitT, logits: Tensor, labels: Tensor) -> Mapping[str, float]:
        """Scores that can be told of all predictions of a split together, by name.

        Asked for where the task `compares`; others have none.

        Args:
            split: of the task.
            logits: of all `evaluation`, in its order.
            labels: with them.
        """
        return {}

    def by_distance(
        self, model: Supernet, architecture: Architecture, split: SplitT, device: str
    ) -> Mapping[str, Sequence[Stretch]]:
        """The loss of a network by how far tokens are from what tells them; see `Stretch`.

        Returns:
            ``repeats``, by how many tokens ago a pair of tokens last stood (0: it did not), and
            ``positions``, by how many the network has read; empty where tokens have no order.
        """
        return {}

    @abstractmethod
    def evaluation(
        self, model: Supernet, architecture: Architecture, split: SplitT, device: str
    ) -> Iterator[Predictions]:
        """What a network of the model says about a whole split, piece by piece."""

    def scores(
        self,
        found: Evaluation,
        model: Supernet,
        architecture: Architecture,
        split: SplitT,
        *,
        device: str,
        beam: BeamSettings,
        max_tokens: int | None,
    ) -> Scores:
        """The task's metrics of a network on a split.

        Args:
            found: of all predictions.
            model: the weights, on `device`.
            architecture: the network.
            split: of the task.
            device: where to compute.
            beam: how translations are searched for.
            max_tokens: tokens of a batch that is translated, see `translate_lines`; if None the
                usual ones, or as many as the longest line needs.
        """
        return Scores(found.scores, "accuracy", found.count)

    def open_test(self) -> SplitT:
        """The test split: for the last step of retraining, and for evaluation asked for by name.

        Raises:
            DataError: when it cannot be read.
        """
        return self._open_test()
