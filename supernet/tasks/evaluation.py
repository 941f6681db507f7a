"""Loss, accuracy and the task's own metrics of a network, trained or with inherited weights."""

from __future__ import annotations

import math
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
from supernet.precision import autocast, tf32
from supernet.slices import Casts
from supernet.tasks.base import Evaluation, Scores, Task


@contextmanager
def _judged(model: Supernet, device: str) -> Iterator[None]:
    """In evaluation mode, in bfloat16 on cards; afterwards in the mode the model came in."""
    was_training = model.training
    model.eval()
    try:
        with autocast(device), tf32(device), Casts().held():
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

    The model is left in the mode it came in. Sums are taken in float64, so that the result does not
    depend on the batches beyond rounding. The device is waited for behind the last batch; in each
    batch only where recalled tokens or a teacher's predictions are picked out.
    """
    found: dict[str, list[Tensor]] = {}
    kept: list[tuple[Tensor, Tensor]] = []
    with _judged(model, device):
        for one in task.evaluation(model, architecture, split, device):
            logits, labels, recalled, teacher, *_ = one
            give_way()
            values = {
                "loss": task.summed_loss(logits, labels),
                "count": task.num_labels(labels),
                "right": task.num_right(logits, labels),
            }
            if teacher is not None:
                values["divergence"] = summed_divergence(teacher, logits, labels)
            if recalled is not None:
                values["recall_loss"] = task.summed_loss(logits[recalled], labels[recalled])
                values["recalled"] = recalled.sum()
            for name, value in values.items():
                if value is not None:
                    found.setdefault(name, []).append(value.double())
            if task.compares:
                kept.append((logits, labels))
    assert found, "an empty split has no loss"
    rows = torch.stack([torch.stack(column) for column in found.values()]).tolist()
    sums = {name: sum(row) for name, row in zip(found, rows, strict=True)}
    count, recalls = int(sums["count"]), sums.get("recalled")
    compared = {}
    if task.compares:
        logits, labels = (torch.cat(parts) for parts in zip(*kept, strict=True))
        compared = dict(task.compared(split, logits, labels))
    return Evaluation(
        loss=sums["loss"] / count,
        accuracy=sums["right"] / count if "right" in sums else None,
        count=count,
        recall_nats=sums["recall_loss"] / recalls if recalls else None,
        kl=sums["divergence"] / count if "divergence" in sums else None,
        compared=compared,
    )


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
    losses: list[Tensor] = []
    with _judged(model, device):
        for logits, labels, *_ in task.evaluation(model, architecture, split, device):
            give_way()
            losses += map(task.summed_loss, logits.split(1), labels.split(1))
    if len(losses) < 2:
        return None
    return (torch.stack(losses).std() / math.sqrt(len(losses))).item()


def score(
    task: Task[Any, Any],
    model: Supernet,
    architecture: Architecture,
    split: Any,
    *,
    device: str = "cpu",
    beam: BeamSettings | None = None,
    max_tokens: int | None = None,
) -> Scores:
    """Score a network of a model on a split of its task.

    Args:
        task: the task.
        model: the weights, on `device`.
        architecture: the network.
        split: of the task.
        device: where to compute.
        beam: how translations are searched for; the usual beam of 4 if not given.
        max_tokens: tokens of a batch that is translated, see `translate_lines`; the usual ones, or
            as many as the longest line needs, if not given.

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
