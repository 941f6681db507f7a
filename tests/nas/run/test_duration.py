"""What a search will take: counts times seconds, shared out, beside what it took."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from nas.run.duration import (
    CHECK,
    TRAINED,
    UPDATE,
    Duration,
    Part,
    Plan,
    StageDuration,
    Training,
    compare,
    read_duration,
    write_duration,
)
from nas.run.events import Event, Note, Progress, StageFinished, StageSkipped, StageStarted
from nas.run.stage_runner import seconds_before
from search_spaces.errors import DamagedRunError
from supernet.training_settings import TrainingSettings
from tests.support.pipeline_cases import tiny

SECONDS = {UPDATE: 0.5, CHECK: 2.0}


@pytest.mark.parametrize(
    ("settings", "batches", "training"),
    [
        (TrainingSettings(epochs=60), 23, (60, 1380, 12)),
        (TrainingSettings(epochs=4, accumulate=4), 10, (4, 12, 1)),
        (TrainingSettings(epochs=60, max_updates=40, check_every=1), 23, (2, 40, 2)),
        (TrainingSettings(epochs=1000, epoch_updates=200, max_updates=1000), 500, (5, 1000, 1)),
    ],
)
def test_a_training(
    settings: TrainingSettings, batches: int, training: tuple[int, int, int]
) -> None:
    assert Training.of(settings, batches) == training


@pytest.mark.parametrize(
    ("pieces", "workers", "seconds"),
    [(1, 1, 5.0), (1, 8, 5.0), (10, 1, 5.0), (10, 2, 2.5), (10, 4, 1.5), (3, 2, 5 * 2 / 3)],
)
def test_workers_share_pieces_and_the_last_round_may_not_need_all(
    pieces: int, workers: int, seconds: float
) -> None:
    plan = Plan("", (Part(UPDATE, 10, pieces),))
    assert plan.seconds(SECONDS, workers) == pytest.approx(seconds)


def test_a_plan_adds_its_parts_up_takes_no_time_or_is_not_told() -> None:
    parts = Part(UPDATE, 10), Part(CHECK, 3, most=5)
    assert Plan("", parts).seconds(SECONDS) == 11.0
    assert Plan("", parts).most_seconds(SECONDS) == 15.0
    assert Plan("").seconds(SECONDS) == 0.0
    assert Plan("", told=False).seconds(SECONDS) is None


TOLD = Duration(
    (
        StageDuration("supernet", "Train the supernet", "10 updates", 10.0),
        StageDuration("inherit", "Take over", "not told", None),
        StageDuration(TRAINED, "Train the winner", "", 6.0),
        StageDuration("report", "Write the report", "", 1.0),
    ),
    SECONDS,
    calibrated_s=2.0,
)


def words(seconds: float) -> str:
    return f"{seconds:g} s"


def test_told_and_taken() -> None:
    took = {"declare": 9.0, "supernet": 12.0, "inherit": 99.0, "retrain-a": 3.0, "retrain-c": 50.0}
    some = compare(TOLD, took, ["a", "b"], ())
    assert some.told == {"supernet": 10.0, "report": 1.0, "retrain-a": 3.0, "retrain-b": 3.0}
    assert some.sentence(words) == "told 13 s for what has ended, took 15 s (1.15 times)"
    whole = compare(TOLD, {**took, "retrain-b": 4.0, "report": 1.0}, ["a", "b"], ())
    assert whole.sentence(words) == "told 17 s, took 20 s (1.18 times)"
    longer = compare(TOLD, {**took, "retrain-b": 400.0, "report": 1.0}, ["a", "b"], {"b"})
    assert longer.sentence(words) == "told 14 s, took 16 s (1.14 times)"
    assert compare(TOLD, {}, [], ()).sentence(words) == ""


def test_a_busy_machine_is_told_with_what_it_makes_longer_and_to_do() -> None:
    busy = replace(TOLD, busy="other work kept 1.9 of 2 cores busy")
    assert busy.warning == ""  # nothing is timed
    timed = (
        StageDuration("latency", "Time sampled networks", "", 4.0, 70.0),
        StageDuration("baseline", "Choose what to compare with", "", 1.0, 30.0),
    )
    longer = replace(busy, stages=(*timed, *TOLD.stages))
    assert longer.warning == (
        "the machine is busy now (other work kept 1.9 of 2 cores busy): what times networks "
        "(Time sampled networks, Choose what to compare with) may take up to 20 times as long, "
        "since timings beside other work are repeated and waited for, and all else is told as slow "
        "as it is now; end the other work, or begin when it has ended"
    )
    assert replace(longer, busy="").warning == ""
    sentence = compare(longer, {"supernet": 12.0}, [], ()).sentence(words)
    assert sentence.endswith(
        "(1.20 times); the machine was busy when it was told: other work kept 1.9 of 2 cores busy"
    )


def test_what_is_left(tmp_path: Path) -> None:
    assert [one.stage for one in TOLD.left(["supernet", TRAINED])] == ["inherit", "report"]
    assert TOLD.seconds == 17.0


def test_it_is_kept_in_the_run_folder(tmp_path: Path) -> None:
    folder = tiny(tmp_path / "run")
    assert read_duration(folder) is None
    write_duration(folder, TOLD)
    assert read_duration(folder) == TOLD
    (folder.path / "duration.json").write_text('{"stages": 3}')
    with pytest.raises(DamagedRunError, match=r"duration\.json is damaged"):
        read_duration(folder)


def test_sessions_that_were_stopped_count_up_to_their_last_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tiny(tmp_path / "run")
    told: list[tuple[int, Event]] = [
        (100, StageStarted("declare", "")),
        (101, StageFinished("declare", 1.0)),
        (102, StageStarted("supernet", "")),
        (110, Progress("supernet", 1, 2)),  # killed here
        (500, StageSkipped("declare", "")),
        (501, StageStarted("supernet", "")),
        (504, Progress("supernet", 1, 2)),  # and here
    ]
    for now, event in told:
        monkeypatch.setattr("nas.run.folder.time.time", lambda now=now: float(now))
        folder.log(event)
    assert seconds_before(folder, "supernet") == 0.0  # it was never begun
    folder.begin("supernet", "digest")
    assert seconds_before(folder, "supernet") == 8.0 + 3.0
    folder.log(StageFinished("supernet", 3.0))
    assert seconds_before(folder, "supernet") == 0.0


def test_other_networks_and_the_days_between_are_no_time_of_a_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tiny(tmp_path / "run")
    told: list[tuple[int, Event]] = [
        (100, StageStarted("retrain-a", "")),
        (700, Progress("retrain-a", 1, 2)),  # killed here
        (90_000, StageStarted("retrain-b", "")),
        (93_600, Progress("retrain-b", 1, 2)),
        (93_601, StageFinished("retrain-b", 3_601.0)),
        (93_602, StageSkipped("report", "")),
        (99_000, StageStarted("retrain-a", "")),
        (99_005, Note("retrain-a", "goes on")),  # and here
        (99_900, Note("retrain-b", "is trained")),
    ]
    for now, event in told:
        monkeypatch.setattr("nas.run.folder.time.time", lambda now=now: float(now))
        folder.log(event)
    folder.begin("retrain-a", "digest")
    assert seconds_before(folder, "retrain-a") == 600.0 + 5.0
