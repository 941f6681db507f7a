"""Several networks retrained in this process, and requests for tuning where there is no Ray."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from nas.executors.retraining.asked import AskedTraining, note_asked, read_asked
from nas.executors.retraining.stage import change_asked
from nas.executors.retraining.tuning_record import TrialFolders
from nas.run.events import Note
from nas.run.folder import RunFolder
from nas.run.layout import begun_file
from nas.search.front import read_front
from nas.stages.retrain import retrain
from search_spaces.errors import UsageError
from tests.support.pipeline_cases import finished_once, named, work

SETTINGS = {"learning_rate": 1e-3, "dropout": 0.1, "warmup_share": 0.05}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return finished_once(tmp_path_factory.mktemp("whole") / "run")


@pytest.fixture
def run(whole: RunFolder, tmp_path: Path) -> RunFolder:
    shutil.copytree(whole.path, tmp_path / "run")
    return RunFolder.open(tmp_path / "run")


def new_ones(run: RunFolder) -> list[str]:
    """Networks of the front that are not trained yet."""
    ids = [entry.id for entry in read_front(run).entries]
    return [one for one in ids if not (run.path / "retrained" / one / "result.json").exists()]


def test_each_is_trained_once_in_the_order_given(run: RunFolder) -> None:
    ids = new_ones(run)[:2][::-1]
    assert len(ids) == 2
    ended = named(list(retrain(run, [*ids, ids[0]])), "StageFinished")
    assert ended == [*(f"retrain-{one}" for one in ids), "report"]


def test_a_network_that_is_not_there_stops_before_any_is_trained(run: RunFolder) -> None:
    ids = new_ones(run)
    with pytest.raises(UsageError, match="nearest id"):
        list(retrain(run, [ids[0], "ffffffffffff"], trials=3))
    assert ids == new_ones(run) and read_asked(run, ids[0]).trials == 0


def test_tuning_needs_ray_and_can_be_taken_back(run: RunFolder) -> None:
    one = new_ones(run)[0]
    note_asked(run, one, AskedTraining(5))
    with pytest.raises(UsageError, match=rf"--pick {one} --tune 5 --executor ray, or .*--tune 0"):
        list(retrain(run, one))
    assert one in new_ones(run)
    list(retrain(run, one, trials=0))
    assert one not in new_ones(run) and run.read_json(f"retrained/{one}/result.json")["schema"] == 4


@pytest.mark.parametrize(("data", "kept"), [("the same", 1), ("others", 0)])
def test_another_number_of_trials_keeps_what_was_tried(
    run: RunFolder, data: str, kept: int
) -> None:
    one = new_ones(run)[0]
    with pytest.raises(UsageError, match="--tune 20"):  # which begins it
        list(retrain(run, one, trials=20))
    folders = TrialFolders(run, one)
    folders.end(folders.begin(SETTINGS), "stopped", 0.5)
    if data == "others":
        run.begin(f"retrain-{one}", "of other data")
    for trials in (12, 40):
        with pytest.raises(UsageError, match=f"--tune {trials} "):
            list(retrain(run, one, trials=trials))
        assert len(folders.records()) == kept
    list(retrain(run, one, trials=0))  # trained with the run's own settings
    assert one not in new_ones(run) and len(folders.records()) == kept
    with pytest.raises(UsageError, match="--tune 12 "):
        list(retrain(run, one, trials=12))
    assert one in new_ones(run) and len(folders.records()) == kept


def test_a_number_of_trials_for_what_was_not_begun_begins_nothing(run: RunFolder) -> None:
    one = new_ones(run)[0]
    change_asked(run, one, 5)
    assert read_asked(run, one).trials == 5 and not run.has(begun_file(f"retrain-{one}"))
    (run.path / "retrained" / one / "tuning.json").write_text("{")
    change_asked(run, one, 7)
    assert read_asked(run, one).trials == 7


def test_results_stay_where_trials_have_no_device(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise UsageError("the cluster is not there")

    (result,) = run.path.glob("retrained/*/result.json")
    monkeypatch.setattr("nas.executors.local.LocalExecutor.check", refuse)
    with pytest.raises(UsageError, match="is not there"):
        list(retrain(run, result.parent.name, trials=3))
    assert result.exists()


def test_a_resumed_search_passes_over_a_tuning_it_cannot_do(run: RunFolder) -> None:
    one = new_ones(run)[0]
    note_asked(run, one, AskedTraining(5))
    run.begin(f"retrain-{one}", "digest")
    notes = [event for event in work(run) if isinstance(event, Note)]
    assert [f"retrain-{one}"] == [note.stage for note in notes if "--tune 5" in note.message]
    assert one in new_ones(run)


def test_a_changed_request_trains_again(run: RunFolder) -> None:
    entry = next(e.id for e in read_front(run).entries if e.id not in new_ones(run))
    note_asked(run, entry, AskedTraining(5))
    with pytest.raises(UsageError, match="--executor ray"):
        list(retrain(run, entry))
    assert entry in new_ones(run)


def test_a_network_is_trained_for_as_long_as_is_asked_and_back(run: RunFolder) -> None:
    entry = next(e.id for e in read_front(run).entries if e.id not in new_ones(run))
    name = f"retrained/{entry}/result.json"
    own = run.read_json(name)
    list(retrain(run, entry, epochs=own["epochs"] + 2))
    longer = run.read_json(name)
    assert longer["epochs"] == longer["asked_epochs"] == own["epochs"] + 2
    assert (longer["schema"], longer["valid_loss"] != own["valid_loss"]) == (5, True)
    list(retrain(run, entry))  # what was asked holds
    assert run.read_json(name) == longer
    list(retrain(run, entry, epochs=0))
    assert run.read_json(name) == own


def test_other_epochs_lose_what_was_tried_and_keep_the_number_of_trials(run: RunFolder) -> None:
    one = new_ones(run)[0]
    with pytest.raises(UsageError, match="--tune 20"):
        list(retrain(run, one, trials=20))
    folders = TrialFolders(run, one)
    folders.end(folders.begin(SETTINGS), "stopped", 0.5)
    with pytest.raises(UsageError, match="--tune 20"):
        list(retrain(run, one, epochs=3))
    assert read_asked(run, one) == AskedTraining(20, 3) and not folders.records()
