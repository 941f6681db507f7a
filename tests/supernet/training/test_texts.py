"""Training on texts: it learns, repeats itself, goes on, and ends where it is told to."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from search_spaces.errors import DivergedError
from supernet.building import build_network
from supernet.loss import smoothed_cross_entropy
from supernet.tasks.base import Task
from supernet.tasks.evaluation import evaluate
from supernet.training.checkpoint import CheckpointFolder, load
from supernet.training.loop import EpochReport, Trainer
from supernet.training.sampling import SingleNetwork, build_sampler
from supernet.training_settings import TrainingSettings
from tests.support.task_cases import (
    SEGMENT,
    SPACES,
    TEXTS,
    networks_of,
    supernet_of,
    task_of,
)

SHORT = TrainingSettings(
    epochs=3,
    max_tokens=256,
    segment_length=SEGMENT,
    batch_size=16,
    check_every=1,
    sampling="uniform",
    num_random=1,
    learning_rate=1e-2,
    dropout=0.1,
)
each_text = pytest.mark.parametrize("kind", TEXTS)


def trainer(kind: str, settings: TrainingSettings = SHORT, **options: Any) -> Trainer:
    """Of the tiny supernet."""
    space = SPACES[kind]
    model = supernet_of(space, settings.dropout)
    sampler, probes = build_sampler(space, settings, 0), networks_of(space, 3)
    return Trainer(model, sampler, probes, task_of(kind), settings, seed=0, **options)


def alone(kind: str, settings: TrainingSettings, **options: Any) -> Trainer:
    """Of one network."""
    space = SPACES[kind]
    (one,) = networks_of(space, 1)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = build_network(space.model, space.task, one, settings.dropout)
    task = task_of(kind)
    return Trainer(network.network, SingleNetwork(one), [one], task, settings, seed=0, **options)


def finished(training: Trainer) -> list[EpochReport]:
    return list(training.run())


def state(training: Trainer) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in training.model.state_dict().items()}


def equal(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[k], second[k]) for k in first)


def batches_of(task: Task[Any, Any], epoch: int = 0) -> list[Any]:
    return list(task.batches(SHORT, seed=0, epoch=epoch, device="cpu"))


# -- learning ---------------------------------------------------------------------------------


@each_text
def test_a_supernet_learns(kind: str) -> None:
    training = trainer(kind, replace(SHORT, epochs=8, dropout=0.0))
    before = evaluate(training._task, training.model, networks_of(SPACES[kind], 1)[0], valid(kind))
    finished(training)
    after = evaluate(training._task, training.model, networks_of(SPACES[kind], 1)[0], valid(kind))
    assert after.loss < 0.9 * before.loss and after.accuracy > before.accuracy


def valid(kind: str) -> Any:
    return task_of(kind).valid


@each_text
def test_a_single_network_learns(kind: str) -> None:
    reports = finished(alone(kind, replace(SHORT, epochs=8)))
    assert reports[-1].probe_losses[0] < 0.9 * reports[0].probe_losses[0]


@each_text
def test_the_seed_decides_the_weights(kind: str) -> None:
    first, again = trainer(kind), trainer(kind)
    assert finished(first)[-1].probe_losses == finished(again)[-1].probe_losses
    assert equal(state(first), state(again))


# -- the end ----------------------------------------------------------------------------------


@each_text
@pytest.mark.parametrize("most", [1, 4, 7, 1000])
def test_updates_end_the_training_in_the_midst_of_an_epoch(kind: str, most: int) -> None:
    training = trainer(kind, replace(SHORT, max_updates=most, dropout=0.0))
    total = sum(len(batches_of(training._task, epoch)) for epoch in range(3))
    reports = finished(training)
    assert training._updates == min(most, total)
    assert len(training.history) == len(reports) == reports[-1].epochs <= 3
    assert reports[-1].probe_losses  # the last epoch is always checked


@pytest.mark.parametrize("check_every", [1, 2, 5])
def test_epochs_planned_are_those_that_the_updates_leave(check_every: int) -> None:
    settings = replace(SHORT, epochs=1000, max_updates=10, check_every=check_every, dropout=0.0)
    training = trainer("translation", settings)
    per_epoch = len(batches_of(training._task))
    planned = math.ceil(10 / per_epoch)
    assert [(r.epoch, r.epochs) for r in finished(training)] == [
        (n, planned) for n in range(1, planned + 1)
    ]


@each_text
def test_several_batches_make_one_update(kind: str) -> None:
    training = trainer(kind, replace(SHORT, accumulate=2, epochs=1))
    finished(training)
    assert training._updates == math.ceil(len(batches_of(training._task)) / 2)


@each_text
@pytest.mark.parametrize("count", [1, 2, 3, 100])
def test_an_update_is_on_the_mean_over_the_labels_of_its_batches(kind: str, count: int) -> None:
    settings = replace(SHORT, accumulate=count, clip_norm=0.0, epochs=1, dropout=0.0)
    training = trainer(kind, settings)
    found: list[dict[str, Tensor | None]] = []

    def step() -> None:
        grads = ((name, p.grad) for name, p in training._raw.named_parameters())
        found.append({name: None if grad is None else grad.clone() for name, grad in grads})

    training._optimizer.step = step  # type: ignore[assignment]
    finished(training)
    model, task = supernet_of(SPACES[kind]), task_of(kind)
    (network,) = build_sampler(SPACES[kind], settings, 0).draw()
    batches = batches_of(task)[:count]
    losses = [
        smoothed_cross_entropy(*task.predict(model, batch, network)[:2], settings.label_smoothing)
        for batch in batches
    ]
    labels = torch.tensor([float(batch.num_labels) for batch in batches])
    (torch.stack(losses) @ labels / labels.sum()).backward()
    for name, parameter in model.named_parameters():
        mine = found[0][name]
        assert (mine is None) == (parameter.grad is None)
        if mine is not None:
            torch.testing.assert_close(mine, parameter.grad, rtol=1e-4, atol=1e-7)


# -- going on ---------------------------------------------------------------------------------

VARIANTS = {
    "plain": SHORT,
    "accumulating": replace(SHORT, accumulate=3),
    "short epochs": replace(SHORT, epochs=6, epoch_updates=2),
    "ended by updates": replace(SHORT, epochs=50, max_updates=8),
    "ended by updates, accumulating": replace(SHORT, epochs=50, max_updates=5, accumulate=2),
    "averaging weights": replace(SHORT, average_last=2),
    "averaging more than there is": replace(SHORT, average_last=9, check_every=2),
    "following weights": replace(SHORT, ema_decay=0.9, average_last=2),
    "in bf16, inverse square root": replace(SHORT, bfloat16=True, schedule="inverse_sqrt"),
    "sandwich, distilled": replace(SHORT, sampling="sandwich", distillation=0.5),
    "checked now and then": replace(SHORT, epochs=5, check_every=2),
}


# Every variant with one of the tasks, and each task stopped in either epoch.
@pytest.mark.parametrize("variant", range(len(VARIANTS)), ids=VARIANTS.keys())
def test_an_interrupted_training_ends_in_the_same_bits(tmp_path: Path, variant: int) -> None:
    settings = list(VARIANTS.values())[variant]
    kind, epochs = TEXTS[variant % 2], 1 + variant // 2 % 2
    whole = trainer(kind, settings, folder=CheckpointFolder(tmp_path / "a", "d"))
    reports = finished(whole)
    half = CheckpointFolder(tmp_path / "b", "d")
    interrupted = trainer(kind, settings, folder=half).run()
    for _ in range(epochs):
        next(interrupted)
    interrupted.close()
    resumed = trainer(kind, settings, folder=half)
    later = finished(resumed)
    assert 0 < len(later) <= len(reports)
    assert repr(later) == repr(reports[-len(later) :])
    assert equal(state(resumed), state(whole)) and resumed.history == whole.history
    assert equal(resumed.final_weights(), whole.final_weights())
    assert (tmp_path / "a" / "best.pt").read_bytes() == half.best.read_bytes()


@each_text
def test_a_training_that_has_ended_by_updates_stays_ended(tmp_path: Path, kind: str) -> None:
    settings = replace(SHORT, max_updates=4, average_last=2)
    folder = CheckpointFolder(tmp_path, "d")
    first = alone(kind, settings, folder=folder)
    finished(first)
    again = alone(kind, settings, folder=folder)
    assert finished(again) == [] and equal(again.final_weights(), first.final_weights())


# -- the weights that are kept ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "last", "ema_decay"),
    [
        ("translation", 1, 0.5),
        ("language_modelling", 2, 0.0),
        ("classification", 2, 0.5),
        ("translation", 4, 0.0),
        ("language_modelling", 9, 0.5),
    ],
)
def test_averaged_weights_are_the_mean_of_the_last_epochs(
    kind: str, last: int, ema_decay: float
) -> None:
    settings = replace(SHORT, epochs=4, check_every=3, average_last=last, ema_decay=ema_decay)
    training = alone(kind, settings)
    seen = [state(training) for _ in training.run()][-last:]
    assert len(seen) == min(last, 4)
    for name, found in training.final_weights().items():
        wanted = sum(weights[name].double() for weights in seen) / len(seen)
        torch.testing.assert_close(found.double(), wanted, rtol=1e-6, atol=1e-7)


def test_without_averaging_the_best_weights_are_kept(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path, "d")
    wild = replace(SHORT, epochs=6, learning_rate=1.0, warmup_share=1.0)
    training = alone("translation", wild, folder=folder)
    seen = [(report.probe_losses[0], state(training)) for report in training.run()]
    best = min(range(6), key=lambda number: seen[number][0])
    assert best < 5, "the last epoch is the best; the test shows nothing"
    assert equal(training.final_weights(), seen[best][1])
    assert load(folder.best)["loss"] == training.best == seen[best][0]


def test_a_network_reads_the_weights_that_are_kept() -> None:
    training = alone("translation", replace(SHORT, average_last=2))
    finished(training)
    last = evaluate(training._task, training.model, training._probes[0], valid("translation")).loss
    training.model.load_state_dict(training.final_weights())
    found = evaluate(training._task, training.model, training._probes[0], valid("translation"))
    assert math.isfinite(found.loss) and found.loss != last


# -- trouble ----------------------------------------------------------------------------------


@each_text
def test_a_loss_that_is_no_number_names_update_and_network(kind: str) -> None:
    training = trainer(kind)
    run = training.run()
    next(run)
    updates = training._updates
    with torch.no_grad():
        training._raw.tables[-1].weight.fill_(math.nan)  # type: ignore[union-attr,operator]
    with pytest.raises(
        DivergedError, match=rf"nan in update {updates} with network [0-9a-f]{{12}}"
    ):
        next(run)


@pytest.mark.gpu
@each_text
def test_training_on_cuda_learns(kind: str) -> None:
    training = trainer(kind, replace(SHORT, epochs=12), device="cuda")
    reports = finished(training)
    assert reports[-1].train_loss < 0.9 * reports[0].train_loss
    found = evaluate(
        training._task, training.model, training._probes[0], valid(kind), device="cuda"
    )
    assert found.loss == pytest.approx(reports[-1].probe_losses[0], rel=1e-3)


@pytest.mark.gpu
@each_text
def test_a_network_alone_learns_the_same_by_graphs(kind: str) -> None:
    losses = []
    for graphed in (True, False):
        training = alone(kind, replace(SHORT, epochs=12), device="cuda")
        if not graphed:
            training._graphed = None
        losses.append([report.train_loss for report in finished(training)])
        assert training._graphed is None or training._graphed._recorded
    assert losses[0] == pytest.approx(losses[1], rel=5e-3)
