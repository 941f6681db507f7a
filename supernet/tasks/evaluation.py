"""Loss, accuracy and the task's own metrics of a network, trained or with inherited weights."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from search_spaces.architecture import Architecture
from search_spaces.turns import give_way
from supernet.beam_search import BeamSettings
from supernet.extraction import Supernet
from supernet.loss import summed_divergence
from supernet.tasks.base import DECODING_TOKENS, Evaluation, Scores, Task


@torch.inference_mode()
def evaluate(
    task: Task[Any, Any],
    model: Supernet,
    architecture: Architecture,
    split: Any,
    *,
    device: str = "cpu",
) -> Evaluation:
    """Evaluate one network of a model on a split of its task, in evaluation mode.

    The model is left in the mode it came in. Sums are taken in float64 on the CPU, so that the
    result does not depend on the batches beyond rounding.
    """
    was_training = model.training
    model.eval()
    loss, right, count = 0.0, list[int](), 0
    kept: list[tuple[Tensor, Tensor]] = []
    recall_loss, num_recalled = 0.0, 0
    divergence: float | None = None
    kind = torch.device(device).type
    try:
        with torch.autocast(kind, dtype=torch.bfloat16, enabled=kind == "cuda"):
            for one in task.evaluation(model, architecture, split, device):
                logits, labels, recalled, teacher = one
                give_way()
                loss += task.summed_loss(logits, labels)
                if (among := task.num_right(logits, labels)) is not None:
                    right.append(among)
                count += task.num_labels(labels)
                if task.compares:
                    kept.append((logits, labels))
                if teacher is not None:
                    divergence = (divergence or 0.0) + summed_divergence(teacher, logits, labels)
                if recalled is not None:
                    recall_loss += task.summed_loss(logits[recalled], labels[recalled])
                    num_recalled += int(recalled.sum())
    finally:
        model.train(was_training)
    assert count, "an empty split has no loss"
    recall_nats = recall_loss / num_recalled if num_recalled else None
    accuracy = sum(right) / count if right else None
    compared = {}
    if task.compares:
        logits, labels = (torch.cat(parts) for parts in zip(*kept, strict=True))
        compared = dict(task.compared(split, logits, labels))
    kl = None if divergence is None else divergence / count
    return Evaluation(loss / count, accuracy, count, recall_nats, kl, compared)


@torch.inference_mode()
def by_distance(
    task: Task[Any, Any],
    model: Supernet,
    architecture: Architecture,
    split: Any,
    *,
    device: str = "cpu",
) -> dict[str, list[dict[str, float | None]]]:
    """What `Task.by_distance` tells of a network in evaluation mode, as JSON."""
    was_training = model.training
    model.eval()
    kind = torch.device(device).type
    try:
        with torch.autocast(kind, dtype=torch.bfloat16, enabled=kind == "cuda"):
            found = task.by_distance(model, architecture, split, device)
    finally:
        model.train(was_training)
    return {name: [one._asdict() for one in stretches] for name, stretches in found.items()}


def score(
    task: Task[Any, Any],
    model: Supernet,
    architecture: Architecture,
    split: Any,
    *,
    device: str = "cpu",
    beam: BeamSettings | None = None,
    max_tokens: int = DECODING_TOKENS,
) -> Scores:
    """Score a network of a model on a split of its task.

    Args:
        task: the task.
        model: the weights, on `device`.
        architecture: the network.
        split: of the task.
        device: where to compute.
        beam: how translations are searched for; the usual beam of 4 if not given.
        max_tokens: tokens of a batch that is translated, see `translate_lines`.

    Raises:
        DivergedError: when a translation network's outputs are not finite numbers.
    """
    found = evaluate(task, model, architecture, split, device=device)
    return task.scores(
        found,
        model,
        architecture,
        split,
        device=device,
        beam=beam or BeamSettings(),
        max_tokens=max_tokens,
    )
