"""Retraining on Ray: the same bits as here, side by side; tuned settings, and what is kept."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nas.executors.base import ExecutorSettings
from nas.executors.board import Board
from nas.executors.retraining.tuning_record import TUNED, TrialFolders
from nas.run.folder import RunFolder
from nas.run.layout import TRIAL_WEIGHTS, result_file
from nas.search.front import read_front
from nas.stages.retrain import retrain
from tests.nas.search.test_front import RETRAINED, valid
from tests.support.node_cases import Cluster
from tests.support.pipeline_cases import finished_once, named, tiny

pytestmark = pytest.mark.ray
ON_RAY = ExecutorSettings("ray")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return finished_once(tmp_path_factory.mktemp("whole") / "run")


@pytest.fixture
def run(whole: RunFolder, tmp_path: Path, ray_session: None) -> RunFolder:
    shutil.copytree(whole.path, tmp_path / "run")
    return RunFolder.open(tmp_path / "run")


def ids_of(run: RunFolder) -> list[str]:
    return [entry.id for entry in read_front(run).entries]


def not_yet_trained(run: RunFolder) -> list[str]:
    return [one for one in ids_of(run) if not (run.path / "retrained" / one).exists()]


def results(run: RunFolder, network_id: str) -> tuple[Any, bytes]:
    name = f"retrained/{network_id}/result.json"
    return run.read_json(name), (run.path / name).with_name("weights.pt").read_bytes()


def test_networks_retrain_side_by_side_to_the_bits_of_this_process(
    run: RunFolder, tmp_path: Path
) -> None:
    shutil.copytree(run.path, tmp_path / "here")
    here, ids = RunFolder.open(tmp_path / "here"), not_yet_trained(run)[:2]
    for folder, settings in ((here, None), (run, ON_RAY)):
        events = list(retrain(folder, ids, settings))
        assert {*named(events, "StageFinished")} == {*(f"retrain-{one}" for one in ids), "report"}
    assert len(ids) == 2
    assert [results(run, one) for one in ids] == [results(here, one) for one in ids]


def test_a_worker_that_was_lost_is_told_also_when_its_network_is_done_by_now(
    tmp_path: Path,
) -> None:
    from nas.executors.ray_jobs import Began, JobRoom, Jobs
    from nas.executors.ray_retrain import _Retraining

    cluster = Cluster(host_1=1, host_2=1)
    # Nothing works any more when the last mail is read.
    nobody: Any = SimpleNamespace()
    kind = _Retraining(nobody, [], JobRoom(1, 1, 0), None)
    jobs = Jobs(kind, [], 1, Board(tmp_path), cluster.watch(), nobody)
    assert jobs.begin(Began("abc", "host-1", 7, "id of host_1")) is None
    note = jobs.begin(Began("abc", "host-2", 8, "id of host_2"))
    assert note is not None and note.stage == "retrain-abc"
    assert "abc was lost; one on host-2 goes on" in note.message
    assert jobs.begin(Began("def", "host-2", 9, "id of host_2")) is None
    jobs._working = {"a task": "abc", "another": "not begun"}
    assert not jobs._waits
    cluster.reasons["host_1"] = 2
    assert not jobs._waits
    cluster.reasons["host_2"] = 2
    assert jobs._waits  # begun, but nobody works on it any more


@pytest.mark.parametrize(
    ("workers", "networks", "trials"), [(4, 1, 4), (4, 2, 2), (4, 3, 1), (4, 9, 1), (None, 3, None)]
)
def test_networks_share_the_workers_that_try_settings(
    workers: int | None, networks: int, trials: int | None, tmp_path: Path
) -> None:
    from nas.executors.ray_jobs import JobRoom
    from nas.executors.ray_retrain import _Retraining

    run: Any = SimpleNamespace(folder=tiny(tmp_path / "run"))
    run.folder.write_json(result_file("trained"), {})
    ids = ["trained", *map(str, range(networks))]
    kind = _Retraining(run, ids, JobRoom(workers, 2, 1), None)
    assert kind._room == JobRoom(trials, 2, 1)


def test_networks_that_are_tuned_at_once_have_trials_of_their_own(run: RunFolder) -> None:
    ids = not_yet_trained(run)[:2]
    list(retrain(run, ids, ExecutorSettings("ray", workers=2), 3))
    for one in ids:
        assert run.read_json(f"retrained/{one}/result.json")["tuning"]["trials"] == 3
        assert len(TrialFolders(run, one).records()) == 3


def begun(run: RunFolder, network_id: str) -> Iterator[tuple[str, str]]:
    """A tuning that was killed: one trial stopped, one finished and poor, one under way."""
    own = {"learning_rate": 2e-3, "dropout": 0.0, "warmup_share": 0.1}
    folders = TrialFolders(run, network_id)
    for name, dropout in (("stopped", 0.1), ("finished", 0.2), ("", 0.3)):
        key = folders.begin(own | {"dropout": dropout})
        folders.report(key, 50, 9.0)
        if name:
            folders.end(key, name, 9.0)  # type: ignore[arg-type]
        if name == "finished":
            (folders.path_of(key) / TRIAL_WEIGHTS).touch()
        yield name, key


def test_a_tuning_goes_on_with_what_was_not_tried_to_its_end(run: RunFolder) -> None:
    one, *_ = not_yet_trained(run)
    keys, tuning = dict(begun(run, one)), run.path / "retrained" / one / "tuning"
    untouched = (tuning / keys["finished"] / "reports.jsonl").stat().st_mtime_ns
    events = list(retrain(run, one, ON_RAY, 3))
    (told,) = [e for e in events if getattr(e, "done", None) == 3 and e.stage == f"retrain-{one}"]
    result = run.read_json(f"retrained/{one}/result.json")
    assert result["tuning"] == {"trials": 3, "finished": 2, "stopped": 1, "diverged": 0}
    assert valid(RETRAINED, result) and not valid(RETRAINED, result | {"schema": 2})
    assert result["settings"]["dropout"] == 0.3 and set(result["settings"]) == set(TUNED)
    assert told.values["validation_loss"] == pytest.approx(result["valid_loss"])
    kept = {"settings.json", "reports.jsonl", "trial.json"}
    assert {file.name for file in (tuning / keys["finished"]).iterdir()} == kept
    assert {file.name for file in (tuning / keys[""]).iterdir()} == {*kept, TRIAL_WEIGHTS}
    assert (tuning / keys["finished"] / "reports.jsonl").stat().st_mtime_ns == untouched
    again = list(retrain(run, one, ON_RAY, 3))
    assert f"retrain-{one}" in named(again, "StageSkipped")
    before = results(run, one)
    fewer = list(retrain(run, one, ON_RAY, 2))
    assert f"retrain-{one}" in named(fewer, "StageFinished") and results(run, one) == before
    assert f"retrain-{one}" not in named(fewer, "Progress")  # nothing is tried
