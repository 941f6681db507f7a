"""What trainings of a run need of a graphics card, told before and while they run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nas.run import training_memory
from nas.run.events import Note
from nas.run.folder import RunFolder
from nas.run.training_memory import (
    network_need,
    parts_text,
    shortage_text,
    supernet_need,
    supernet_text,
)
from search_spaces.costs import params
from search_spaces.loading import load_space
from search_spaces.variation import largest
from supernet.building import supernet_params
from supernet.training.loop import Trainer
from supernet.training_costs import training_costs
from supernet.training_settings import TrainingSettings
from tests.support.pipeline_cases import few_rankers, logged, spec_of, work
from tests.support.tight_memory import tighten

ROWS = 100  # of 288


@pytest.mark.parametrize("name", ["digits", "lm-small", "vit-small", "multi30k"])
def test_the_supernets_need_is_told_beside_what_there_is(name: str) -> None:
    space, settings = load_space(name), TrainingSettings()
    costs = training_costs(space, supernet_params(space), settings)
    needed = f"training the supernet needs about {costs.memory_bytes / 1e9:.1f}"
    assert supernet_text(space, settings).startswith(f"{needed} GB on a GPU")
    fits = supernet_text(space, settings, 10**13)
    assert fits.startswith(f"{needed} of the 10000.0 GB of this GPU") and "parts" not in fits
    assert "parts" in supernet_text(space, settings, costs.memory_bytes - 1)


def test_a_network_that_does_not_fit_is_told_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = spec_of(tmp_path / "run")
    (network,) = spec.space.decode(largest(spec.space))
    settings = spec.budget.retrain
    needed = network_need(spec, network, settings).costs().memory_bytes
    assert shortage_text(spec, network, settings) is None  # a CPU
    for card in (needed, needed - 1):
        monkeypatch.setattr(training_memory, "card_bytes", lambda device, card=card: card)
        text = shortage_text(spec, network, settings)
        assert (text is None) == (card == needed)
    assert text is not None and text.startswith(f"training {network.id} needs about 0.0 of the")


def test_the_checkpoint_that_teaches_is_told_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = spec_of(tmp_path / "run")
    space, settings = spec.space, replace(spec.budget.retrain, distillation=0.9)
    (network,) = space.decode(largest(space))
    teacher: Any = SimpleNamespace(architecture=network)
    count = params(space.model, space.task, network)
    for told in (
        lambda *taught: supernet_need(space, settings, 1, *taught),
        lambda *taught: network_need(spec, network, settings, *taught),
    ):
        without, beside = (told(*taught).costs() for taught in ((), (teacher,)))
        assert beside.memory_bytes == without.memory_bytes + 4 * count
    monkeypatch.setattr(training_memory, "card_bytes", lambda device: without.memory_bytes)
    assert shortage_text(spec, network, settings) is None
    assert shortage_text(spec, network, settings, teacher) is not None
    large = load_space("lm-small")
    (teacher.architecture,) = large.decode(largest(large))
    assert supernet_text(large, settings, None, teacher) != supernet_text(large, settings)


def test_each_training_that_is_done_in_parts_says_so_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where candidates are trained in pieces, one after the other."""
    run = Trainer.run

    def tight(trainer: Trainer) -> Any:
        tighten(trainer, ROWS)
        return run(trainer)

    monkeypatch.setattr(Trainer, "run", tight)
    spec = spec_of(tmp_path / "spec", numbers={"retrain.epochs": "10"}, retrain=3)
    folder = RunFolder.create(tmp_path / "run", spec)
    with few_rankers():
        events = work(folder)
    text = parts_text(4)
    told = [one.stage for one in events if isinstance(one, Note) and one.message == text]
    assert told == ["supernet", "halve", "halve", "halve"]
    assert told == [one["stage"] for one in logged(folder) if one.get("message") == text]
