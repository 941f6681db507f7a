"""A training repeats itself bit by bit, from its start and from any checkpoint."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from search_spaces.errors import DamagedRunError
from supernet.tasks.evaluation import evaluate
from supernet.training.checkpoint import CheckpointFolder, load
from supernet.training.loop import EpochReport, Trainer
from supernet.training_settings import TrainingSettings
from tests.support.training_cases import (
    DATA,
    PROBES,
    SHORT,
    TASK,
    VARIANTS,
    finished,
    supernet,
    trainer,
    weights,
)


def test_the_seed_decides_the_weights() -> None:
    first, again = (trainer(seed=1, dropout=0.2) for _ in range(2))
    assert finished(first)[-1].probe_losses == finished(again)[-1].probe_losses
    assert weights(first) == weights(again)


def test_another_seed_gives_other_weights() -> None:
    first, other = (trainer(seed=seed, dropout=0.2) for seed in (1, 2))
    finished(first), finished(other)
    assert weights(first) != weights(other)


def test_going_on_ends_in_the_same_bytes(tmp_path: Path) -> None:
    """Stopped after any epoch: what came after the last checkpoint is done again, the same."""
    missing = {1: 5, 2: 3, 4: 1, 5: 0}
    assert resumed_after(list(missing), replace(SHORT, epochs=5), tmp_path) == missing


@pytest.mark.parametrize("settings", VARIANTS.values(), ids=VARIANTS.keys())
def test_every_sort_of_training_goes_on(tmp_path: Path, settings: TrainingSettings) -> None:
    assert resumed_after([2], replace(settings, epochs=3), tmp_path) == {2: 1}


def resumed_after(stops: list[int], settings: TrainingSettings, folder: Path) -> dict[int, int]:
    """Trainings stopped after so many epochs end like a whole one; what they still had to do."""
    whole = trainer(settings, dropout=0.2, folder=CheckpointFolder(folder / "whole", "d"))
    reports = finished(whole)
    return {stop: _resumed_after(stop, settings, folder, whole, reports) for stop in stops}


def _resumed_after(
    epochs: int,
    settings: TrainingSettings,
    folder: Path,
    whole: Trainer,
    reports: list[EpochReport],
) -> int:
    half = CheckpointFolder(folder / str(epochs), "d")
    interrupted = trainer(settings, dropout=0.2, folder=half).run()
    for _ in range(epochs):
        next(interrupted)
    interrupted.close()
    resumed = trainer(settings, dropout=0.2, folder=half)
    later = finished(resumed)
    assert repr(later) == repr(reports[len(reports) - len(later) :])
    assert weights(resumed) == weights(whole) and resumed.history == whole.history
    assert (folder / "whole" / "best.pt").read_bytes() == half.best.read_bytes()
    return len(later)


def test_global_random_state_is_left_alone_and_without_influence() -> None:
    first = trainer(dropout=0.3)
    torch.manual_seed(123)
    before = torch.random.get_rng_state()
    finished(first)
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.manual_seed(7)
    second = trainer(dropout=0.3)
    finished(second)
    assert weights(first) == weights(second)


def test_every_epoch_has_random_numbers_of_its_own() -> None:
    states: list[list[bytes]] = []
    for seed in (0, 1):
        training, seen = trainer(seed=seed), list[bytes]()
        training._raw.embedding.register_forward_pre_hook(
            lambda *_, seen=seen: seen.append(torch.random.get_rng_state().numpy().tobytes())
        )
        for _ in range(3):
            training._train_epoch()
            training._epoch += 1
        states.append(seen)
    # Without dropout nothing is drawn within an epoch, so there is one state for each.
    assert [len(set(seen)) for seen in states] == [3, 3]
    assert not set(states[0]) & set(states[1])


def test_another_trainings_checkpoint_is_not_taken_up(tmp_path: Path) -> None:
    finished(trainer(folder=CheckpointFolder(tmp_path, "one")))
    assert len(finished(trainer(folder=CheckpointFolder(tmp_path, "other")))) == SHORT.epochs


def test_a_damaged_checkpoint_stops_the_training(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path, "d")
    finished(trainer(folder=folder))
    folder.last.write_bytes(folder.last.read_bytes()[:-200])
    with pytest.raises(DamagedRunError, match=r"last\.pt"):
        finished(trainer(folder=folder))


def test_best_weights_have_the_lowest_loss_seen(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path, "d")
    training = trainer(replace(SHORT, epochs=8, learning_rate=0.1), folder=folder)
    means = [sum(r.probe_losses) / 4 for r in training.run() if r.probe_losses]
    best = load(folder.best)
    assert best["loss"] == training.best == pytest.approx(min(means))
    model = supernet()
    model.load_state_dict(best["model"])
    losses = [evaluate(TASK, model, probe, DATA.valid).loss for probe in PROBES]
    assert sum(losses) / 4 == pytest.approx(min(means), rel=1e-6)


def test_weights_are_kept_by_what_they_are_judged_by(tmp_path: Path) -> None:
    folder, settings = CheckpointFolder(tmp_path, "d"), replace(SHORT, epochs=6)
    options: dict[str, Any] = {"folder": folder, "judge": lambda found: -found.loss}
    training = trainer(settings, **options)
    means = [sum(r.probe_losses) / 4 for r in training.run() if r.probe_losses]
    assert load(folder.best)["loss"] == training.best == pytest.approx(-max(means))
    lines = [line for line in training.history if line["probe_loss"] is not None]
    assert [line["judged"] for line in lines] == pytest.approx([-mean for mean in means])
    again = trainer(settings, **options)
    assert again.value_at(1.0) == training.value_at(1.0) == pytest.approx(-means[-1])
    assert all("judged" not in line for line in trainer().history)


def test_what_is_no_number_gives_way_to_what_comes_later(tmp_path: Path) -> None:
    values = iter([math.nan] * 4 + [1.0] * 4 + [math.nan] * 100)
    folder = CheckpointFolder(tmp_path, "d")
    training = trainer(replace(SHORT, epochs=8), folder=folder, judge=lambda found: next(values))
    finished(training)
    assert load(folder.best)["loss"] == training.best == 1.0
