"""Candidates that train side by side: the better half goes on, and ends as if it had been alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import nas.results
from nas.console.commands.search import Here
from nas.executors.retraining.stage import REACHED
from nas.request.resolve import resolve
from nas.request.spec import SearchRequest
from nas.results.networks import choose_trained
from nas.results.reader import read_contents
from nas.results.state import read_state
from nas.run.duration import Duration, StageDuration
from nas.run.events import Event, Progress
from nas.run.folder import RunFolder
from nas.run.layout import checkpoints_folder
from nas.run.stages import RETRAIN, TRAINED
from nas.search.front import Baseline, pick, read_front, read_winner
from nas.stages import halve, retrain
from nas.stages.halve import candidates
from nas.stages.pipeline import run_search
from search_spaces.errors import UsageError
from tests.nas.search.test_front import THREE, entry, front
from tests.support.pipeline_cases import finished, spec_of, work
from tests.support.trained_cases import with_front

LONG = {"retrain.epochs": "10"}


def test_the_candidates_are_the_picked_one_and_its_neighbours() -> None:
    made = front(*THREE, entry(0.12, 80), entry(0.19, 40))
    ids = [one.id for one in made.entries]
    assert candidates(made, "best", 3) == ids[:3]
    assert candidates(made, ids[3], 2) == [ids[3], ids[2]]
    assert len(candidates(made, "best", 16)) == len(ids)


@pytest.mark.parametrize(
    ("asked", "number"),
    [({}, 3), ({"retrain": 1}, 1), ({"pick": "knee"}, 1), ({"pick": "knee", "retrain": 2}, 2)],
)
def test_three_are_trained_unless_one_is_picked(asked: dict[str, Any], number: int) -> None:
    assert resolve(SearchRequest(space="digits", **asked), Here()).spec.retrain == number


def test_the_winner_ends_as_if_it_had_been_alone_also_after_kills(tmp_path: Path) -> None:
    spec = spec_of(tmp_path / "spec", numbers=LONG, retrain=3)
    folder = RunFolder.create(tmp_path / "run", spec)
    for _ in range(2):  # stopped when a candidate has just told its loss
        running = run_search(folder)
        next(one for one in running if isinstance(one, Progress) and one.stage == "halve")
        running.close()  # type: ignore[attr-defined]
        assert read_winner(folder) is None
    work(folder)
    lines = folder.read_journal("halving.jsonl")
    assert [line.get("share") for line in lines] == [0.2, 0.2, 0.2, 0.5, 0.5, None]
    first = {line["id"]: line["loss"] for line in lines[:3]}
    assert {line["id"] for line in lines[3:5]} == set(sorted(first, key=first.__getitem__)[:2])
    won = read_winner(folder)
    state = read_state(folder, thorough=True)
    assert (state.picked, state.summary) == (won, "finished")
    assert [one["id"] for one in state.retrained] == [won]
    picked = read_contents(folder).picked
    assert picked is not None and picked.id == won
    left = [path.parent.name for path in folder.path.glob("retrained/*/checkpoints")]
    assert left == []
    alone = finished(tmp_path / "alone", numbers=LONG, pick=won)
    name = f"retrained/{won}/result.json"
    assert alone.read_json(name) == folder.read_json(name)
    assert read_front(alone).entries == read_front(folder).entries


class Reaching:
    """Tells losses in place of training: of two the one named first has less."""

    def retrain(self, run: Any, ids: list[str], share: float) -> Iterator[Event]:
        for number, one in enumerate(ids):
            (run.folder.path / checkpoints_folder(one)).mkdir(parents=True, exist_ok=True)
            yield Progress(f"retrain-{one}", 1, 1, "", {REACHED: float(number)})


def test_trainings_of_losers_that_go_on_behind_it_are_kept(tmp_path: Path) -> None:
    """Those of baselines, and those that somebody had begun by name."""
    spec = spec_of(tmp_path / "spec", numbers=LONG, retrain=4, pick="best")
    folder = RunFolder.create(tmp_path / "run", spec)
    won, baseline, begun, lost = with_front(folder, 4)
    front = read_front(folder)
    held = replace(front, baselines=(Baseline(pick(front, baseline), ("largest",)),))
    folder.write_json("pareto.json", held.to_json())
    folder.begin(f"retrain-{begun}", "digest")
    run: Any = SimpleNamespace(folder=folder, spec=spec, executor=Reaching())
    list(halve.work(run))
    assert read_winner(folder) == won
    left = {path.parent.name for path in folder.path.glob("retrained/*/checkpoints")}
    assert left == {won, baseline, begun} and lost not in left


def test_a_plain_network_beside_the_front_may_win(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retrain, "NOISE", 100.0)  # all are as good as the best
    monkeypatch.setattr(retrain, "SAME_COST", 1e9)
    asked: dict[str, Any] = {"retrain": 2, "baseline": "plain", "pick": "sensible"}
    folder = finished(tmp_path / "run", numbers=LONG, **asked)
    won, known = read_winner(folder), read_front(folder)
    assert won in {one.entry.id for one in known.baselines} - {one.id for one in known.entries}
    state = read_state(folder, thorough=True)
    assert (state.picked, state.summary, state.problems) == (won, "finished", ())
    trained = {state.left, *(one.entry.id for one in known.baselines)}
    assert {one["id"] for one in state.retrained} == trained and state.left != won
    told = Duration((StageDuration(TRAINED, "Retrain", "three networks", 30.0),))
    taken = replace(state, duration=told).told.taken
    assert taken.keys() == {f"{RETRAIN}{one}" for one in trained}
    assert replace(read_contents(folder), duration=told).told.taken == taken
    said = [one.sentence for one in state.comparisons(folder.spec)]
    assert any(text.startswith("The winner is a plain network") for text in said)
    page = (folder.path / "report.html").read_text("utf-8")
    assert f'href="#network-{won}"' not in page and "The winner is a plain network" in page
    table = nas.results.open(folder.path).networks
    assert list(table.index[table["picked"]]) == [won]
    contents = read_contents(folder)
    seen = {one.id for one in (*contents.observed, *contents.verified, *contents.population)}
    assert any(one.entry.id not in seen for one in known.baselines)
    for one in known.baselines:
        assert table.loc[one.entry.id, "retrained"]
        assert (table.loc[one.entry.id, "source"] == "baseline") == (one.entry.id not in seen)
    assert choose_trained(folder, None) == won


def test_a_pick_that_nothing_meets_keeps_no_report_away(tmp_path: Path) -> None:
    spec = spec_of(tmp_path / "spec", numbers=LONG, retrain=3, pick="quality<=0.0001")
    folder = RunFolder.create(tmp_path / "run", spec)
    with pytest.raises(UsageError, match="quality"):
        work(folder)
    assert folder.has("report.html") and folder.read_journal("halving.jsonl") == []
    state = read_state(folder, thorough=True)
    assert state.problems == () and "nas retrain with another --pick" in state.unpicked
