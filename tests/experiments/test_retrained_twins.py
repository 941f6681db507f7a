"""The study of a winner and its twins: whose training is whose, and what is trained."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from experiments import retrained_twins
from experiments.retrained_twins import STUDY, Job, measure, train, twin
from search_spaces.variation import largest
from supernet.training_settings import TrainingSettings
from tests.support.pipeline_cases import tiny
from tests.support.study_cases import threads


def job_of(folder: Path, **run: Any) -> Job:
    """A training of an epoch on the data of a search."""
    search = tiny(folder / f"run{len(run)}", **run)
    network = search.spec.space.decode(largest(search.spec.space))[0]
    settings = TrainingSettings(epochs=1, batch_size=288)
    return Job("winner", str(search.path), network, settings, 1, str(folder / "work"))


def test_a_training_is_of_its_network_seed_settings_and_run(tmp_path: Path) -> None:
    job = job_of(tmp_path)
    others = [
        replace(job, architecture=twin(job.architecture, "linear")),
        replace(job, seed=2),
        replace(job, settings=replace(job.settings, epochs=2)),
        job_of(tmp_path, seed=1),
    ]
    assert replace(job, name="all softmax").folder == job.folder
    assert len({one.folder for one in (job, *others)}) == 5


def test_a_training_of_other_settings_is_not_taken_for_this_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = job_of(tmp_path)
    first = train(job)
    captured = capsys.readouterr()
    assert "winner 1: loss" in captured.err and captured.out == ""
    assert train(replace(job, name="all softmax")) == first
    assert capsys.readouterr().err == ""
    train(replace(job, settings=replace(job.settings, epochs=2)))
    assert "winner 2: loss" in capsys.readouterr().err


def test_a_winner_that_is_its_own_twin_is_trained_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, trained = job_of(tmp_path), list[Job]()
    winner = SimpleNamespace(architecture=twin(job.architecture, "softmax"))

    def noted(one: Job) -> dict[str, Any]:
        trained.append(one)
        return {"id": one.architecture.id, "seed": one.seed, "valid": {"loss": 1.0}, "minutes": 1.0}

    monkeypatch.setattr(retrained_twins, "read_front", lambda run: None)
    monkeypatch.setattr(retrained_twins, "pick", lambda front, name: winner)
    monkeypatch.setattr(retrained_twins, "train", noted)
    monkeypatch.setattr(retrained_twins, "processes", threads)
    words = ["--run", job.run, "--preset", "smoke", "--set", "retrain.epochs=3"]
    found = measure(STUDY.parser.parse_args([*words, "--set", "retrain.check_every=1"]))
    assert [row["name"] for row in found["networks"]] == ["winner", "all softmax", "all linear"]
    assert len(trained) == 2 and {one.settings.epochs for one in trained} == {3}
    ids = [row["id"] for row in found["networks"]]
    assert ids[0] == ids[1] != ids[2]


def test_a_number_without_a_value_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tiny(tmp_path / "run")
    assert STUDY.main(["--run", str(run.path), "--preset", "smoke", "--set", "epochs"]) == 2
    assert "--set takes NAME=VALUE" in capsys.readouterr().err
