"""Loss, accuracy and the task's own metrics of a network, trained or with inherited weights."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from search_spaces.architecture import Architecture
from search_spaces.turns import give_way
from supernet.beam_search import BeamSettings
from supernet.extraction import Supernet
from supernet.loss import summed_divergence
from supernet.tasks.base import DECODING_TOKENS, Evaluation, Scores, Task


@contextmanager
def _judged(model: Supernet, device: str) -> Iterator[None]:
    """In evaluation mode, in bfloat16 on CUDA; afterwards in the mode the model came in."""
    was_training, kind = model.training, torch.device(device).type
    model.eval()
    try:
        with torch.autocast(kind, dtype=torch.bfloat16, enabled=kind == "cuda"):
            yield
    finally:
        model.train(was_training)


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
    loss, right, count = 0.0, list[int](), 0
    kept: list[tuple[Tensor, Tensor]] = []
    recall_loss, num_recalled = 0.0, 0
    divergence: float | None = None
    with _judged(model, device):
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
    with _judged(model, device):
        found = task.by_distance(model, architecture, split, device)
    return {name: [one._asdict() for one in stretches] for name, stretches in found.items()}


@torch.inference_mode()
def loss_error(
    task: Task[Any, Any],
    model: Supernet,
    architecture: Architecture,
    split: Any,
    *,
    device: str = "cpu",
) -> float | None:
    """Standard error of the loss that `evaluate` gives, examples being what is drawn at random.

    None where predictions are no examples of their own, which the tokens of a text are not, and of
    a single example.
    """
    if not task.one_each:
        return None
    losses: list[float] = []
    with _judged(model, device):
        for logits, labels, *_ in task.evaluation(model, architecture, split, device):
            give_way()
            losses += map(task.summed_loss, logits.split(1), labels.split(1))
    return statistics.stdev(losses) / math.sqrt(len(losses)) if len(losses) > 1 else None


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
