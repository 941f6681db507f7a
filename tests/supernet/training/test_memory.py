"""Loss in chunks and recomputed activations: the same gradients with less memory."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from search_spaces.errors import UsageError
from search_spaces.variation import sample
from supernet.building import build_supernet
from supernet.decoder import ElasticDecoder
from supernet.encoder import ElasticEncoder
from supernet.extraction import extract
from supernet.slices import Slices
from supernet.training.gradients import add_gradients
from supernet.training.parallel import Share
from supernet.training_settings import TrainingSettings
from tests.support.task_cases import SETTINGS, SPACES, TEXTS, each_kind, first_batch, task_of


def gradients(
    kind: str, settings: TrainingSettings, taught: bool = False
) -> tuple[list[float], dict[str, Tensor]]:
    """Losses and gradients of three networks on the first batch, by a frozen teacher or not."""
    task, space = task_of(kind), SPACES[kind]
    torch.manual_seed(0)
    model = build_supernet(space, dropout=settings.dropout).train()
    for part in model.modules():
        if isinstance(part, ElasticEncoder | ElasticDecoder):
            part.checkpoints = settings.recompute
    networks = space.decode(sample(space, np.random.default_rng(0), 3))
    teacher = None
    if taught:
        teacher = extract(build_supernet(space).eval(), networks[0]).requires_grad_(False)
    torch.manual_seed(1)
    share = Share(first_batch(task, settings), 0.5)
    slices = Slices(model)
    losses = add_gradients(
        task, model, share, networks, settings, device="cpu", slices=slices, teacher=teacher
    )
    return losses.tolist(), {n: p.grad for n, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("kind", TEXTS)
@pytest.mark.parametrize("distillation", [0.0, 0.7])
@pytest.mark.parametrize("chunk", [7, 100_000])
@pytest.mark.parametrize("taught", [False, True])
def test_chunks_of_the_loss_change_nothing(
    kind: str, distillation: float, chunk: int, taught: bool
) -> None:
    settings = replace(SETTINGS, distillation=distillation)
    losses, wanted = gradients(kind, settings, taught)
    found_losses, found = gradients(kind, replace(settings, loss_chunk=chunk), taught)
    assert found_losses == pytest.approx(losses, rel=1e-5)
    assert found.keys() == wanted.keys()
    for key, value in wanted.items():
        torch.testing.assert_close(found[key], value, rtol=1e-4, atol=1e-6)


def test_classes_are_too_few_for_chunks() -> None:
    with pytest.raises(UsageError, match="loss_chunk is for networks that write tokens"):
        gradients("classification", replace(SETTINGS, loss_chunk=8))


@each_kind
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_recomputed_activations_give_the_same_gradients(kind: str, dropout: float) -> None:
    settings = replace(SETTINGS, dropout=dropout)
    losses, wanted = gradients(kind, settings)
    again, found = gradients(kind, replace(settings, recompute=True))
    assert again == losses
    for key, value in wanted.items():
        torch.testing.assert_close(found[key], value, rtol=0, atol=0)


@each_kind
@pytest.mark.parametrize("bfloat16", [False, True])
def test_they_may_be_recomputed_in_another_thread(
    kind: str, bfloat16: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a card, for each of which autograd has a thread of its own."""
    settings = replace(SETTINGS, bfloat16=bfloat16)
    losses, wanted = gradients(kind, settings)
    grad = torch.autograd.grad

    def elsewhere(*given: Any, **named: Any) -> Any:
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(grad, *given, **named).result()

    monkeypatch.setattr(torch.autograd, "grad", elsewhere)
    again, found = gradients(kind, replace(settings, recompute=True))
    assert again == losses
    for key, value in wanted.items():
        torch.testing.assert_close(found[key], value, rtol=0, atol=0)
