"""The learning rate of every update, and how many there are."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from supernet.training.loop import learning_rate
from supernet.training_settings import Schedule, TrainingSettings, planned_updates

PLAIN = TrainingSettings(learning_rate=1.0, warmup_share=0.25)
ROOT = replace(PLAIN, schedule="inverse_sqrt")


def rates(settings: TrainingSettings, total: int = 40) -> list[float]:
    return [learning_rate(settings, update, total) for update in range(total)]


@pytest.mark.parametrize(
    ("changes", "num_batches", "updates"),
    [
        ({}, 10, 30),
        ({"accumulate": 4}, 10, 9),  # two groups of four and one of two, three times
        ({"accumulate": 100}, 10, 3),
        ({"max_updates": 7}, 10, 7),
        ({"max_updates": 31}, 10, 30),
        ({"max_updates": 8, "accumulate": 4}, 10, 8),
        ({"max_updates": 10, "accumulate": 4}, 10, 9),
        ({"epoch_updates": 4}, 10, 12),
        ({"epoch_updates": 40}, 10, 30),
        ({"epoch_updates": 2, "max_updates": 5}, 10, 5),
        ({}, 0, 0),
    ],
)
def test_updates_are_counted_to_the_earlier_end(
    changes: dict[str, int], num_batches: int, updates: int
) -> None:
    settings = replace(PLAIN, epochs=3, **changes)  # type: ignore[arg-type]
    assert planned_updates(settings, num_batches) == updates


def test_the_cosine_warms_up_and_falls_to_zero_behind_the_last_update() -> None:
    found = rates(PLAIN)
    assert found[:10] == pytest.approx([(update + 1) / 10 for update in range(10)])
    assert found[10:] == sorted(found[10:], reverse=True)
    assert found[10] == 1.0 and found[25] == pytest.approx(0.5) and 0 < found[-1] < 0.01
    assert learning_rate(PLAIN, 40, 40) == pytest.approx(0.0, abs=1e-12)


def test_the_inverse_square_root_is_that_of_the_updates_done() -> None:
    found = rates(ROOT, 160)
    assert found[:40] == pytest.approx([update / 40 for update in range(40)])
    assert found[40:] == pytest.approx([math.sqrt(40 / n) for n in range(40, 160)])
    assert learning_rate(ROOT, 160, 160) == pytest.approx(0.5)  # four times the warm-up


class Fairseqs:
    """`InverseSquareRootSchedule` of fairseq 0.12, without what is around it."""

    def __init__(self, warmup_init_lr: float, lr: float, warmup_updates: int) -> None:
        self.warmup_init_lr, self.warmup_updates = warmup_init_lr, warmup_updates
        self.lr_step = (lr - warmup_init_lr) / warmup_updates
        self.decay_factor = lr * warmup_updates**0.5

    def step_update(self, num_updates: int) -> float:
        if num_updates < self.warmup_updates:
            return self.warmup_init_lr + num_updates * self.lr_step
        return self.decay_factor * num_updates**-0.5


@pytest.mark.parametrize("initial", [0.0, 1e-7, 0.5])
@pytest.mark.parametrize(("total", "warmup"), [(160, 40), (7, 2), (20, 5)])
def test_the_inverse_square_root_is_fairseqs(initial: float, total: int, warmup: int) -> None:
    """Its trainer sets the rate of the updates done before the next one."""
    settings = replace(ROOT, initial_rate=initial)
    assert round(settings.warmup_share * total) == warmup
    theirs = Fairseqs(initial, 1.0, warmup)
    found = rates(settings, total)
    assert found == pytest.approx([theirs.step_update(done) for done in range(total)])


def test_the_inverse_square_root_is_vaswanis_up_to_the_peak() -> None:
    """min(s^-1/2, s w^-3/2) with step s counted from 0, at its peak w^-1/2."""
    settings = replace(ROOT, learning_rate=40**-0.5)
    steps = range(1, 160)
    assert rates(settings, 160)[1:] == pytest.approx([min(s**-0.5, s * 40**-1.5) for s in steps])


@pytest.mark.parametrize(("schedule", "ahead"), [("cosine", 1), ("inverse_sqrt", 0)])
def test_the_warm_up_begins_where_it_is_told(schedule: Schedule, ahead: int) -> None:
    settings = replace(PLAIN, schedule=schedule, initial_rate=0.5)
    found = rates(settings)
    assert found[:10] == pytest.approx([0.5 + 0.05 * (update + ahead) for update in range(10)])
    assert found[10:] == rates(replace(settings, initial_rate=0.0))[10:]


@pytest.mark.parametrize("schedule", ["cosine", "inverse_sqrt"])
@pytest.mark.parametrize("share", [0.0, 0.001, 0.5, 1.0])
@pytest.mark.parametrize("total", [1, 2, 3, 40])
def test_rates_lie_between_zero_and_the_peak(schedule: Schedule, share: float, total: int) -> None:
    settings = replace(PLAIN, schedule=schedule, warmup_share=share)
    found = rates(settings, total)
    warmup = max(1, round(share * total))
    assert all(0.0 < rate <= 1.0 for rate in found[1:]) and 0.0 <= found[0] <= 1.0
    assert learning_rate(settings, warmup - (schedule == "cosine"), total) == 1.0


@pytest.mark.parametrize("settings", [PLAIN, ROOT], ids=["cosine", "inverse_sqrt"])
def test_updates_beyond_the_plan_do_not_raise_the_rate(settings: TrainingSettings) -> None:
    """Later passes may have a few batches more than the first, which the plan counts."""
    late = [learning_rate(settings, update, 40) for update in (39, 40, 41, 60)]
    assert late == sorted(late, reverse=True) and late[-1] >= 0.0
