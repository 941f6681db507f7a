"""Threads that train together train what one would have trained."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Tensor

from supernet.slices import Slices
from supernet.training.gradients import add_gradients
from supernet.training.lanes import Lanes
from supernet.training.parallel import Group, Share
from supernet.training.sampling import build_sampler
from supernet.training_settings import TrainingSettings
from tests.support.parallel_cases import SHORT
from tests.support.task_cases import SPACES, each_kind, supernet_of, task_of

Gradients = list[Tensor | None]


def lanes_of(threads: int | None, **settings: object) -> Lanes:
    model = supernet_of(SPACES["classification"])
    numbers = TrainingSettings(threads=threads, **settings)  # type: ignore[arg-type]
    return Lanes(Slices(model), numbers, "cpu")


def updates(
    kind: str, settings: TrainingSettings, rows: int | None = None
) -> tuple[list[Gradients], list[list[float]]]:
    """The gradients of some updates, and their networks' losses."""
    model, task = supernet_of(SPACES[kind]), task_of(kind)
    sampler, lanes = build_sampler(SPACES[kind], settings, 0), Lanes(Slices(model), settings, "cpu")
    batches = list(task.batches(settings, seed=0, epoch=0, device="cpu"))[:2]
    gradients, losses = list[Gradients](), list[list[float]]()
    for batch in batches:
        given = Group().shares([batch.part(slice(0, rows))], lanes.count)
        add = partial(add_gradients, task, model, networks=sampler.draw(), settings=settings)
        model.zero_grad(set_to_none=True)
        lanes.begin()
        found = lanes.sum(given, lambda share, own, add=add: add(share, device="cpu", slices=own))
        losses.append(found.tolist())
        gradients.append([None if p.grad is None else p.grad.clone() for p in model.parameters()])
        with torch.no_grad():  # as an optimiser does: what was cast is renewed
            for parameter in model.parameters():
                if parameter.grad is not None:
                    parameter.sub_(0.02 * parameter.grad)
    return gradients, losses


def agree(first: Gradients, second: Gradients, how: Callable[[Tensor, Tensor], bool]) -> bool:
    pairs = list(zip(first, second, strict=True))
    return all(a is b if a is None or b is None else how(a, b) for a, b in pairs)


def near(one: Tensor, other: Tensor) -> bool:
    return torch.allclose(one, other, rtol=1e-3, atol=1e-6)


@each_kind
@pytest.mark.parametrize(("threads", "rows"), [(2, None), (6, None), (2, 1), (2, 3)])
def test_lanes_have_the_gradients_of_one(kind: str, threads: int, rows: int | None) -> None:
    alone, losses = updates(kind, SHORT, rows)
    together, sums = updates(kind, replace(SHORT, threads=threads), rows)
    assert all(agree(*pair, near) for pair in zip(alone, together, strict=True))
    assert sums == [pytest.approx(one, rel=1e-4) for one in losses]


@each_kind
def test_lanes_find_the_same_to_the_last_bit_each_time(kind: str) -> None:
    settings = replace(SHORT, threads=2, sampling="sandwich", distillation=0.5)
    first, second = updates(kind, settings), updates(kind, settings)
    assert first[1] == second[1]
    assert all(agree(*pair, torch.equal) for pair in zip(first[0], second[0], strict=True))


@each_kind
def test_lanes_share_what_is_cast(kind: str) -> None:
    """Both are as far from products in fp32, and nearer to each other, in the next update too."""
    rough = replace(SHORT, bfloat16=True)
    exact, alone, together = (
        updates(kind, one)[0] for one in (SHORT, rough, replace(rough, threads=2))
    )
    assert apart(alone[0], together[0]) < 0.01 < apart(alone[0], exact[0])
    assert apart(alone[1], together[1]) < 0.75 * apart(alone[1], exact[1])


def apart(first: Gradients, second: Gradients) -> float:
    """Length of the difference of two gradients, in lengths of the second."""
    both = [(a, b) for a, b in zip(first, second, strict=True) if a is not None and b is not None]
    away, whole = (torch.cat([one[n].flatten() for one in both]) for n in (0, 1))
    return float((away - whole).norm() / whole.norm())


@pytest.mark.parametrize("kind", ["translation", "language_modelling"])
def test_lanes_tell_logits_in_chunks(kind: str) -> None:
    settings = replace(SHORT, loss_chunk=7)
    alone, together = (updates(kind, replace(settings, threads=n))[0] for n in (1, 2))
    assert all(agree(*pair, near) for pair in zip(alone, together, strict=True))


def test_there_is_one_lane_where_nobody_asks_for_more_and_where_numbers_are_drawn() -> None:
    assert [lanes_of(2).count, lanes_of(64).count] == [2, 2]
    assert [lanes_of(None).count, lanes_of(1).count, lanes_of(3).count] == [1, 1, 1]
    assert lanes_of(2, dropout=0.1).count == 1
    slices = Slices(supernet_of(SPACES["classification"]))
    assert Lanes(slices, TrainingSettings(threads=2), "cuda").count == 1


@pytest.mark.parametrize("failing", [0, 1])
def test_a_lane_that_fails_is_told_once_the_other_has_ended(failing: int) -> None:
    lanes, before = lanes_of(4), torch.get_num_threads()
    ended, both = list[int](), threading.Barrier(2)

    def compute(share: Share, slices: Slices) -> Tensor:
        both.wait()
        if share.batch == failing:
            raise ZeroDivisionError(failing)
        ended.append(share.batch)
        return torch.tensor([torch.get_num_threads()])

    shares = [Share(number, 1 / 2) for number in range(2)]
    with pytest.raises(ZeroDivisionError, match=str(failing)):
        lanes.sum(shares, compute)
    assert ended == [1 - failing]
    failing = -1
    assert lanes.sum(shares, compute).item() == 2 + 2
    assert torch.get_num_threads() == before
