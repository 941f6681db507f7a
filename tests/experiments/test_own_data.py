"""The study of searches of own data: what is compared, and what it prints."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from experiments import own_data
from experiments.harness import Study
from experiments.own_data import STUDY, _epoch_s, _longer, _scores, searched
from supernet.training_settings import TrainingSettings
from tests.support.pipeline_cases import tiny
from tests.support.prepare_cases import pictures, run


@pytest.fixture
def pets(tmp_path: Path) -> Path:
    pixels, labels = pictures(90)
    arrays: Any = {"x_train": pixels[:60], "y_train": labels[:60]}
    np.savez(tmp_path / "a.npz", **arrays, x_test=pixels[60:], y_test=labels[60:])
    run(tmp_path, "classification", source=(tmp_path / "a.npz",), out=tmp_path / "pets")
    return tmp_path / "pets"


def row(winner: float, plain: float, task: str, name: str) -> dict[str, Any]:
    one = {"id": "a", "params": 1, "valid": {}, "test": {name: winner}}
    other = {**one, "test": {name: plain}}
    stages = {"supernet": (1800.0, 1860.0), "retrain-a": (1800.0, 1440.0)}
    times = {"minutes_asked": 60, "stages": stages, "minutes_taken": 70, "minutes_plain": 55}
    others = {"baselines": {"nearest": {**one, "params": 2}}, "plain": other}
    return {"data": "pets", "task": task, "winner": one, **others, **times}


@pytest.mark.parametrize(
    ("winner", "plain", "task", "name", "better"),
    [
        (0.8, 0.7, "classification", "accuracy", "yes"),
        (0.7, 0.8, "classification", "accuracy", "no"),
        (20.0, 20.0, "translation", "bleu", "yes"),
        (2.0, 2.5, "language_modelling", "loss", "yes"),
        (2.5, 2.0, "language_modelling", "loss", "no"),
    ],
)
def test_less_loss_and_more_of_all_else_is_better(
    winner: float, plain: float, task: str, name: str, better: str
) -> None:
    numbers = {"hours": 1, "rows": [row(winner, plain, task, name)]}
    (table,) = STUDY.show(numbers)
    cells = {str(one.header): list(one.cells) for one in table.columns}  # type: ignore[union-attr]
    good = [list(one.cells) for one in table.columns if str(one.header) == "as good"]
    assert good == [["yes"], [better]]  # beside the nearest, and beside that which trained longer
    assert cells["largest plain"] == ["–"] and cells["nearest plain"] == [f"{winner:.4g}"]
    times = [cells[one][0] for one in ("min asked", "min told", "taken", "ratio", "whole")]
    assert times == ["60", "60.0", "55.0", "0.92", "70"]
    assert cells["most off"] == ["retrain-a: 1800 s, took 1440 s"]


def test_the_plain_network_is_trained_for_the_time_of_the_whole_search() -> None:
    pieces = TrainingSettings(epochs=20, epoch_updates=50)
    longer = _longer(pieces, 66.6, passes=60, num_batches=100)
    assert longer.epochs == 67 and longer.epoch_updates == 50
    assert _longer(pieces, 1e4, 60, 100).epochs == 120
    assert _longer(TrainingSettings(epochs=9), 1e4, 60, 100).epochs == 60


def test_an_epoch_takes_its_usual_time_whatever_trained_between(tmp_path: Path) -> None:
    lines = [
        {"time": seconds, "event": "Progress", "stage": f"retrain-{name}", "done": 1, "total": 4}
        for name, seconds in [("a", 1), ("a", 3), ("b", 4), ("a", 90), ("a", 92), ("a", 94)]
    ]
    folder = tiny(tmp_path / "run")
    (folder.path / "events.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in lines))
    assert _epoch_s(folder, "a") == 2


def test_scores_of_a_split() -> None:
    result = {"test_accuracy": 0.5, "valid_accuracy": 0.6, "test_loss": 1.0, "id": "a"}
    assert _scores(result, "test") == {"accuracy": 0.5, "loss": 1.0}


def test_folders_that_cannot_be_told_apart_or_read_are_refused(
    pets: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert isinstance(STUDY, Study)
    assert STUDY.main(["--data", str(pets), str(pets)]) == 2
    assert "same name" in capsys.readouterr().err
    assert STUDY.main(["--data", str(tmp_path)]) != 0
    assert "nas data prepare" in capsys.readouterr().err


def test_what_a_search_says_is_no_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(own_data, "COMMAND", "print('the front')")
    searched(["--data", "pets"], tmp_path / "run")
    captured = capfd.readouterr()
    assert captured.out == "" and "the front" in captured.err


@pytest.mark.slow
def test_a_whole_study(pets: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--data", str(pets), "--hours", "0.005", "--work", str(tmp_path / "work")]
    assert STUDY.main(words) == 0
    assert "pets" in capsys.readouterr().out
    other = shutil.copytree(pets, tmp_path / "elsewhere" / "pets")
    assert STUDY.main(["--data", str(other), *words[2:]]) == 2
    assert f"searched {pets}, not {other}: give another folder" in capsys.readouterr().err
