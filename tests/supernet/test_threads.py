"""Threads of the CPU in a training, and what is left of them behind it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from search_spaces.architecture import Architecture
from supernet.tasks.base import Evaluation
from supernet.tasks.evaluation import evaluate
from supernet.threads import cpu_threads, each_with
from supernet.training import loop
from supernet.training.loop import Trainer
from supernet.training.sampling import SingleNetwork
from supernet.training_settings import TrainingSettings
from tests.support.task_cases import SPACES, networks_of, supernet_of, task_of


def test_they_are_as_before_behind_it_and_untouched_without_a_number() -> None:
    before = torch.get_num_threads()
    with cpu_threads(before + 1):
        assert torch.get_num_threads() == before + 1
        with cpu_threads(None):
            assert torch.get_num_threads() == before + 1
    assert torch.get_num_threads() == before


@pytest.mark.parametrize("more", [0, 1])
def test_items_are_worked_out_with_them_and_read_with_those_of_before(more: int) -> None:
    before = torch.get_num_threads()

    def work() -> Iterator[int]:
        while True:
            yield torch.get_num_threads()

    items = each_with(before + more if more else None, work())
    for seen, _ in zip(items, range(2), strict=False):
        assert (seen, torch.get_num_threads()) == (before + more, before)
    assert list(each_with(before + 1, [1, 2])) == [1, 2]
    with pytest.raises(ZeroDivisionError):
        list(each_with(before + 1, (1 // n for n in (1, 0))))
    assert torch.get_num_threads() == before


def test_updates_and_checks_have_those_of_the_settings_and_what_reads_them_those_of_the_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[tuple[str, int]] = []

    def checked(*given: Any, **options: Any) -> Evaluation:
        seen.append(("check", torch.get_num_threads()))
        return evaluate(*given, **options)

    monkeypatch.setattr(loop, "evaluate", checked)

    class Watched(SingleNetwork):
        def draw(self) -> list[Architecture]:
            seen.append(("update", torch.get_num_threads()))
            return super().draw()

    (network,), before = networks_of(SPACES["classification"], 1), torch.get_num_threads()
    settings = TrainingSettings(epochs=1, epoch_updates=1, batch_size=8, threads=before + 1)
    trainer = Trainer(
        supernet_of(SPACES["classification"]),
        Watched(network),
        [network],
        task_of("classification"),
        settings,
        seed=0,
        device="cpu",
    )
    for _ in trainer.run():
        seen.append(("report", torch.get_num_threads()))
    assert seen == [("update", before + 1), ("check", before + 1), ("report", before)]
