"""The training loop learns and stops when it must, and evaluating changes nothing."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from search_spaces.architecture import Architecture
from search_spaces.errors import DivergedError
from supernet.data.examples import SearchData, Split, batches
from supernet.encoder_models import EncoderClassifier
from supernet.extraction import StandAlone
from supernet.tasks.evaluation import evaluate
from supernet.training.checkpoint import CheckpointFolder
from supernet.training.loop import EpochReport, Trainer
from supernet.training.sampling import ArchitectureSampler, SingleNetwork, build_sampler
from supernet.training_settings import Sampling
from tests.support.supernet_cases import network
from tests.support.training_cases import (
    DATA,
    PROBES,
    SHORT,
    SPACE,
    TASK,
    finished,
    supernet,
    trainer,
    weights,
)

# -- learning ---------------------------------------------------------------------------------


@pytest.mark.parametrize("sampling", get_args(Sampling))
def test_the_loss_falls(sampling: Sampling) -> None:
    training = trainer(replace(SHORT, epochs=12, sampling=sampling, learning_rate=0.02))
    reports = finished(training)
    assert reports[-1].train_loss < 0.8 * reports[0].train_loss
    assert sum(reports[-1].probe_losses) < 0.8 * sum(reports[1].probe_losses)
    assert evaluate(TASK, training.model, PROBES[0], DATA.valid).accuracy > 0.5


def test_a_single_network_learns_as_well() -> None:
    one = network("softmax", "linear")
    alone = StandAlone(EncoderClassifier, SPACE.model, one)
    training = Trainer(
        alone.network, SingleNetwork(one), [one], TASK, replace(SHORT, epochs=12), seed=0
    )
    reports = finished(training)
    assert reports[-1].train_loss < reports[0].train_loss
    assert len(reports[-1].probe_losses) == 1 and math.isnan(reports[-1].tau)


def test_reports_come_each_epoch_and_checks_now_and_then() -> None:
    reports = finished(trainer(replace(SHORT, epochs=5)))
    assert [report.epoch for report in reports] == [1, 2, 3, 4, 5]
    assert [len(report.probe_losses) for report in reports] == [0, 4, 0, 4, 4]
    assert [math.isnan(report.tau) for report in reports] == [True, True, True, False, False]
    assert not any(report.stopped for report in reports)


# -- stopping ---------------------------------------------------------------------------------


def test_a_stable_ranking_twice_in_a_row_ends_the_training() -> None:
    settings = replace(SHORT, epochs=8, stop_tau=-1.0)
    reports = finished(trainer(settings))
    assert [report.stopped for report in reports] == [False] * 5 + [True]
    assert len(finished(trainer(replace(settings, stop_tau=1.5)))) == 8


def test_a_loss_that_has_fallen_ends_the_training_and_it_stays_ended(tmp_path: Path) -> None:
    whole = finished(trainer(replace(SHORT, epochs=6)))
    losses = [report.train_loss for report in whole]
    assert losses[1] == min(losses[:2]) < losses[0]
    settings = replace(SHORT, epochs=6, stop_loss=(losses[0] + losses[1]) / 2)
    folder = CheckpointFolder(tmp_path, "d")
    reports = finished(trainer(settings, folder=folder))
    assert [report.train_loss for report in reports] == losses[:2]
    assert reports[-1].probe_losses and not reports[-1].stopped  # its end is checked as any
    assert finished(trainer(settings, folder=folder)) == []


def test_a_training_that_ended_early_is_judged_by_its_last_check() -> None:
    """One that had learnt enough by then is not held to the first checks of the others."""
    settings = replace(SHORT, epochs=6, check_every=1)
    slow = trainer(settings)
    going = slow.run()
    first, second = next(going), next(going)
    assert second.train_loss < first.train_loss
    assert slow.value_at(0.5) is None and slow.value_at(0.3) == _mean(second)
    enough = (first.train_loss + second.train_loss) / 2
    fast = trainer(replace(settings, stop_loss=enough))
    assert len(finished(fast)) == 2
    assert fast.value_at(0.5) == _mean(second)  # and not that of the first of its two epochs
    assert fast.value_at(0.1) == _mean(first)  # which is that of others as well


def _mean(report: EpochReport) -> float:
    return float(np.mean(report.probe_losses))


def test_a_training_stopped_as_stable_stays_stopped(tmp_path: Path) -> None:
    settings = replace(SHORT, epochs=20, stop_tau=-1.0)
    folder = CheckpointFolder(tmp_path, "d")
    first = trainer(settings, folder=folder)
    assert len(finished(first)) == 6
    again = trainer(settings, folder=folder)
    assert finished(again) == [] and weights(again) == weights(first)


def poisoned(value: float) -> SearchData:
    """Data whose images become `value` in the last quarter, in order of the examples."""
    train = Split(DATA.train.inputs.clone(), DATA.train.labels)
    train.inputs[50] = value
    return replace(DATA, train=train)


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("clip_norm", [0.0, 1.0])
def test_a_loss_that_is_no_number_stops_with_step_and_network(
    value: float, clip_norm: float
) -> None:
    sampler = Recorder(build_sampler(SPACE, SHORT, 0))
    settings = replace(SHORT, clip_norm=clip_norm)
    training = trainer(settings, data=poisoned(value), sampler=sampler)
    with pytest.raises(DivergedError) as caught:
        finished(training)
    orders = [batch.inputs.isfinite().all().item() for batch in one_epoch(poisoned(value))]
    assert f"update {orders.index(False)} " in str(caught.value)
    assert f"network {sampler.drawn[-1][0].id}" in str(caught.value)
    clipping = "" if clip_norm else " or switch gradient clipping on"
    assert str(caught.value).endswith(f"; lower the learning rate{clipping}")


def test_first_weights_that_give_no_numbers_are_no_matter_of_the_rate() -> None:
    training = trainer(learnt=True)
    torch.nn.init.constant_(training._raw.classifier.weight, math.nan)  # type: ignore[union-attr,arg-type]
    with pytest.raises(DivergedError, match="after epoch 0 .*; no update had changed .* look at"):
        finished(training)


def one_epoch(data: SearchData) -> list[Any]:
    return list(batches(data.train, SHORT.batch_size, seed=0, epoch=0))


class Recorder:
    """Remembers what was drawn."""

    def __init__(self, inner: ArchitectureSampler) -> None:
        self.inner, self.drawn = inner, list[list[Architecture]]()

    def draw(self) -> list[Architecture]:
        self.drawn.append(self.inner.draw())
        return self.drawn[-1]


def test_weights_lost_in_the_last_update_are_noticed(tmp_path: Path) -> None:
    """Its loss was still finite; the check behind it is not."""
    training = trainer(replace(SHORT, epochs=2), folder=CheckpointFolder(tmp_path, "d"))
    run = training.run()
    next(run)
    original = training._optimizer.step

    def spoil(*args: Any, **kwargs: Any) -> None:
        original(*args, **kwargs)
        if training._sampler.drawn == 4:  # type: ignore[attr-defined]
            torch.nn.init.constant_(training._raw.classifier.weight, math.nan)

    training._sampler = Counted(training._sampler)
    training._optimizer.step = spoil  # type: ignore[method-assign]
    with pytest.raises(DivergedError, match="validation loss"):
        next(run)
    assert not (tmp_path / "last.pt").exists() and not (tmp_path / "best.pt").exists()


class Counted:
    """Counts draws."""

    def __init__(self, inner: ArchitectureSampler) -> None:
        self.inner, self.drawn = inner, 0

    def draw(self) -> list[Architecture]:
        self.drawn += 1
        return self.inner.draw()


# -- evaluation -------------------------------------------------------------------------------


@pytest.mark.parametrize("batch_size", [1, 7, 30, 512])
def test_evaluation_does_not_depend_on_the_batch_size(
    batch_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("supernet.tasks.classification.EVALUATION_BATCH", batch_size)
    model = supernet().eval()
    found = evaluate(TASK, model, PROBES[0], DATA.valid)
    logits = model(DATA.valid.inputs, PROBES[0]).detach()
    assert found.loss == pytest.approx(float(F.cross_entropy(logits, DATA.valid.labels)), rel=1e-5)
    right = (logits.argmax(-1) == DATA.valid.labels).double().mean()
    assert found.accuracy == pytest.approx(float(right)) and found.count == 30


@pytest.mark.parametrize("training", [True, False])
def test_evaluation_leaves_the_mode_and_drops_nothing_out(training: bool) -> None:
    model = supernet(dropout=0.5).train(training)
    losses = {evaluate(TASK, model, PROBES[0], DATA.valid).loss for _ in range(3)}
    assert len(losses) == 1 and model.training is training
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_evaluation_restores_the_mode_after_a_failure() -> None:
    model = supernet().train()
    with pytest.raises(RuntimeError):
        evaluate(TASK, model, network("softmax", embed_dim=99), DATA.valid)
    assert model.training


@pytest.mark.gpu
def test_training_on_cuda_learns() -> None:
    training = trainer(replace(SHORT, epochs=12, learning_rate=5e-3), device="cuda")
    reports = finished(training)
    assert reports[-1].train_loss < reports[0].train_loss
    assert evaluate(TASK, training.model, PROBES[0], DATA.valid, device="cuda").accuracy > 0.5


def test_weights_that_are_learnt_are_kept_unless_training_makes_them_better(
    tmp_path: Path,
) -> None:
    """Going on from good weights with a rate that spoils them ends with those weights."""
    good = trainer(SHORT, folder=CheckpointFolder(tmp_path / "good", "d"))
    finished(good)
    learnt = good.final_weights()
    for name, rate, kept in (("worse", 3.0, True), ("fine", 1e-4, False)):
        folder = CheckpointFolder(tmp_path / name, "d")
        again = trainer(replace(SHORT, learning_rate=rate), folder=folder, learnt=True)
        again.model.load_state_dict(learnt)
        finished(again)
        assert again.best <= good.best
        if kept:
            ended = again.final_weights()
            assert all(torch.equal(ended[name], learnt[name]) for name in learnt)
