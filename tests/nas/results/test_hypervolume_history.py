"""Hypervolume over measured networks, and how far a job is."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest

from nas.results.contents import RunContents
from nas.results.partial_front import (
    MOST_POINTS,
    PartialFront,
    _marks,
    hypervolume_history,
    partial_front,
    reference,
)
from nas.results.reader import read_contents
from nas.run.folder import RunFolder
from service.dashboard.pages import event_text, left_s, worked_s
from service.jobs.states import Job, State, Summary
from service.worker.event_reader import summarise
from tests.support.run_fixture import finished_run, rewrite
from tests.support.service_cases import claim, fresh_store, must, submission


def read(folder: RunFolder) -> tuple[RunContents, PartialFront]:
    contents = read_contents(folder)
    return contents, partial_front(contents)


def near_reference(folder: RunFolder) -> RunFolder:
    """The run with a reference that a front can be told apart by."""
    for place, value in enumerate((0.4, 3.0)):
        rewrite(folder, "pareto.json", ["objectives", place, "reference"], value)
    return folder


def test_the_curve_never_falls_and_ends_at_the_whole(tmp_path: Path) -> None:
    contents, found = read(near_reference(finished_run(tmp_path / "run")))
    curve = hypervolume_history(contents, found)
    volumes = [volume for _, volume in curve]
    assert volumes == sorted(volumes) and 0 <= volumes[0] < volumes[-1] < 1
    assert curve[-1][0] == len(found.measured)
    first = replace(found, measured=found.measured[:7])
    assert hypervolume_history(contents, first)[-1] == curve[6]


def test_networks_beyond_a_limit_add_nothing(tmp_path: Path) -> None:
    contents, found = read(near_reference(finished_run(tmp_path / "run")))
    strict = contents.spec.model_copy(update={"limits": {"latency_ms": 0.0}})
    assert {v for _, v in hypervolume_history(replace(contents, spec=strict), found)} == {0.0}


def test_nothing_measured_gives_no_curve(tmp_path: Path) -> None:
    contents, found = read(finished_run(tmp_path / "run"))
    assert hypervolume_history(contents, replace(found, measured=())) == []


def test_a_running_search_has_the_reference_it_will_have(tmp_path: Path) -> None:
    folder = finished_run(tmp_path / "run", objectives=("quality", "params"))
    (folder.path / "pareto.json").unlink()
    loss, params = reference(*read(folder))
    assert loss == pytest.approx(2.302585)  # log of ten classes
    assert params >= max(entry.measured["params"] for entry in read(folder)[1].measured)


@pytest.mark.parametrize(("count", "marks"), [(1, 1), (MOST_POINTS, MOST_POINTS), (5000, None)])
def test_marks_reach_from_the_first_to_the_last(count: int, marks: int | None) -> None:
    found = _marks(count)
    assert (found[0], found[-1]) == (1, count) and len(found) == (marks or MOST_POINTS)


# -- how far a job is -----------------------------------------------------------------------------

BEGUN = {"event": "StageStarted", "stage": "supernet", "label": "Train", "total": 4}
STEP = {"event": "Progress", "stage": "supernet", "done": 1, "total": 4}
ENDED = {"event": "StageFinished", "stage": "supernet", "seconds": 2.5}
FRONT = {"event": "FrontUpdated", "hypervolume": 0.5}


@pytest.fixture
def running(tmp_path: Path) -> Job:
    with fresh_store(f"sqlite:///{tmp_path / 'service.db'}") as store:
        store.jobs.submit(submission())
        return must(claim(store))


def test_work_is_what_the_stages_took(running: Job) -> None:
    summary = summarise(Summary(), [{**BEGUN, "time": 5.0}, STEP, ENDED, BEGUN, ENDED])
    assert worked_s(replace(running, summary=summary)) == 5.0
    begun = summarise(summary, [{**BEGUN, "time": time.time() - 100}])
    assert 105 <= worked_s(replace(running, summary=begun)) < 200
    assert worked_s(replace(running, summary=begun, state=State.cancelled)) == 5.0


def test_time_left_follows_from_the_steps_done(running: Job) -> None:
    begun = summarise(Summary(), [{**BEGUN, "time": time.time() - 100}])
    assert left_s(replace(running, summary=begun)) is None
    on = replace(running, summary=summarise(begun, [STEP]))
    left = left_s(on)
    assert left is not None and 300 <= left < 600
    assert left_s(replace(on, state=State.failed)) is None
    assert left_s(replace(on, summary=summarise(on.summary, [ENDED]))) is None


@pytest.mark.parametrize(
    ("event", "words"),
    [
        ({**STEP, "message": "loss 2"}, "supernet: 1 of 4, loss 2"),
        (ENDED, "supernet: 2.5 s"),
        (BEGUN, "Train"),
        ({**FRONT, "points": [{}]}, "1 network, hypervolume 0.500"),
        ({**FRONT, "points": [{}, {}]}, "2 networks, hypervolume 0.500"),
        ({"event": "StateChanged", "before": "queued", "state": "running"}, "queued → running"),
        ({"event": "StateChanged", "before": None, "state": "queued"}, "queued"),
        ({"event": "CancelRequested"}, ""),
        ({"event": "FromLater", "message": "something new"}, "something new"),
    ],
)
def test_events_are_told_in_words(event: dict[str, object], words: str) -> None:
    assert event_text(event) == words


def test_a_single_network_of_a_quality_below_nought_has_no_volume_yet(tmp_path: Path) -> None:
    contents, found = read(finished_run(tmp_path / "run"))
    entry = found.measured[0]
    alone = replace(entry, measured={**entry.measured, "quality": -0.5})
    begun = replace(found, front=None, measured=(alone,))
    spec = contents.spec.model_copy(update={"limits": {}, "evaluator": "rig:Rig"})
    assert hypervolume_history(replace(contents, spec=spec), begun) == [(1, 0.0)]
