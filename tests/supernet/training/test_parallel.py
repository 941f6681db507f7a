"""Several processes train what one would have trained."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from supernet.slices import Slices
from supernet.training.checkpoint import CheckpointFolder, load
from supernet.training.gradients import add_gradients
from supernet.training.parallel import Group, Share
from supernet.training.sampling import build_sampler
from supernet.training_settings import TrainingSettings
from tests.support.parallel_cases import (
    SHORT,
    STEPWISE,
    run_group,
    stopped_after,
    trainer,
    weight_sum,
)
from tests.support.task_cases import KINDS, SPACES, each_kind, supernet_of, task_of


class Rank(Group):
    """One of several, whose fellows are asked in turn."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size


def batches_of(kind: str, count: int) -> list[Any]:
    return list(task_of(kind).batches(SHORT, seed=0, epoch=0, device="cpu"))[:count]


def gradients(
    kind: str, shares: list[Share], settings: TrainingSettings = SHORT
) -> tuple[list[Tensor | None], list[float]]:
    """Of all shares together, and the networks' losses."""
    model, task = supernet_of(SPACES[kind]), task_of(kind)
    networks, total = build_sampler(SPACES[kind], settings, 0).draw(), [0.0] * 3
    for share in shares:
        found = add_gradients(
            task, model, share, networks, settings, device="cpu", slices=Slices(model)
        )
        total = [a + b for a, b in zip(total, found.tolist(), strict=True)]
    return [parameter.grad for parameter in model.parameters()], total


def same(first: list[Tensor | None], second: list[Tensor | None]) -> bool:
    return all(
        (a is None) == (b is None)
        and (a is None or b is None or torch.allclose(a, b, rtol=1e-4, atol=1e-6))
        for a, b in zip(first, second, strict=True)
    )


# -- shares, without processes ----------------------------------------------------------------


@each_kind
@pytest.mark.parametrize(
    ("size", "count", "parts"), [(2, 3, 1), (3, 2, 1), (40, 1, 1), (1, 2, 2), (2, 3, 3), (1, 1, 64)]
)
def test_the_shares_of_all_ranks_make_the_update(
    kind: str, size: int, count: int, parts: int
) -> None:
    batches = batches_of(kind, count)
    shares = [share for rank in range(size) for share in Rank(rank, size).shares(batches, parts)]
    alone, losses = gradients(kind, Group().shares(batches))
    together, sums = gradients(kind, shares)
    assert same(alone, together) and sums == pytest.approx(losses, rel=1e-5)


@pytest.mark.parametrize("kind", ["translation", "language_modelling"])
def test_shares_without_their_weights_are_another_update(kind: str) -> None:
    """Rows have different numbers of tokens: a plain mean over ranks would be wrong."""
    batches = batches_of(kind, 1)
    shares = [share for rank in range(3) for share in Rank(rank, 3).shares(batches)]
    plain = [replace(share, weight=1 / 3) for share in shares]
    assert len({share.weight for share in shares}) > 1
    assert not same(gradients(kind, shares)[0], gradients(kind, plain)[0])


@each_kind
def test_every_rank_has_gradients_of_the_same_parameters(kind: str) -> None:
    (batch,) = batches_of(kind, 1)
    size = len(batch) + 2
    found = [gradients(kind, Rank(rank, size).shares([batch]))[0] for rank in (0, size - 1)]
    there = [[gradient is not None for gradient in one] for one in found]
    assert there[0] == there[1]
    assert all(g is None or not g.any() for g in found[1])


def test_batches_that_go_round_are_not_cut() -> None:
    batches = batches_of("translation", 3)
    shares = [Rank(rank, 2).shares(batches) for rank in range(2)]
    assert [one[0].batch for one in shares] == batches[:2]
    total = sum(batch.num_labels for batch in batches)
    wanted = [batch.num_labels / total for batch in batches]
    assert [one[0].weight for one in shares] == wanted[:2]
    assert sum(len(one[1].batch) for one in shares) == len(batches[2])
    assert sum(one[1].weight for one in shares) == pytest.approx(wanted[2])


def test_a_share_has_no_more_parts_than_rows() -> None:
    batches = batches_of("translation", 2)
    rows = [len(batch) for batch in batches]
    for parts in (1, 2, max(rows) + 1):
        found = Group().shares(batches, parts)
        assert len(found) == sum(min(parts, count) for count in rows)
        assert sum(len(one.batch) for one in found) == sum(rows)
        assert sum(one.weight for one in found) == pytest.approx(1.0)
    assert [one.weight for one in Rank(9_999, 10_000).shares(batches[:1], 4)] == [0.0]


@pytest.mark.parametrize("kind", ["translation", "language_modelling"])
@pytest.mark.parametrize("size", [1, 2])
def test_accumulated_batches_are_one_large_batch(kind: str, size: int) -> None:
    """A label counts the same wherever it stands: a batch with fewer of them counts less."""
    (batch,) = batches_of(kind, 1)
    rows = len(batch)
    uneven = [batch.part(slice(0, 1)), batch.part(slice(1, rows))]
    shares = [share for rank in range(size) for share in Rank(rank, size).shares(uneven)]
    whole, loss = gradients(kind, Group().shares([batch]))
    found, parts = gradients(kind, shares)
    assert same(found, whole) and parts == pytest.approx(loss, rel=1e-5)
    by_batch = [Share(one, 1 / 2) for one in uneven]
    assert not same(gradients(kind, by_batch)[0], whole)


@each_kind
def test_a_part_of_a_batch_keeps_rows_and_labels_together(kind: str) -> None:
    (batch,) = batches_of(kind, 1)
    model, task = supernet_of(SPACES[kind]).eval(), task_of(kind)
    (network, *_) = build_sampler(SPACES[kind], SHORT, 0).draw()
    whole = task.predict(model, batch, network)
    part = batch.part(slice(1, None, 2))
    found = task.predict(model, part, network)
    positions = len(whole.labels) // len(batch)
    wanted = whole.labels.view(len(batch), positions)[1::2].flatten()
    assert torch.equal(found.labels, wanted) and part.num_labels == int((wanted >= 0).sum())
    logits = whole.logits.view(len(batch), positions, -1)[1::2].flatten(0, 1)
    torch.testing.assert_close(found.logits, logits, rtol=1e-4, atol=1e-5)


# -- checkpoints within an epoch --------------------------------------------------------------


@pytest.mark.parametrize(("kind", "saves"), list(zip(KINDS, (1, 2, 3), strict=True)))
def test_going_on_within_an_epoch_ends_in_the_same_bits(
    tmp_path: Path, kind: str, saves: int
) -> None:
    settings = replace(STEPWISE, accumulate=1, epochs=3)
    whole = trainer(kind, settings, folder=CheckpointFolder(tmp_path / "a", "d"))
    reports = list(whole.run())
    half = CheckpointFolder(tmp_path / "b", "d")
    stopped_after(trainer(kind, settings, folder=half), saves)
    assert load(half.last)["within"] == saves
    resumed = trainer(kind, settings, folder=half)
    assert repr(list(resumed.run())) == repr(reports)
    assert weight_sum(resumed) == weight_sum(whole)
    assert half.best.read_bytes() == (tmp_path / "a" / "best.pt").read_bytes()


def test_dropout_draws_anew_after_a_checkpoint_within_an_epoch() -> None:
    without, often = (replace(STEPWISE, checkpoint_updates=n) for n in (0, 1))
    first, second = trainer("translation", without), trainer("translation", often)
    assert list(first.run()) != list(second.run())
    none = [replace(settings, dropout=0.0) for settings in (without, often)]
    plain = [repr(list(trainer("translation", settings).run())) for settings in none]
    assert plain[0] == plain[1]


# -- two processes ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("group")
    found = run_group(2, folder)
    return [{**one, "folder": folder} for one in found]


@each_kind
def test_two_ranks_with_half_the_batch_equal_one(group: list[dict[str, Any]], kind: str) -> None:
    alone = trainer(kind)
    losses = [report.train_loss for report in alone.run()]
    for rank in group:
        assert rank[kind]["train"] == pytest.approx(losses, rel=1e-4)
        assert rank[kind]["probes"] == pytest.approx(alone._losses, rel=1e-3)
    assert group[0][kind]["sum"] == group[1][kind]["sum"]
    kept = load(group[0]["folder"] / kind / "last.pt")
    assert kept["history"] == group[0][kind]["history"]
    for name, tensor in alone.model.state_dict().items():
        torch.testing.assert_close(kept["weights"][name], tensor, rtol=1e-2, atol=1e-3)


def test_a_group_goes_on_from_a_checkpoint_to_the_same_bits(group: list[dict[str, Any]]) -> None:
    for rank in group:
        assert rank["resumed"][0] == rank["resumed"][1]
    alone = trainer("translation", STEPWISE)
    list(alone.run())
    assert weight_sum(alone) != group[0]["resumed"][0]  # every rank has dropout of its own


def test_what_one_rank_sees_ends_them_all_in_the_same_words(group: list[dict[str, Any]]) -> None:
    assert group[0]["diverged"] == group[1]["diverged"]
    assert "DivergedError: the loss became nan in update 0" in group[0]["diverged"]
    assert group[0]["apart"] == group[1]["apart"]
    assert "UsageError" in group[0]["apart"] and "put the run folder" in group[0]["apart"]


def test_what_one_rank_cannot_hold_it_does_in_parts(group: list[dict[str, Any]]) -> None:
    """The other one does its share as a whole in the first epoch, and then as many parts."""
    alone = trainer("translation")
    losses = [report.train_loss for report in alone.run()]
    for rank in group:
        assert rank["tight"]["train"] == pytest.approx(losses, rel=1e-4)
        assert rank["tight"]["told"] == [rank["tight"]["parts"], 0]
    assert group[0]["tight"] | {"refused": 0} == group[1]["tight"] | {"refused": 0}
    assert group[0]["tight"]["refused"] == 0 < group[1]["tight"]["refused"]


def test_the_ranks_know_themselves(group: list[dict[str, Any]]) -> None:
    assert [(one["rank"], one["size"]) for one in group] == [(0, 2), (1, 2)]
    assert (Group().rank, Group().size, Group().sum(torch.ones(1)), Group().agrees(3)) == (
        0,
        1,
        [1.0],
        True,
    )
