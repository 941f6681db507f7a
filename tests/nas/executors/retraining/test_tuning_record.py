"""What a tuning leaves behind: read back as it was written, and refused when it was changed."""

from __future__ import annotations

from pathlib import Path

import pytest

from nas.executors.retraining.tuning_record import (
    TrialFolders,
    TrialRecord,
    best_of,
    key_of,
    summary,
)
from nas.run.folder import RunFolder
from search_spaces.errors import DamagedRunError
from tests.support.pipeline_cases import tiny

ONE = {"learning_rate": 1e-3, "dropout": 0.1, "warmup_share": 0.05}
TWO = ONE | {"dropout": 0.2}
ID = "0123456789ab"


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return tiny(tmp_path / "run")


def test_trials_are_read_back(run: RunFolder) -> None:
    folders = TrialFolders(run, ID)
    assert folders.records() == []
    first, second = folders.begin(ONE), folders.begin(TWO)
    folders.report(first, 10, 0.75)
    folders.report(first, 30, 0.5)
    folders.end(first, "finished", 0.4)
    folders.end(first, "stopped", 0.9)  # what was noted first stays
    found = {record.key: record for record in folders.records()}
    assert found[first] == TrialRecord(first, ONE, {10: 0.75, 30: 0.5}, "finished", 0.4)
    assert found[second] == TrialRecord(second, TWO, {})


def test_weights_are_there_or_damage(run: RunFolder) -> None:
    folders = TrialFolders(run, ID)
    key = folders.begin(ONE)
    with pytest.raises(DamagedRunError, match=r"weights\.pt is missing"):
        folders.weights_of(key)
    (folders.path_of(key) / "weights.pt").touch()
    assert folders.weights_of(key).parent == folders.path_of(key)


def test_settings_have_one_key_whatever_their_order() -> None:
    assert key_of(ONE) == key_of(dict(reversed(ONE.items()))) != key_of(TWO)


def test_a_line_cut_off_by_a_crash_is_dropped(run: RunFolder) -> None:
    folders = TrialFolders(run, ID)
    key = folders.begin(ONE)
    folders.report(key, 10, 0.75)
    with (folders.path_of(key) / "reports.jsonl").open("a") as stream:
        stream.write('{"done": 3')
    assert folders.record(key).reports == {10: 0.75}


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("settings.json", '{"dropout": 0.1}'),
        ("settings.json", '{"learning_rate": 2, "dropout": 0.1, "warmup_share": 0}'),
        ("trial.json", '{"state": "odd", "loss": 1}'),
        ("trial.json", '{"state": "finished"}'),
        ("reports.jsonl", '{"done": "x"}\n'),
    ],
)
def test_a_changed_record_is_damage(run: RunFolder, file: str, text: str) -> None:
    folders = TrialFolders(run, ID)
    key = folders.begin(ONE)
    folders.end(key, "finished", 0.5)
    (folders.path_of(key) / file).write_text(text, "utf-8")
    with pytest.raises(DamagedRunError, match=key):
        folders.records()


def test_the_best_is_the_lowest_loss_of_those_that_finished() -> None:
    made = [
        TrialRecord("a", ONE, {}, "finished", 0.5),
        TrialRecord("b", ONE, {}, "finished", 0.4),
        TrialRecord("c", ONE, {}, "stopped", 0.1),
        TrialRecord("d", ONE, {}),
    ]
    best = best_of(made)
    assert best is not None and best.key == "b" and best_of(made[2:]) is None
    assert summary(made) == {"trials": 4, "finished": 2, "stopped": 1, "diverged": 0}
