"""The tasks: what their networks consist of, what they need of a space, and what they are known by.

`supernet.tasks` has a class for each, with its batches, predictions and metrics; how its models are
built stands in `supernet.building`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from search_spaces.settings import ImageInput, ModelSettings

TaskName = Literal["classification", "translation", "language_modelling", "embedding"]
TASK_NAMES: tuple[TaskName, ...] = get_args(TaskName)


@dataclass(frozen=True, slots=True)
class TaskTraits:
    """What is known of a task without any network of it.

    Attributes:
        stacks: what a network consists of, and nothing else.
        network: what a network of the task is called.
        problem: what the settings of a space lack for the task; None when they are fine.
        metrics: name → what it is called, see `supernet.tasks.base.Scores`; the first that data
            have is the one that the task is known by on them.
        loss_unit: what the loss is counted in; empty for a share.
        does: what its networks do, as in "they write".
        guessing_loss: of a network that knows nothing; None where the number of outcomes says it.
    """

    stacks: tuple[str, ...]
    network: str
    problem: Callable[[ModelSettings], str | None]
    metrics: Mapping[str, str]
    loss_unit: str = "nats"
    does: str = "write"
    guessing_loss: float | None = None

    @property
    def classifies(self) -> bool:
        """Whether a network says one thing of an input, instead of writing tokens."""
        return "decoder" not in self.stacks

    @property
    def crosses(self) -> bool:
        """Whether a decoder reads what an encoder made of another sequence."""
        return "encoder" in self.stacks and "decoder" in self.stacks

    @property
    def continues(self) -> bool:
        """Whether a network goes on with the text that it reads, and so may have a memory of it."""
        return "encoder" not in self.stacks


def _classification(model: ModelSettings) -> str | None:
    return None if model.num_classes else "a classification space needs num_classes"


def _translation(model: ModelSettings) -> str | None:
    problem = _written(model, "translation")
    if problem is None and _two_vocabularies(model) == _shared(model):
        return "translation needs either input.target_vocab_size or input.share_embeddings = true"
    return problem


def _language_modelling(model: ModelSettings) -> str | None:
    problem = _written(model, "language_modelling")
    if problem is None and (_two_vocabularies(model) or _shared(model)):
        return "target_vocab_size and share_embeddings belong to translation"
    return problem


def _embedding(model: ModelSettings) -> str | None:
    problem = _text(model, "embedding")
    if problem is None and (_two_vocabularies(model) or _shared(model)):
        return "target_vocab_size and share_embeddings belong to translation"
    return problem


def _written(model: ModelSettings, task: TaskName) -> str | None:
    """Of networks that write texts, which no setting of encoders that end in one vector means."""
    for name, usual in (("class_token", False), ("pooling", "mean"), ("unit_length", False)):
        if getattr(model, name) != usual:
            return f"{name} belongs to classification and embedding; the task is {task}"
    return _text(model, task)


def _text(model: ModelSettings, task: TaskName) -> str | None:
    if model.num_classes is not None:
        return f"num_classes belongs to classification; the task is {task}"
    if isinstance(model.input, ImageInput):
        return f'input.kind is "image"; a {task} space needs "tokens"'
    return None


def _two_vocabularies(model: ModelSettings) -> bool:
    assert not isinstance(model.input, ImageInput)
    return model.input.target_vocab_size is not None


def _shared(model: ModelSettings) -> bool:
    assert not isinstance(model.input, ImageInput)
    return model.input.share_embeddings


# Of the metrics of tasks that networks are known by.
LOWER_IS_BETTER = ("loss", "perplexity")

TASKS: dict[TaskName, TaskTraits] = {
    "classification": TaskTraits(
        ("encoder",),
        "classifier",
        _classification,
        {"accuracy": "accuracy", "loss": "loss"},
        does="classify",
    ),
    "translation": TaskTraits(
        ("encoder", "decoder"),
        "translation network",
        _translation,
        {"bleu": "BLEU", "loss": "loss", "perplexity": "perplexity per token"},
    ),
    "language_modelling": TaskTraits(
        ("decoder",),
        "language model",
        _language_modelling,
        {
            "perplexity": "perplexity per token",
            "perplexity_per_word": "perplexity per word",
            "bits_per_character": "bits per character",
            "accuracy": "accuracy",
            "loss": "loss",
            "recall_nats": "loss on recalled",
            "kl": "divergence",
        },
    ),
    "embedding": TaskTraits(
        ("encoder",),
        "encoder of texts",
        _embedding,
        {
            "similarity": "similarity",
            "recall_at_10": "recall at 10",
            "checkpoint_recall_at_10": "the checkpoint's",
            "loss": "loss",
        },
        loss_unit="",
        does="embed texts",
        guessing_loss=1.0,
    ),
}
