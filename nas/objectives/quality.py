"""Quality: what the validation split says of a network with inherited weights, less is better.

A search has one quality. Each is a score of the networks; a score of which more is better counts by
what it lacks. One more is a line of `QUALITIES`, and in `QualityMetric`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from nas.objectives.base import Objective
from search_spaces.tasks import TASK_NAMES, TaskName

QualityMetric = Literal[
    "loss", "accuracy", "bleu", "recall_nats", "kl", "similarity", "recall_at_10"
]

NOISE = 0.01
"""Share of a quality below which a difference is none: what another seed would change."""

LOSS = Objective(
    "quality", "valid_loss", unit="nats", label="validation loss", head="loss", symbol="nats"
)


@dataclass(frozen=True, slots=True)
class Quality:
    """One measure of quality.

    Attributes:
        name: as given on the command line, and of the score that a task reports.
        objective: what is minimised.
        best: the score of a network that is always right, where more is better; quality is what a
            network lacks to it. None where less is better: quality is the score itself.
        wish: what a search for it looks for, for people.
        winner: what the network with the best quality has.
        useless: what a network does that is worth nothing.
        tasks: whose networks have the score.
    """

    name: QualityMetric
    objective: Objective
    best: float | None = None
    wish: str = "a low validation loss"
    winner: str = "the lowest loss"
    useless: str = "only guesses"
    tasks: tuple[TaskName, ...] = TASK_NAMES

    @property
    def measured_name(self) -> str:
        """The score's key among what is measured of a network."""
        return f"valid_{self.name}"

    def of(self, scores: Mapping[str, float]) -> float:
        """The value to minimise, out of the scores of a network by name."""
        score = scores[self.name]
        return score if self.best is None else self.best - score

    def of_measured(self, values: Mapping[str, Any]) -> float:
        """The same, out of scores by the names under which they are measured and kept."""
        return self.of({self.name: float(values[self.measured_name])})

    def of_guessing(self, loss: float) -> float:
        """The value of a network that knows nothing.

        Args:
            loss: of that network; scores with a best value are nothing.
        """
        return loss if self.best is None else self.best


def _lack(score: str, best: float, unit: str, name: str, head: str = "") -> Objective:
    """What a network lacks to the best of a score of which more is better.

    Args:
        score: its key among what is measured.
        best: of a network that is always right.
        unit: of the score.
        name: of the score, for people.
        head: the same, over a column.
    """
    return replace(
        LOSS,
        metric=f"{best:g} - valid_{score}",
        unit=unit,
        label=f"{best:g} − {name}",
        head=f"{best:g}−{head or name}",
        symbol="",
    )


QUALITIES: Mapping[QualityMetric, Quality] = {
    one.name: one
    for one in (
        Quality("loss", LOSS),
        Quality(
            "accuracy",
            _lack("accuracy", 1.0, "share", "accuracy"),
            best=1.0,
            wish="a high validation accuracy",
            winner="the highest accuracy",
            useless="is never right",
            tasks=("classification", "translation", "language_modelling"),
        ),
        Quality(
            "bleu",
            _lack("bleu", 100.0, "BLEU", "BLEU"),
            best=100.0,
            wish="a high BLEU",
            winner="the highest BLEU",
            useless="gets no BLEU",
            tasks=("translation",),
        ),
        Quality(
            "recall_nats",
            replace(
                LOSS, metric="valid_recall_nats", label="loss on recalled tokens", head="recall"
            ),
            wish="a low loss on recalled tokens",
            winner="the lowest loss on recalled tokens",
            tasks=("language_modelling",),
        ),
        Quality(
            "kl",
            replace(
                LOSS, metric="valid_kl", label="divergence from the checkpoint", head="divergence"
            ),
            wish="a low divergence from the checkpoint",
            winner="the lowest divergence",
            tasks=("language_modelling",),
        ),
        Quality(
            "similarity",
            _lack("similarity", 1.0, "correlation", "similarity"),
            best=1.0,
            wish="a high similarity to the checkpoint",
            winner="the highest similarity",
            useless="finds no two texts alike",
            tasks=("embedding",),
        ),
        Quality(
            "recall_at_10",
            _lack("recall_at_10", 1.0, "share", "recall at 10", "recall@10"),
            best=1.0,
            wish="a high recall among the ten nearest",
            winner="the highest recall",
            useless="finds no neighbour",
            tasks=("embedding",),
        ),
    )
}
# What an evaluator of others tells: less is better, and nothing more is known of it.
EXTERNAL_QUALITY = Quality(
    "loss",
    Objective("quality", "quality", unit="", label="quality", head="quality"),
    wish="a good quality",
    winner="the best quality",
    useless="was the worst of the first networks",
)
# The scores that are measured beside quality, as they are called there.
SCORES = tuple(one.measured_name for one in QUALITIES.values())
# Of these more is better.
MORE_IS_BETTER = tuple(one.measured_name for one in QUALITIES.values() if one.best is not None)


def copies(task: TaskName, quality: str | None, *, begun: bool) -> bool:
    """Whether networks are as good as they are like the checkpoint that their search began with.

    Training the checkpoint itself any further then makes nothing better.

    Args:
        task: of the networks.
        quality: by which the search judges.
        begun: whether it began with a checkpoint.
    """
    return begun and (task == "embedding" or quality == "kl")
