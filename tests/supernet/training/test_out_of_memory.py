"""An update that does not fit into a graphics card is done in parts, and is the same update."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from search_spaces.errors import TooLargeError
from search_spaces.wording import of_commands
from supernet.training import card_memory
from supernet.training.card_memory import Need, example_ways, generator_states, put_back
from supernet.training.checkpoint import CheckpointFolder, load, save
from supernet.training.loop import Trainer
from supernet.training_costs import TrainingCosts
from tests.support import training_cases
from tests.support.parallel_cases import SHORT, STEPWISE, stopped_after, trainer, weight_sum
from tests.support.task_cases import TEXTS, each_kind, task_of
from tests.support.tight_memory import tighten

COSTS = TrainingCosts(10**9, 20 * 10**9, 90 * 10**9, 10**9, 4096, 1e15, 0)
PLAIN = replace(SHORT, dropout=0.0)


def reports(training: Trainer) -> list[Any]:
    return list(training.run())


@each_kind
def test_an_update_in_parts_is_the_update(kind: str) -> None:
    whole, cut = trainer(kind, PLAIN), trainer(kind, PLAIN)
    refused = tighten(cut, 3)
    first, second = reports(whole), reports(cut)
    assert refused and max(refused) > 3 and cut._parts >= 4
    assert [one.train_loss for one in second] == pytest.approx(
        [one.train_loss for one in first], rel=1e-4
    )
    for name, tensor in whole.model.state_dict().items():
        found = cut.model.state_dict()[name]
        torch.testing.assert_close(found, tensor, rtol=1e-2, atol=1e-3)


@each_kind
@pytest.mark.parametrize("chunk", [0, 16])
def test_nothing_is_left_of_what_did_not_fit(kind: str, chunk: int) -> None:
    """The networks drawn, the gradients and dropout are those of one that was cut beforehand."""
    if chunk and kind not in TEXTS:
        pytest.skip("it writes no tokens")
    settings = replace(STEPWISE, loss_chunk=chunk)
    surprised, warned = trainer(kind, settings), trainer(kind, settings)
    refused = tighten(surprised, 5)
    told = reports(surprised)
    warned._parts = surprised._parts
    assert refused and surprised._parts > 1
    same = reports(warned)
    assert [one.train_loss for one in told] == [one.train_loss for one in same]
    assert weight_sum(surprised) == weight_sum(warned)
    assert surprised._updates == warned._updates


def test_dropout_that_goes_on_instead_would_be_another_training(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("supernet.training.loop.put_back", lambda states, device: None)
    surprised, warned = trainer("translation", STEPWISE), trainer("translation", STEPWISE)
    tighten(surprised, 5)
    reports(surprised)
    warned._parts = surprised._parts
    reports(warned)
    assert weight_sum(surprised) != weight_sum(warned)


def test_it_is_told_once(tmp_path: Path) -> None:
    training = trainer("classification", folder=CheckpointFolder(tmp_path, "d"))
    tighten(training, 4)
    assert [one.parts for one in reports(training)] == [4, 0]
    assert [one.parts for one in reports(trainer("classification"))] == [0, 0]


@pytest.mark.parametrize("within", [False, True])
def test_who_goes_on_does_not_run_out_again(tmp_path: Path, within: bool) -> None:
    settings = replace(STEPWISE, accumulate=1) if within else replace(SHORT, epochs=3)
    whole = trainer("classification", settings, folder=CheckpointFolder(tmp_path / "a", "d"))
    tighten(whole, 4)
    told = [one.parts for one in reports(whole)]
    folder = CheckpointFolder(tmp_path / "b", "d")
    half = trainer("classification", settings, folder=folder)
    tighten(half, 4)
    stopped_after(half, 1)
    assert load(folder.last)["parts"] == 4
    later = trainer("classification", settings, folder=folder)
    refused = tighten(later, 4)
    assert [one.parts for one in reports(later)] == (told if within else told[1:])
    assert not refused and weight_sum(later) == weight_sum(whole)


def test_checkpoints_of_older_versions_are_whole(tmp_path: Path) -> None:
    settings, folder = replace(SHORT, epochs=3), CheckpointFolder(tmp_path, "d")
    stopped_after(trainer("classification", settings, folder=folder), 1)
    state = load(folder.last)
    del state["parts"], state["parts_told"]
    save(folder.last, state)
    later, whole = trainer("classification", settings, folder=folder), trainer("classification")
    assert len(reports(later)) == 2 and later._parts == whole._parts == 1


# -- what does not fit at all -----------------------------------------------------------------


def refusal(training: Trainer) -> str:
    with pytest.raises(TooLargeError) as caught:
        reports(training)
    return of_commands(caught.value.marked)


@each_kind
def test_a_single_example_that_does_not_fit_is_a_sentence(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(card_memory, "card_bytes", lambda device: 80 * 10**9)
    training = trainer(kind, need=Need("supernet", lambda: COSTS))
    refused = tighten(training, 0)
    assert refusal(training) == (
        "the training does not fit into the memory of the graphics card, 80.0 GB: there is no room "
        "for a single example of a batch; by arithmetic it needs about 111.0 GB with whole "
        "batches, 20.0 GB of them for weights, gradients and moments; ask for less "
        f"({WAYS[kind]}), for smaller networks or a larger card"
    )
    assert refused[-1] == 1 and len(refused) < 12 and training._updates == 0


# A batch of fewer examples would be done in the same parts.
WAYS = {
    "classification": "--set supernet.recompute=true",
    "translation": "--set supernet.recompute=true or --set supernet.loss_chunk=64",
    "language_modelling": "--set supernet.recompute=true or --set supernet.loss_chunk=64 or "
    "--set supernet.segment_length=N",
}


@pytest.mark.parametrize(
    ("kind", "less"),
    [
        ("language_modelling", "less (--set segment_length=N), for smaller networks"),
        ("translation", "smaller networks"),
    ],
)
def test_what_is_set_already_is_not_advised(kind: str, less: str) -> None:
    training = trainer(kind, replace(SHORT, recompute=True, loss_chunk=64))
    tighten(training, 0)
    text = refusal(training)
    assert text.endswith(f"; ask for {less} or a larger card")
    assert "recompute" not in text and "arithmetic" not in text and "GB" not in text


def test_shorter_segments_are_not_advised_where_lines_stay_whole() -> None:
    task: Any = task_of("language_modelling")
    task.train = replace(task.train, alone=True)
    assert example_ways(task, SHORT) == ["recompute=true", "loss_chunk=64"]


@pytest.mark.parametrize(
    ("ema_decay", "less"),
    [(0.0, "smaller networks"), (0.9, "less (--set ema_decay=0), for smaller networks")],
)
def test_smaller_parts_do_not_help_the_optimiser(ema_decay: float, less: str) -> None:
    training, tries = trainer("classification", replace(SHORT, ema_decay=ema_decay)), 0

    def step() -> None:
        nonlocal tries
        tries += 1
        raise torch.cuda.OutOfMemoryError("8.00 GiB are wanted")

    training._optimizer.step = step  # type: ignore[assignment]
    wanted = f"there is no room for the step of the optimiser; ask for {less} or a larger card"
    assert refusal(training).endswith(wanted)
    assert tries == 1 and training._parts == 1


def test_other_errors_stay_what_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    training = trainer("classification")

    def wrong(*_: object) -> None:
        raise RuntimeError("shapes differ")

    monkeypatch.setattr(training._task, "predict", wrong)
    with pytest.raises(RuntimeError, match="shapes differ"):
        reports(training)
    assert training._parts == 1


# -- on a card --------------------------------------------------------------------------------


@contextmanager
def most(limit_bytes: float) -> Iterator[None]:
    """In it torch may hold so much of the card."""
    gc.collect()
    torch.cuda.empty_cache()
    card = card_memory.card_bytes("cuda")
    assert card is not None
    torch.cuda.set_per_process_memory_fraction(limit_bytes / card)
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


@pytest.mark.gpu
def test_a_training_is_fitted_into_a_part_of_a_card() -> None:
    rows = 12_288  # times heads, below the 65,535 blocks that a kernel of attention takes
    data = replace(training_cases.DATA, train=training_cases.striped(rows, 0))
    settings = replace(training_cases.SHORT, epochs=2, batch_size=rows)

    def training() -> Trainer:
        return training_cases.trainer(settings, data=data, device="cuda")

    gc.collect()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    whole = [one.train_loss for one in reports(training())]
    needed = torch.cuda.max_memory_allocated() - before
    assert needed > 200e6  # else it is lost among what the allocator rounds
    with most(before + 0.6 * needed):
        cut = training()
        told = reports(cut)
        assert torch.cuda.memory_reserved() <= before + 0.6 * needed
    assert [one.parts for one in told] == [cut._parts, 0] and cut._parts in (2, 4, 8)
    assert [one.train_loss for one in told] == pytest.approx(whole, rel=0.02)


@pytest.mark.gpu
def test_dropout_on_cuda_draws_again() -> None:
    ones = torch.ones(1000, device="cuda")
    states = generator_states("cuda")
    first, second = F.dropout(ones), F.dropout(ones)
    put_back(states, "cuda")
    assert torch.equal(F.dropout(ones), first) and not torch.equal(first, second)
