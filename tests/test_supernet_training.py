"""The training loop: it learns, repeats itself, goes on, and stops when it must."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from search_spaces.architecture import Architecture
from search_spaces.errors import DamagedRunError, DivergedError
from supernet.data.batching import batches
from supernet.data.datasets import SearchData, Split
from supernet.models import EncoderClassifier, FixedNetwork, build_classifier_supernet
from supernet.tasks.classification import ClassificationTask
from supernet.tasks.evaluation import evaluate
from supernet.training.checkpoint import CheckpointFolder, load
from supernet.training.loop import EpochReport, Trainer
from supernet.training.sampling import ArchitectureSampler, SingleNetwork, build_sampler
from supernet.training_settings import Sampling, TrainingSettings
from tests.supernet_cases import IMAGES, network, random_networks, space_of

SPACE = space_of(replace(IMAGES, num_classes=3))
PROBES = random_networks(SPACE, 4)
SHORT = TrainingSettings(epochs=4, batch_size=16, check_every=2, num_random=1)


def striped(count: int, seed: int) -> Split:
    """Images whose bright third tells the class, under noise."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(3, (count,), generator=generator)
    images = 0.1 * torch.randn(count, 2, 8, 8, generator=generator)
    for number, label in enumerate(labels.tolist()):
        images[number, :, 3 * label : 3 * label + 2] += 2.0
    return Split(images, labels)


DATA = SearchData(
    "striped", striped(56, 0), striped(30, 1), 3, ("a", "b", "c"), "digest", (0.0, 0.0)
)


def supernet(dropout: float = 0.0) -> EncoderClassifier:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return build_classifier_supernet(SPACE, dropout)


def trainer(settings: TrainingSettings = SHORT, *, seed: int = 0, **options: Any) -> Trainer:
    dropout = options.pop("dropout", 0.0)
    model = options.pop("model", None) or supernet(dropout)
    sampler = options.pop("sampler", None) or build_sampler(SPACE, settings, seed)
    task = task_of(options.pop("data", DATA))
    return Trainer(model, sampler, PROBES, task, settings, seed=seed, **options)


def task_of(data: SearchData) -> ClassificationTask:
    return ClassificationTask(data, lambda: pytest.fail("training opened the test split"))


TASK = task_of(DATA)


def finished(training: Trainer) -> list[EpochReport]:
    return list(training.run())


def weights(training: Trainer) -> str:
    """A digest of the final weights, bit by bit."""
    total = hashlib.sha256()
    for name, tensor in training.model.state_dict().items():
        total.update(name.encode() + tensor.numpy().tobytes())
    return total.hexdigest()


# -- learning ---------------------------------------------------------------------------------


@pytest.mark.parametrize("sampling", ["uniform", "sandwich", "fair"])
def test_the_loss_falls(sampling: Sampling) -> None:
    training = trainer(replace(SHORT, epochs=12, sampling=sampling, learning_rate=0.02))
    reports = finished(training)
    assert reports[-1].train_loss < 0.8 * reports[0].train_loss
    assert sum(reports[-1].probe_losses) < 0.8 * sum(reports[1].probe_losses)
    assert evaluate(TASK, training.model, PROBES[0], DATA.valid).accuracy > 0.5


def test_a_single_network_learns_as_well() -> None:
    one = network("softmax", "linear")
    alone = FixedNetwork(SPACE.model, one)
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


# -- repetition -------------------------------------------------------------------------------

VARIANTS = {
    "sandwich": SHORT,
    "uniform": replace(SHORT, sampling="uniform", num_random=2),
    "fair": replace(SHORT, sampling="fair", num_random=2),
    "averaged": replace(SHORT, ema_decay=0.9),
    "augmented": replace(SHORT, augmentation="shift=1"),
    "bfloat16": replace(SHORT, bfloat16=True),
}
each_variant = pytest.mark.parametrize("settings", VARIANTS.values(), ids=VARIANTS.keys())


@each_variant
def test_the_seed_decides_the_weights(settings: TrainingSettings) -> None:
    first, again, other = (trainer(settings, seed=s, dropout=0.2) for s in (1, 1, 2))
    assert finished(first)[-1].probe_losses == finished(again)[-1].probe_losses
    finished(other)
    assert weights(first) == weights(again) != weights(other)


@pytest.mark.parametrize("epochs", [1, 2, 4, 5])
def test_going_on_ends_in_the_same_bytes(tmp_path: Path, epochs: int) -> None:
    """Stopped after any epoch: what came after the last checkpoint is done again, the same."""
    missing = {1: 5, 2: 3, 4: 1, 5: 0}[epochs]
    assert resumed_after(epochs, replace(SHORT, epochs=5), tmp_path) == missing


@each_variant
def test_every_sort_of_training_goes_on(tmp_path: Path, settings: TrainingSettings) -> None:
    assert resumed_after(2, replace(settings, epochs=3), tmp_path) == 1


def resumed_after(epochs: int, settings: TrainingSettings, folder: Path) -> int:
    """Compare an interrupted training with a whole one; how many epochs it still had to do."""
    whole = trainer(settings, dropout=0.2, folder=CheckpointFolder(folder / "a", "d"))
    reports = finished(whole)
    half = CheckpointFolder(folder / "b", "d")
    interrupted = trainer(settings, dropout=0.2, folder=half).run()
    for _ in range(epochs):
        next(interrupted)
    interrupted.close()
    resumed = trainer(settings, dropout=0.2, folder=half)
    later = finished(resumed)
    assert repr(later) == repr(reports[len(reports) - len(later) :])
    assert weights(resumed) == weights(whole) and resumed.history == whole.history
    assert (folder / "a" / "best.pt").read_bytes() == half.best.read_bytes()
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
    assert best["loss"] == training.best_loss == pytest.approx(min(means))
    model = supernet()
    model.load_state_dict(best["model"])
    losses = [evaluate(TASK, model, probe, DATA.valid).loss for probe in PROBES]
    assert sum(losses) / 4 == pytest.approx(min(means), rel=1e-6)


# -- stopping ---------------------------------------------------------------------------------


def test_a_stable_ranking_twice_in_a_row_ends_the_training() -> None:
    settings = replace(SHORT, epochs=8, stop_tau=-1.0)
    reports = finished(trainer(settings))
    assert [report.stopped for report in reports] == [False] * 5 + [True]
    assert len(finished(trainer(replace(settings, stop_tau=1.5)))) == 8


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
def test_a_loss_that_is_no_number_stops_with_step_and_network(value: float) -> None:
    sampler = Recorder(build_sampler(SPACE, SHORT, 0))
    training = trainer(data=poisoned(value), sampler=sampler)
    with pytest.raises(DivergedError) as caught:
        finished(training)
    orders = [batch.inputs.isfinite().all().item() for batch in one_epoch(poisoned(value))]
    assert f"update {orders.index(False)} " in str(caught.value)
    assert f"network {sampler.drawn[-1][0].id}" in str(caught.value)
    assert "lower the learning rate" in str(caught.value)


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


# -- one update, against its definition -------------------------------------------------------


Gradients = dict[str, Tensor | None]


def first_gradients(settings: TrainingSettings) -> Gradients:
    """What the optimiser is given in a first update, on a batch of the first 8 examples."""
    data = replace(DATA, train=Split(DATA.train.inputs[:8], DATA.train.labels[:8]))
    training = trainer(replace(settings, epochs=1, batch_size=8), data=data)
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
