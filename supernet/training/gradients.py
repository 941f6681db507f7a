"""The gradients of one update: every network of it, on one share of a batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from search_spaces.architecture import Architecture
from supernet.extraction import StandAlone, Supernet
from supernet.loss import IGNORED
from supernet.precision import autocast
from supernet.shared import sharing
from supernet.slices import Slices
from supernet.tasks.base import Predictions, Task
from supernet.training.parallel import Share
from supernet.training_settings import ENDS, TrainingSettings


def add_gradients(
    task: Task[Any, Any],
    model: Supernet,
    share: Share,
    networks: Sequence[Architecture],
    settings: TrainingSettings,
    *,
    device: str,
    slices: Slices,
    teacher: StandAlone | None = None,
) -> Tensor:
    """Add to the model's gradients those of the networks' mean loss on a share of an update.

    Args:
        task: what is predicted of a batch.
        model: whose gradients grow.
        share: of the update.
        networks: which train; the first is the teacher where there is one.
        settings: the numbers.
        device: where the model is.
        slices: of the model, begun anew for the update.
        teacher: a frozen network that teaches all of them, in place of the first.

    Returns:
        The loss of each network on the share, times the share's weight: float64, on the device,
        for a number that Python reads is waited for.
    """
    way = _in_chunks if settings.loss_chunk else _at_once
    losses, taught = list[Tensor](), None
    if teacher is not None and settings.distillation > 0.0:
        taught = _taught_by(teacher, task, share.batch, settings, device)
    for number, network in enumerate(networks):
        part = Part(share.batch, share.weight, len(networks))
        with slices.training(), sharing():
            loss, said = way(task, model, part, network, settings, taught, slices, device)
        losses.append(loss)
        if number == 0 and teacher is None and _distils(settings, len(networks)):
            taught = said
    return torch.stack(losses)


class Part(NamedTuple):
    """A share of a batch, for one of several networks.

    Attributes:
        batch: the examples.
        weight: of their mean loss among all examples of the update.
        networks: of the update, how many.
    """

    batch: Any
    weight: float | Tensor
    networks: int


Taught = Callable[[int, int], Tensor]
"""What the teacher says (`Task.soft_labels`) of the predictions from one number to another."""


def _taught_by(
    teacher: StandAlone,
    task: Task[Any, Any],
    batch: Any,
    settings: TrainingSettings,
    device: str,
) -> Taught:
    """What a frozen network says about a batch, which is asked where the data do not hold it.

    With `loss_chunk` it tells a chunk at a time.
    """
    kept = task.kept_labels(batch)
    if kept is not None:
        return lambda start, end: kept[start:end]
    with torch.no_grad(), autocast(device, settings.bfloat16):
        if not settings.loss_chunk:
            said = task.predict(teacher.network, batch, teacher.architecture)
            return lambda start, end: task.soft_labels(said)
        states_PD, tell, labels_P = task.states(teacher.network, batch, teacher.architecture)

    def taught(start: int, end: int) -> Tensor:
        with torch.no_grad(), autocast(device, settings.bfloat16):
            return task.soft_labels(Predictions(tell(states_PD[start:end]), labels_P[start:end]))

    return taught


def _at_once(
    task: Task[Any, Any],
    model: Supernet,
    part: Part,
    network: Architecture,
    settings: TrainingSettings,
    teacher: Taught | None,
    slices: Slices,
    device: str,
) -> tuple[Tensor, Taught]:
    """One network's gradients; its loss, times the part's weight; and what it teaches."""
    with autocast(device, settings.bfloat16):
        found = task.predict(model, part.batch, network)
    soft = None if teacher is None else teacher(0, len(found.labels))
    loss = task.loss(found, soft, settings) * part.weight
    slices.backward(loss / part.networks)
    states = None if found.states is None else found.states.detach()
    said = found._replace(logits=found.logits.detach(), states=states)
    return loss.detach().double(), lambda start, end: task.soft_labels(said)


def _in_chunks(
    task: Task[Any, Any],
    model: Supernet,
    part: Part,
    network: Architecture,
    settings: TrainingSettings,
    teacher: Taught | None,
    slices: Slices,
    device: str,
) -> tuple[Tensor, Taught]:
    """As `_at_once`, with the logits of `loss_chunk` predictions at a time.

    The gradients of the states come chunk by chunk and then go back through the network.
    """
    with autocast(device, settings.bfloat16):
        states_PD, tell, labels_P = task.states(model, part.batch, network)
    known_PD, gradients = states_PD.detach(), list[Tensor]()
    total = torch.zeros((), dtype=torch.float64, device=known_PD.device)
    size = settings.loss_chunk
    real_P = labels_P != IGNORED
    whole = real_P.sum().clamp(min=1)
    for start in range(0, len(labels_P), size):
        labels = labels_P[start : start + size]
        share = real_P[start : start + size].sum() / whole
        piece_KD = known_PD[start : start + size].requires_grad_()
        with autocast(device, settings.bfloat16):
            logits = tell(piece_KD)
        soft = None if teacher is None else teacher(start, start + size)
        loss = task.loss(Predictions(logits, labels), soft, settings) * (share * part.weight)
        gradients += slices.backward(loss / part.networks, by=[piece_KD])
        total += loss.detach()
    slices.backward(states_PD, torch.cat(gradients))

    def taught(start: int, end: int) -> Tensor:
        with torch.no_grad(), autocast(device, settings.bfloat16):
            return task.soft_labels(Predictions(tell(known_PD[start:end]), labels_P[start:end]))

    return total, taught


def _distils(settings: TrainingSettings, num_networks: int) -> bool:
    return num_networks > 1 and ENDS[settings.sampling] > 0 and settings.distillation > 0.0
