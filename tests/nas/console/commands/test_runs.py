"""`nas runs`, `nas show` and `nas report`, on finished, unfinished, running and damaged runs."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

from nas.console.app import app
from nas.request import picks
from nas.run.events import Event
from nas.run.folder import RunFolder
from nas.search.front import Baseline, read_front
from tests.support import cli_fakes, run_fixture
from tests.support.cli_fakes import MIDDLE, SMALL


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    cli_fakes.install(monkeypatch)
    return tmp_path


def nas(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments)


def search(folder: str, *arguments: str) -> RunFolder:
    nas("search", "--space", "digits", "--out", folder, *arguments)
    return RunFolder.open(Path(folder))


def shown(folder: str) -> Any:
    return json.loads(nas("show", folder, "--json").stdout)


def listed(*arguments: str) -> Any:
    return json.loads(nas("runs", "--json", *arguments).stdout)


def stop_before(monkeypatch: pytest.MonkeyPatch, stage: str) -> None:
    def run(folder: RunFolder) -> Iterator[Event]:
        for event in cli_fakes.run_search(folder):
            if getattr(event, "stage", "") == stage:
                raise KeyboardInterrupt
            yield event

    cli_fakes.install(monkeypatch, run)


def test_a_finished_run() -> None:
    search("runs/one")
    (row,) = listed()
    assert row["run"] == "runs/one"
    assert (row["space"], row["preset"], row["state"]) == ("digits", "quick", "finished")
    (picked,) = shown("runs/one")["retrained"]
    assert (row["front"], row["picked"]) == (3, picked["id"])
    assert row["test"] == [{"id": picked["id"], "score": "accuracy", "value": 0.975}]
    assert "accuracy 0.9750" in nas("runs").stdout


def test_no_runs(here: Path) -> None:
    assert listed() == []
    assert "nas search --space digits" in nas("runs").stdout
    (here / "runs" / "other").mkdir(parents=True)
    assert listed() == []


def test_runs_of_another_folder() -> None:
    search("elsewhere/two")
    assert listed() == []
    assert [row["run"] for row in listed("--dir", "elsewhere")] == ["elsewhere/two"]


def test_a_stopped_run_tells_where(monkeypatch: pytest.MonkeyPatch) -> None:
    stop_before(monkeypatch, "rank")
    search("runs/one")
    assert listed()[0]["state"] == "stopped at rank"
    done = nas("show", "runs/one")
    assert done.exit_code == 0
    assert "go on with: nas resume runs/one" in done.stdout
    states = {stage["name"]: stage["state"] for stage in shown("one")["stages"]}
    assert states["observe"] == "done"
    assert states["rank"] == states["retrain"] == states["report"] == "to do"


def test_a_run_that_waits_for_its_retraining(monkeypatch: pytest.MonkeyPatch) -> None:
    stop_before(monkeypatch, f"retrain-{MIDDLE.id}")
    search("runs/one", "--pick", MIDDLE.id)
    assert listed()[0]["state"] == f"stopped at retrain-{MIDDLE.id}"
    assert len(shown("one")["front"]) == 3


def test_a_running_run(monkeypatch: pytest.MonkeyPatch) -> None:
    stop_before(monkeypatch, "supernet")
    folder = search("runs/one")
    with folder.locked():
        assert listed()[0]["state"] == "running: supernet"
        assert "go on with" not in nas("show", "one").stdout
    assert listed()[0]["state"] == "stopped at supernet"


def test_latency_is_no_stage_of_a_run_without_it() -> None:
    search("with")
    search("without", "--objectives", "quality,params")
    names = {run: [s["name"] for s in shown(run)["stages"]] for run in ("with", "without")}
    assert "latency" in names["with"]
    assert "latency" not in names["without"]
    assert shown("without")["state"] == "finished"


def test_show_prints_request_stages_front_and_results() -> None:
    search("here", "--limit", "params=2e5", "--seed", "5")
    text = nas("show", "here").stdout
    assert "params ≤ 200000" in text
    assert "quality, latency_ms" in text
    assert SMALL.id in text
    assert "accuracy 0.9750" in text
    assert "1.2 s" in text
    assert "go on with" not in text


def test_show_lists_other_networks_trained_from_scratch() -> None:
    search("here")
    nas("retrain", "here", "--pick", SMALL.id)
    state = shown("here")
    assert {result["id"] for result in state["retrained"]} >= {SMALL.id}
    assert f"retrain-{SMALL.id}" in [stage["name"] for stage in state["stages"]]
    assert state["state"] == "finished"


def test_pick_alone_shows_what_each_step_costs() -> None:
    search("here")
    for done in (nas("show", "here", "--pick"), nas("show", "--pick", "--json", "here")):
        assert done.exit_code == 0
    text = nas("show", "here", "--pick").stdout
    assert all(word in text for word in ("cheapest", "knee", "best", "-33.3", SMALL.id))
    assert "Stages" not in text
    data = json.loads(done.stdout)
    assert data["picked"] is None and len(data["steps"]) == 2
    assert data["landmarks"]["cheapest"] == SMALL.id


def test_the_help_names_all_picks() -> None:
    command: Any = typer.main.get_command(app)
    (pick,) = (one for one in command.commands["show"].params if one.name == "pick")
    assert pick.metavar == f"[{picks.METAVAR}]"


def test_pick_with_conditions_shows_the_network() -> None:
    search("here")
    data = json.loads(nas("show", "here", "--pick", "latency_ms<=7", "--json").stdout)
    assert data["picked"]["id"] == MIDDLE.id
    assert f"nas retrain here --pick {MIDDLE.id}" in nas("show", "here", "--pick=knee").stdout
    done = nas("show", "here", "--pick", "latency_ms<=1")
    assert done.exit_code == 2 and f"the nearest is {SMALL.id}" in done.stderr


def test_features_of_a_run(here: Path) -> None:
    run_fixture.finished_run(here / "made")
    text = nas("show", "made", "--features").stdout
    assert "What decides latency_ms, by layer" in text and "less helps" in text
    data = json.loads(nas("show", "made", "--features", "--json").stdout)
    assert list(data) == ["quality", "latency_ms"]
    assert {"feature", "share", "direction", "means"} == data["quality"]["genes"][0].keys()
    assert nas("show", "made", "--features", "--pick").exit_code == 2


def test_pick_before_there_is_a_front_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    stop_before(monkeypatch, "rank")
    search("here")
    done = nas("show", "here", "--pick")
    assert done.exit_code == 2 and "has no front yet" in done.stderr


def test_a_search_takes_conditions_and_shows_its_front_when_none_meets_them() -> None:
    search("here", "--pick", "latency_ms<=7")
    assert shown("here")["retrained"][0]["id"] == MIDDLE.id
    assert "the nearest is" in nas("search", "--space", "digits", "--pick", "params<=1").stderr
    (run,) = Path("runs").iterdir()
    done = nas("show", str(run))
    assert SMALL.id in done.stdout and "the nearest is" in done.stderr


def test_where_nothing_meets_the_pick_any_network_finishes_the_run() -> None:
    folder = search("my run", "--pick", "params<=1")
    front, record = read_front(folder), folder.record("front")
    assert record is not None
    beside = Baseline(front.entries[0], ("largest",))
    folder.write_json("pareto.json", replace(front, baselines=(beside,)).to_json())
    folder.refresh(record, "pareto.json")
    assert shown("my run")["state"] == "stopped at retrain"
    assert "go on with: nas retrain 'my run' --pick knee" in nas("show", "my run").stdout
    assert nas("retrain", "my run", "--pick", SMALL.id).exit_code == 0
    assert shown("my run")["state"] == "finished"
    assert "go on with" not in nas("show", "my run").stdout


@pytest.mark.parametrize("how", ["params<=x", "memory<=3", "valid_bleu>=30"])
def test_a_pick_that_cannot_be_met_is_refused_before_the_search(how: str, here: Path) -> None:
    done = nas("search", "--space", "digits", "--pick", how, "--out", "here")
    assert done.exit_code == 2 and not (here / "here").exists()


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"schema": 1}', '{"schema": 9}', "nonsense"])
def test_a_damaged_front_is_named_and_the_rest_is_shown(content: str) -> None:
    search("runs/one")
    Path("runs/one/pareto.json").write_text(content, "utf-8")
    done = nas("show", "one")
    assert done.exit_code == 0
    assert "pareto.json" in done.stderr
    assert "supernet" in done.stdout
    assert "damaged at front" in done.stdout
    assert nas("runs").exit_code == 0


def test_a_damaged_result_is_named() -> None:
    folder = search("here")
    (file,) = folder.path.glob("retrained/*/result.json")
    file.write_text("[1]", "utf-8")
    state = shown("here")
    assert state["retrained"] == []
    assert any("result.json" in problem for problem in state["problems"])
    assert state["state"].startswith("damaged at retrain-")


def test_a_damaged_record_is_named() -> None:
    folder = search("here")
    (folder.path / "stages" / "rank.json").write_text("?", "utf-8")
    done = nas("show", "here")
    assert "damaged at rank" in done.stdout
    assert "rank.json is damaged" in done.stderr


def test_a_damaged_spec_has_a_line_among_the_runs() -> None:
    search("runs/one")
    search("runs/two")
    Path("runs/one/spec.json").write_text("{", "utf-8")
    assert [row["state"] for row in listed()] == ["damaged", "finished"]
    assert listed()[0]["test"] == [] and listed()[0]["picked"] is None
    done = nas("show", "runs/one")
    assert done.exit_code == 1
    assert "spec.json is damaged" in done.stderr


def test_report_is_rewritten_and_the_run_stays_whole() -> None:
    folder = search("here")
    before = (folder.path / "report.html").read_bytes()
    done = nas("report", "here")
    assert done.stdout == "here/report.html\n"
    assert (folder.path / "report.html").read_bytes() != before
    assert shown("here")["state"] == "finished"


def test_a_report_that_cannot_be_written_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    search("here")

    def refuse(path: Path, *_: object, **__: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    monkeypatch.setattr(Path, "write_text", refuse)
    done = nas("report", "here")
    assert done.exit_code == 1 and done.stderr.startswith("error: here/report.html: read-only")
    assert "make here writable" in done.stderr and ".tmp" not in done.stderr


def test_a_report_of_a_stopped_run_is_no_finished_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    stop_before(monkeypatch, "evolve")
    search("here")
    assert nas("report", "here").exit_code == 0
    assert shown("here")["state"] == "stopped at evolve"


@pytest.mark.parametrize("command", ["show", "report", "resume", "retrain"])
def test_a_folder_that_is_no_run_is_refused(command: str, here: Path) -> None:
    (here / "thesis").mkdir()
    for name in ("thesis", "nowhere", ""):
        done = nas(command, name)
        assert done.exit_code == 2
        assert "is no run folder" in done.stderr
