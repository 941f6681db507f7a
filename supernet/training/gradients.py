"""The gradients of one update: every network of it, on one share of a batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from search_spaces.architecture import Architecture
from supernet.extraction import Supernet
from supernet.loss import IGNORED, smoothed_cross_entropy
from supernet.tasks.base import Task
from supernet.training.parallel import Share
from supernet.training_settings import TrainingSettings


def add_gradients(
    task: Task[Any, Any],
    model: Supernet,
    share: Share,
    networks: Sequence[Architecture],
    settings: TrainingSettings,
    *,
    device: str,
) -> list[float]:
    """Add to the model's gradients those of the networks' mean loss on a share of an update.

    Args:
        task: what is predicted of a batch.
        model: whose gradients grow.
        share: of the update.
        networks: which train; the first is the teacher where there is one.
        settings: the numbers.
        device: where the model is.

    Returns:
        The loss of each network on the share, times the share's weight.
    """
    losses, teacher = list[float](), None
    for number, network in enumerate(networks):
        with _autocast(device, settings):
            logits, labels, _ = task.predict(model, share.batch, network)
        loss = _loss(logits, labels, teacher, settings) * share.weight
        (loss / len(networks)).backward()
        losses.append(loss.item())
        if number == 0 and _distils(settings, len(networks)):
            teacher = logits.detach().float().softmax(dim=-1)
    return losses


def _distils(settings: TrainingSettings, num_networks: int) -> bool:
    return num_networks > 1 and settings.sampling == "sandwich" and settings.distillation > 0.0


def _loss(
    logits: Tensor, labels: Tensor, teacher: Tensor | None, settings: TrainingSettings
) -> Tensor:
    hard = smoothed_cross_entropy(logits, labels, settings.label_smoothing)
    if teacher is None:
        return hard
    real = labels != IGNORED
    soft = F.cross_entropy(logits.float()[real], teacher[real])
    return (1.0 - settings.distillation) * hard + settings.distillation * soft


def _autocast(device: str, settings: TrainingSettings) -> torch.autocast:
    kind = torch.device(device).type
    return torch.autocast(kind, dtype=torch.bfloat16, enabled=kind == "cuda" or settings.bfloat16)
