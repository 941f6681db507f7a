"""How the layers of a checkpoint are dealt out to those that teach them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from nas.run import layer_distillation
from nas.run.layer_distillation import _checkpoints, parts_left
from nas.run.opened import OpenedRun
from supernet.training.checkpoint import save
from tests.support.pipeline_cases import tiny


@pytest.fixture
def run(tmp_path: Path) -> OpenedRun:
    return OpenedRun(tiny(tmp_path / "run"))


@pytest.fixture
def left(run: OpenedRun, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Says which parts there are of layers that have not learnt."""

    def parts(layers: list[int], width: int, begun: list[list[int]] | None = None) -> Any:
        monkeypatch.setattr(layer_distillation, "layers_left", lambda run: layers)
        for part in begun or []:
            _checkpoints(run, part).save_last({"update": 25})
        return parts_left(run, width)

    return parts


def test_layers_are_dealt_out_to_as_many_parts_as_there_are_workers(left: Any) -> None:
    assert left([0, 1, 2, 4, 5], 2) == [[0, 1, 2], [4, 5]]
    assert left([3, 7], 9) == [[3], [7]]
    assert left([], 2) == []


def test_layers_that_were_begun_together_stay_together(left: Any) -> None:
    layers = list(range(12))
    begun = [layers[:6], layers[6:]]
    assert left(layers, 1, begun) == left(layers, 2) == left(layers, 5) == begun
    assert left(layers[6:], 2) == begun[1:]  # the others have learnt all


def test_only_layers_that_were_not_begun_are_dealt_out(left: Any) -> None:
    assert left([0, 1, 3, 4, 5, 6], 3, [[3, 5]]) == [[3, 5], [0, 1], [4, 6]]
    assert left([0, 3, 5], 1) == [[3, 5], [0]]
    assert left([0, 1, 3], 2) == [[0, 1], [3]]  # layer 5 has learnt elsewhere


def test_a_checkpoint_of_another_search_is_none(run: OpenedRun, left: Any) -> None:
    save(_checkpoints(run, [0, 1]).last, {"update": 25, "digest": "of another search 0,1"})
    assert left([0, 1], 2) == [[0], [1]]
