"""Threads of the CPU in a training, and what is left of them behind it."""

from __future__ import annotations

import torch

from search_spaces.architecture import Architecture
from supernet.threads import cpu_threads
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


def test_updates_have_those_of_the_settings_and_checks_those_of_the_run() -> None:
    seen: list[tuple[str, int]] = []

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
        seen.append(("check", torch.get_num_threads()))
    assert seen == [("update", before + 1), ("check", before)]
