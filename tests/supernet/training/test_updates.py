"""One update does what its definition says, written out."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from supernet.data.examples import Split
from supernet.encoder_models import EncoderClassifier
from supernet.extraction import StandAlone, extract
from supernet.training.sampling import build_sampler
from supernet.training_settings import TrainingSettings
from tests.support.supernet_cases import randomised
from tests.support.training_cases import (
    DATA,
    PROBES,
    SHORT,
    SPACE,
    VARIANTS,
    finished,
    supernet,
    trainer,
    weights,
)

Gradients = dict[str, Tensor | None]


def first_gradients(settings: TrainingSettings, teacher: StandAlone | None = None) -> Gradients:
    """What the optimiser is given in a first update, on a batch of the first 8 examples."""
    data = replace(DATA, train=Split(DATA.train.inputs[:8], DATA.train.labels[:8]))
    training = trainer(replace(settings, epochs=1, batch_size=8), data=data, teacher=teacher)
    found: Gradients = {}

    def step() -> None:
        found.update({name: p.grad for name, p in training._raw.named_parameters()})

    training._optimizer.step = step  # type: ignore[assignment]
    training._train_epoch()
    return found


def gradients_of(loss: Callable[[EncoderClassifier, Tensor, Tensor], Tensor]) -> Gradients:
    """The gradients of a loss written out; the order of the examples does not matter to it."""
    model = supernet()
    loss(model, DATA.train.inputs[:8], DATA.train.labels[:8]).backward()
    return {name: p.grad for name, p in model.named_parameters()}


def close(first: Gradients, second: Gradients, scale: float = 1.0) -> bool:
    pairs = [(first[name], second[name]) for name in first]
    return all(
        (a is None and b is None)
        or (a is not None and b is not None and torch.allclose(a, scale * b, atol=1e-6))
        for a, b in pairs
    )


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_an_update_is_on_the_mean_of_the_networks_losses(smoothing: float) -> None:
    settings = replace(
        SHORT, sampling="uniform", num_random=3, clip_norm=0.0, label_smoothing=smoothing
    )
    drawn = build_sampler(SPACE, settings, 0).draw()

    def loss(model: EncoderClassifier, images: Tensor, labels: Tensor) -> Tensor:
        target = F.one_hot(labels, 3) * (1 - smoothing) + smoothing / 3
        each = [-(target * model(images, one).log_softmax(-1)).sum(-1).mean() for one in drawn]
        return torch.stack(each).mean()

    found = first_gradients(settings)
    assert close(found, gradients_of(loss))
    assert not close(found, first_gradients(replace(settings, label_smoothing=0.1)))


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_distillation_is_towards_the_largest_networks_probabilities(share: float) -> None:
    settings = replace(SHORT, distillation=share, clip_norm=0.0, label_smoothing=0.0)
    drawn = build_sampler(SPACE, settings, 0).draw()

    def loss(model: EncoderClassifier, images: Tensor, labels: Tensor) -> Tensor:
        logits = [model(images, one) for one in drawn]
        teacher = logits[0].detach().softmax(-1)
        hard = [F.cross_entropy(mine, labels) for mine in logits]
        soft = [-(teacher * mine.log_softmax(-1)).sum(-1).mean() for mine in logits]
        rest = [(1 - share) * h + share * s for h, s in zip(hard[1:], soft[1:], strict=True)]
        return torch.stack([hard[0], *rest]).mean()

    assert close(first_gradients(settings), gradients_of(loss))


@pytest.mark.parametrize("share", [0.0, 0.4, 1.0])
@pytest.mark.parametrize("sampling", ["uniform", "sandwich"])
def test_a_frozen_teacher_teaches_all_networks(sampling: Any, share: float) -> None:
    taught = {"sampling": sampling, "num_random": 2, "distillation": share}
    settings = replace(SHORT, clip_norm=0.0, label_smoothing=0.1, **taught)
    drawn = build_sampler(SPACE, settings, 0).draw()
    frozen = extract(randomised(supernet(), 3).float(), PROBES[0])  # type: ignore[arg-type]
    frozen.eval().requires_grad_(False)
    before = {name: tensor.clone() for name, tensor in frozen.state_dict().items()}

    def loss(model: EncoderClassifier, images: Tensor, labels: Tensor) -> Tensor:
        target = F.one_hot(labels, 3) * 0.9 + 0.1 / 3
        wanted = frozen(images).softmax(-1)
        each = []
        for network in drawn:
            told = model(images, network).log_softmax(-1)
            hard, soft = (-(right * told).sum(-1).mean() for right in (target, wanted))
            each.append((1 - share) * hard + share * soft)
        return torch.stack(each).mean()

    assert close(first_gradients(settings, frozen), gradients_of(loss))
    assert all(torch.equal(before[name], one) for name, one in frozen.state_dict().items())
    assert share == 0.0 or not close(first_gradients(settings), gradients_of(loss))


def test_clipping_scales_all_gradients_to_the_norm() -> None:
    free, clipped = (first_gradients(replace(SHORT, clip_norm=norm)) for norm in (0.0, 0.1))
    norm = math.sqrt(sum(float(g.square().sum()) for g in free.values() if g is not None))
    assert norm > 0.1 and close(clipped, free, scale=0.1 / norm)
    assert close(first_gradients(replace(SHORT, clip_norm=2 * norm)), free)


def test_only_matrices_decay() -> None:
    groups = trainer(replace(SHORT, weight_decay=0.3))._optimizer.param_groups
    assert [group["weight_decay"] for group in groups] == [0.3, 0.0]
    assert {p.ndim >= 2 for p in groups[0]["params"]} == {True}
    assert {p.ndim for p in groups[1]["params"]} == {1}


def test_only_sandwich_updates_distil() -> None:
    uniform = replace(SHORT, sampling="uniform", num_random=2)
    for settings, same in ((uniform, True), (SHORT, False)):
        with_labels = first_gradients(replace(settings, distillation=0.0))
        assert close(first_gradients(replace(settings, distillation=1.0)), with_labels) is same


def test_averaged_weights_follow_behind() -> None:
    settings = replace(SHORT, epochs=1, ema_decay=0.5)
    training = trainer(settings)
    seen: list[Tensor] = []
    original = training._optimizer.step

    def step(*args: Any, **kwargs: Any) -> None:
        original(*args, **kwargs)
        seen.append(training._raw.classifier.weight.detach().clone())

    training._optimizer.step = step  # type: ignore[method-assign]
    finished(training)
    average = seen[0]
    for value in seen[1:]:
        average = 0.5 * average + 0.5 * value
    torch.testing.assert_close(training.model.classifier.weight.detach(), average)
    assert not torch.allclose(training._raw.classifier.weight, average)


def test_without_averaging_the_last_weights_are_kept() -> None:
    training = trainer()
    assert training.model is training._raw


@pytest.mark.parametrize(
    ("settings", "dropout"),
    [(SHORT, 0.5), (VARIANTS["bfloat16"], 0.0), (VARIANTS["augmented"], 0.0)],
    ids=["dropout", "bfloat16", "augmentation"],
)
def test_they_take_part_in_training(settings: TrainingSettings, dropout: float) -> None:
    plain, changed = trainer(), trainer(settings, dropout=dropout)
    finished(plain)
    finished(changed)
    assert weights(plain) != weights(changed)
    assert all(p.dtype == torch.float32 and p.isfinite().all() for p in changed.model.parameters())
