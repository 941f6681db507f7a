"""Ray Train trains what a group of plain processes trains, whoever is killed meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from nas.executors.base import ExecutorSettings
from nas.executors.board import read_workers
from nas.executors.opening import open_executor
from nas.request.presets import budget_for
from nas.run.events import Note
from nas.run.folder import RunFolder
from nas.run.supernet_training import supernet_trainer
from nas.stages import declare
from nas.stages.base import Run
from search_spaces.errors import DataError
from search_spaces.loading import parse_space
from supernet.training.checkpoint import load
from supernet.training.loop import EpochReport
from tests.support.parallel_cases import train_run
from tests.support.pipeline_cases import NUMBERS, TINY, tiny
from tests.support.ray_cases import deadly_box

pytestmark = pytest.mark.ray
EPOCHS = 4


def declared(path: Path, **numbers: str) -> RunFolder:
    given = NUMBERS | {"supernet.epochs": str(EPOCHS), "supernet.dropout": "0.1"} | numbers
    folder = tiny(path, budget=budget_for(parse_space(TINY, "space"), "quick", given))
    list(declare.work(Run(folder)))
    return folder


def trained(folder: RunFolder, workers: int) -> Iterator[Any]:
    with open_executor(ExecutorSettings("ray", train_workers=workers), folder) as executor:
        yield from executor.train(Run(folder, executor))


def weights(folder: RunFolder) -> dict[str, Any]:
    found: dict[str, Any] = load(folder.path / "supernet" / "last.pt")
    return found


def same(first: RunFolder, second: RunFolder) -> bool:
    one, two = weights(first), weights(second)
    equal = [torch.equal(one["weights"][name], two["weights"][name]) for name in one["weights"]]
    return all(equal) and one["history"] == two["history"]


def here(twin: RunFolder, store: Path) -> None:
    list(supernet_trainer(Run(twin)).run())


def by_two(twin: RunFolder, store: Path) -> None:
    train_run(2, twin.path, store)


@pytest.mark.parametrize(
    ("workers", "train"), [(1, here), pytest.param(2, by_two, marks=pytest.mark.slow)]
)
def test_a_group_that_loses_a_rank_ends_in_the_weights_of_one_that_does_not(
    tmp_path: Path,
    ray_session: None,
    monkeypatch: pytest.MonkeyPatch,
    workers: int,
    train: Callable[[RunFolder, Path], None],
) -> None:
    twin, folder = declared(tmp_path / "twin"), declared(tmp_path / "run")
    train(twin, tmp_path / "store")
    monkeypatch.setattr("nas.executors.ray_mail._Box", deadly_box())
    notes: list[Note] = []
    reports: list[EpochReport] = []
    for item in trained(folder, workers):
        (notes if isinstance(item, Note) else reports).append(item)
        if len(reports) == 1 and len(notes) == 1:
            assert [one.doing for one in read_workers(folder.path)] == ["training"] * workers
    assert same(twin, folder) and reports[-1].epoch == EPOCHS
    assert "was lost" in notes[1].message
    assert ("1 process trains", "2 processes train")[workers - 1] in notes[2].message
    assert not (folder.path / "supernet" / "ray").exists()


@pytest.mark.slow
def test_one_worker_trains_to_the_bits_of_this_process(tmp_path: Path, ray_session: None) -> None:
    here, there = declared(tmp_path / "here"), declared(tmp_path / "there")
    list(supernet_trainer(Run(here)).run())
    list(trained(there, 1))
    assert same(here, there)
    list(trained(declared(tmp_path / "two"), 2))
    assert not same(here, RunFolder.open(tmp_path / "two"))


@pytest.mark.slow
def test_an_error_that_would_come_again_is_not_tried_again(
    tmp_path: Path, ray_session: None
) -> None:
    folder, notes = declared(tmp_path / "run"), list[Note]()
    folder.write_json("data.json", folder.read_json("data.json") | {"digest": "another"})
    with pytest.raises(DataError, match="has changed since this run began"):
        notes.extend(item for item in trained(folder, 2) if isinstance(item, Note))
    assert not any("was lost" in note.message for note in notes)
    assert not (folder.path / "supernet" / "last.pt").exists()
