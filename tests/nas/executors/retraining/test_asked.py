"""What is asked of one training: noted, read back, and what follows for its settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from nas.executors.retraining.asked import AskedTraining, note_asked, read_asked
from nas.run.folder import RunFolder
from nas.run.layout import asked_file
from search_spaces.errors import DamagedRunError
from supernet.training_settings import TrainingSettings, planned_updates
from tests.support.pipeline_cases import tiny

ID = "0123456789ab"


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return tiny(tmp_path / "run")


def test_a_request_is_noted_and_taken_back(run: RunFolder) -> None:
    assert read_asked(run, ID) == AskedTraining()
    for asked in (AskedTraining(20), AskedTraining(0, 7), AskedTraining(20, 7)):
        note_asked(run, ID, asked)
        assert read_asked(run, ID) == asked and read_asked(run, "ffffffffffff") == AskedTraining()
    note_asked(run, ID, AskedTraining(20))  # as runs of before have it
    assert run.read_json(asked_file(ID)) == {"trials": 20}
    for _ in range(2):
        note_asked(run, ID, AskedTraining())
    assert read_asked(run, ID) == AskedTraining() and not (run.path / asked_file(ID)).exists()


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"trials": 0}', '{"trials": "3"}', '{"epochs": -1}', '{"updates": 5}'],
)
def test_a_request_that_makes_no_sense_is_damage(run: RunFolder, text: str) -> None:
    note_asked(run, ID, AskedTraining(20))
    (run.path / asked_file(ID)).write_text(text, "utf-8")
    with pytest.raises(DamagedRunError, match=r"tuning\.json"):
        read_asked(run, ID)


def test_epochs_asked_for_are_the_whole_training() -> None:
    own = TrainingSettings(epochs=1000, epoch_updates=50, max_updates=600)
    assert planned_updates(own, 500) == 600
    assert AskedTraining().settings(own) is own and AskedTraining(5).settings(own) is own
    assert planned_updates(AskedTraining(0, 24).settings(own), 500) == 1200
