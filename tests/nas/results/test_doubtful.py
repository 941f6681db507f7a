"""Latencies that should not be believed say so wherever they are told."""

from __future__ import annotations

import csv
import io
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from latency.predictor import PredictorReport
from nas.console.app import app
from nas.report.page import render
from nas.request.spec import Start
from nas.results.contents import RunContents
from nas.results.model_card import gather_facts
from nas.results.partial_front import partial_front
from nas.results.reader import read_contents
from nas.run.folder import RunFolder
from nas.search.doubtful import (
    doubtful_sentence,
    key,
    predictions_off,
    predictor_off,
    unlike_the_others,
)
from nas.search.front import FrontEntry, read_front
from search_spaces.wording import of_commands
from service.api.run_cache import read_run
from service.client_commands import _show
from service.dashboard.network_views import network_views
from service.dashboard.run_views import choice_table, evidence, front_charts
from tests.support import cli_fakes, report_cases, service_api_cases
from tests.support.doubtful_cases import WHY, rewrite, with_doubt
from tests.support.report_cases import trace, words_of
from tests.support.run_fixture import finished_run
from tests.support.service_cases import Server

finished, run = report_cases.finished, report_cases.run
server, alice = service_api_cases.server, service_api_cases.alice


def nas(*arguments: str) -> str:
    done = CliRunner().invoke(app, arguments, env={"COLUMNS": "200"})
    assert done.exit_code == 0, done.output
    return done.stdout


# -- the terminal ---------------------------------------------------------------------------------


def test_what_is_not_believed_is_marked_in_tables(run: RunFolder) -> None:
    plain = nas("show", str(run.path))
    assert "?" not in plain and "doubtful" not in plain
    chosen = with_doubt(run)
    value = next(e for e in read_front(run).entries if e.id == chosen).measured["latency_ms"]
    told = nas("show", str(run.path))
    assert told.count(f"{value:.2f} ?") == 2  # on the front, and trained
    assert told.count("doubtful") == 2  # what the mark means, and what follows from it
    assert chosen in told.partition("? doubtful: ")[2].splitlines()[0] and WHY in told


def test_a_doubtful_latency_is_marked_where_networks_are_picked(run: RunFolder) -> None:
    chosen = with_doubt(run)
    steps = nas("show", str(run.path), "--pick")
    assert steps.count(" ?") == 1 and steps.count("? doubtful: ") == 1
    alone = nas("show", str(run.path), "--pick", chosen)
    assert alone.count(" ?") == 2 and alone.count("? doubtful: ") == 1  # picked, and among all


def test_scripts_are_told_as_well(run: RunFolder) -> None:
    chosen = with_doubt(run)
    told = json.loads(nas("show", str(run.path), "--json"))["front"]
    assert {e["id"]: e["doubtful"] for e in told if e["doubtful"]} == {chosen: {"latency_ms": WHY}}
    picked = json.loads(nas("show", str(run.path), "--pick", chosen, "--json"))["picked"]
    assert picked["doubtful"] == {"latency_ms": WHY}


def test_a_search_ends_with_a_warning_about_its_winner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    cli_fakes.install(monkeypatch)
    sure = cli_fakes.entries

    def entries(timed: bool) -> list[FrontEntry]:
        return [replace(one, doubtful={"latency_ms": WHY}) for one in sure(timed)]

    monkeypatch.setattr(cli_fakes, "entries", entries)
    told = nas("search", "--space", "digits", "--out", "r", "--pick", "best")
    (warning,) = [line for line in told.splitlines() if line.startswith("Warning")]
    assert cli_fakes.LARGE.id in warning and WHY in warning
    assert told.count(" ?") == 4 and "? doubtful: 3 networks were" in told


def test_the_client_of_a_service_marks_them_too(
    run: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    chosen = with_doubt(run)
    for final in (True, False):
        _show({**run.read_json("pareto.json"), "final": final})
        told = capsys.readouterr().out
        assert ("?" if final else "(doubtful)") in told and f"({chosen}: " in told


# -- pages ----------------------------------------------------------------------------------------


def test_the_report_marks_a_doubtful_latency(run: RunFolder) -> None:
    assert "doubtful" not in words_of(render(read_contents(run)))
    chosen = with_doubt(run)
    page = render(read_contents(run))
    entry = next(e for e in read_front(run).entries if e.id == chosen)
    mark = '<span title="doubtful: only 1 of 5 sessions were calm: others kept 2 of &lt;3&gt; '
    assert page.count(mark) == 2  # in the table and at its picture
    assert f"{entry.measured['latency_ms']:.3f} ?" in words_of(page)
    assert words_of(page).count("? doubtful: 1 network was not timed reliably") == 1
    points = trace(page, "front-latency_ms", "front, measured")
    hover = dict(zip(points["customdata"], points["text"], strict=True))
    assert "(doubtful: only 1 of 5" in hover[chosen] and "&lt;3&gt;" in hover[chosen]
    assert sum("doubtful" in text for text in hover.values()) == 1


def test_the_dashboard_marks_a_doubtful_latency(run: RunFolder) -> None:
    chosen = with_doubt(run)
    view = read_run(run)
    assert "? doubtful: 1 network" in words_of(choice_table(view, "0" * 20))
    (shown,) = network_views(view, [chosen])
    assert shown.card.count('title="doubtful: ') == 2 and "? doubtful: " in words_of(shown.card)
    other = next(entry for entry in view.found.entries if entry.id != chosen)
    assert "doubtful" not in network_views(view, [other.id])[0].card


def off(run: RunContents, mape: float) -> RunContents:
    report = run.predictors["latency_ms"]
    assert isinstance(report, PredictorReport)
    score = replace(report.candidates[report.chosen], mape=mape)
    candidates = {**report.candidates, report.chosen: score}
    return replace(run, predictors={"latency_ms": replace(report, candidates=candidates)})


def test_a_predictor_that_is_far_off_warns_on_pages(run: RunFolder) -> None:
    contents = read_contents(run)
    said = "the search cannot tell fast networks from slow ones"
    assert said not in render(off(contents, 0.5))
    page = words_of(render(off(contents, 0.51)))
    assert page.count(said) == 2 and "The latency predictor is off by 51%" in page
    assert "timed anew (nas resume RUN --retime)" in of_commands(page)
    assert page.index(said) < page.index("The Pareto front")
    view = replace(read_run(run), contents=off(contents, 0.51))
    assert said in front_charts(view) and said in evidence(view)
    empty = replace(view, contents=replace(view.contents, front=None))
    assert said in front_charts(empty) and "of no network was measured" in front_charts(empty)


def test_predictions_that_do_not_hold_warn_on_pages(run: RunFolder) -> None:
    contents = read_contents(run)
    wrong = tuple(
        replace(e, predicted={**e.predicted, "latency_ms": 1.6 * e.measured["latency_ms"]})
        for e in contents.verified
    )
    page = words_of(render(replace(contents, verified=wrong)))
    assert page.count("off by 60% in the median from what was predicted") == 2


def test_the_sentences() -> None:
    assert doubtful_sentence([]) is None and key([]) is None and predictions_off([]) is None
    assert "nas profile --retime" in str(predictor_off(0.9, "see nas profile --retime"))
    assert unlike_the_others("latency", [], 40) is None
    note = unlike_the_others("latency", [(f"n{i}", 12.34, 4.1) for i in range(6)], 40)
    assert note is not None and not note.loud and len(note.details["unexpected"]) == 6
    assert "6 of 40" in note.message and "n4 12.3 ms instead of 4.1, …" in note.message


# -- what reads a run -----------------------------------------------------------------------------


def live(path: Path, **values: Any) -> RunFolder:
    """A run that has no front yet."""
    folder = finished_run(path, **values)
    (folder.path / "pareto.json").unlink()
    return folder


def test_what_is_doubtful_is_read_from_every_file(tmp_path: Path) -> None:
    folder = live(tmp_path / "run")
    contents = read_contents(folder)
    timed = next(e for e in contents.observed if "latency_ms" in e.measured)
    file = folder.path / "latency" / "profile.jsonl"
    header, *lines = [json.loads(line) for line in file.read_text().splitlines()]
    for line in lines:
        if line["id"] == timed.id:
            line["measurement"]["doubtful"] = WHY
    rewrite(file, [header, *lines])
    held = contents.verified[0]
    told = {"id": held.id, "latency_ms": 9.5, "latency_upper_ms": 11.0, "sessions": 8}
    folder.append("holding.jsonl", [{"networks": [{**told, "doubtful": "noise"}]}])
    after = read_contents(folder)
    assert {e.id: e.doubtful for e in after.observed if e.doubtful} == {
        timed.id: {"latency_ms": WHY}
    }
    (entry,) = [e for e in after.verified if e.doubtful]
    assert (entry.id, entry.doubtful) == (held.id, {"latency_ms": "noise"})
    assert entry.measured["latency_ms"] == 9.5 and entry.measured["latency_upper_ms"] == 11.0


def test_what_is_timed_in_sessions_clears_a_doubt(tmp_path: Path) -> None:
    folder = live(tmp_path / "run")
    first = read_contents(folder).verified[0]
    file = folder.path / "verification.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    lines[0]["doubtful"] = {"latency_ms": WHY}
    rewrite(file, lines)
    assert read_contents(folder).verified[0].doubtful == {"latency_ms": WHY}
    told = {"id": first.id, "latency_ms": 9.5, "latency_upper_ms": 11.0, "sessions": 8}
    folder.append("holding.jsonl", [{"networks": [told]}])
    assert read_contents(folder).verified[0].doubtful == {}


def begun_with(folder: RunFolder, entry: FrontEntry) -> RunFolder:
    """The run as if a search for many tokens per second had begun with a network of its space."""
    start = Start(folder="/models/tiny", digest="0" * 64)
    update = {"start": start, "limits": {"tokens_per_s": 1.0}}
    order = range(len(entry.architecture.encoder.layers))  # type: ignore[union-attr]
    told = {"id": entry.id, "architecture": entry.architecture.to_json(), "layer_order": [*order]}
    folder.write_json("inherited/baseline.json", {**told, "values": {"quality": 0.01}})
    return RunFolder(folder.path, folder.spec.model_copy(update=update))


def test_the_checkpoint_has_the_times_of_its_sessions(tmp_path: Path) -> None:
    folder = live(tmp_path / "run")
    file = folder.path / "verification.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    lines[0]["doubtful"] = {"latency_ms": WHY}
    lines[0]["measured"]["decode_ms"] = 5.0
    rewrite(file, lines)
    folder = begun_with(folder, read_contents(folder).verified[0])
    before = read_contents(folder).origin
    assert before is not None and before.entry.doubtful == {"latency_ms": WHY}
    sessions = {"id": before.entry.id, "sessions": 8}
    told = [
        {**sessions, "latency_ms": 9.5, "latency_upper_ms": 11.0},
        {**sessions, "decode_ms": 4.0, "decode_upper_ms": 4.5},
    ]
    folder.append("holding.jsonl", [{"networks": told}])
    contents = read_contents(folder)
    assert contents.origin is not None and contents.origin.entry.doubtful == {}
    after, verified = contents.origin.entry.measured, contents.verified[0].measured
    assert (after["quality"], after["latency_ms"], after["decode_ms"]) == (0.01, 9.5, 4.0)
    rate = "tokens_per_s"
    assert after[rate] == verified[rate] == pytest.approx(1.25 * before.entry.measured[rate])


def test_the_checkpoint_has_a_rate_before_it_is_verified(tmp_path: Path) -> None:
    folder = live(tmp_path / "run")
    timed = next(e for e in read_contents(folder).observed if "latency_ms" in e.measured)
    (folder.path / "decode").mkdir()
    shutil.copy(folder.path / "latency" / "profile.jsonl", folder.path / "decode")
    origin = read_contents(begun_with(folder, timed)).origin
    assert origin is not None and "tokens_per_s" in origin.entry.measured


@pytest.mark.parametrize(("limit_ms", "stays"), [(1e6, True), (2.0, False)])
def test_a_doubtful_value_keeps_only_a_far_limit_while_a_search_goes_on(
    tmp_path: Path, limit_ms: float, stays: bool
) -> None:
    folder = live(tmp_path / "run", limits={"latency_ms": limit_ms})
    before = partial_front(read_contents(folder)).entries
    verified = {one.id for one in read_contents(folder).verified}
    chosen = next(one for one in before if one.id in verified)
    assert 2.0 / 3 < chosen.measured["latency_ms"] < 2.0
    file = folder.path / "verification.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    for line in lines:
        if line["id"] == chosen.id:
            line["doubtful"] = {"latency_ms": WHY}
    rewrite(file, lines)
    after = {one.id for one in partial_front(read_contents(folder)).entries}
    assert (chosen.id in after) is stays


# -- elsewhere ------------------------------------------------------------------------------------


def test_the_api_tells_of_doubt(server: Server, alice: httpx.Client) -> None:
    job = server.finished(alice)
    folder = RunFolder.open(server.settings.runs / job)
    chosen = with_doubt(folder)
    told = alice.get(f"/jobs/{job}/front").json()["front"]
    assert {e["id"]: e["doubtful"] for e in told if e["doubtful"]} == {chosen: {"latency_ms": WHY}}
    one = alice.get(f"/jobs/{job}/architectures/{chosen}").json()
    assert one["doubtful"] == {"latency_ms": WHY}
    text = alice.get(f"/jobs/{job}/front", params={"format": "csv"}).text
    rows = {row["id"]: row["doubtful"] for row in csv.DictReader(io.StringIO(text))}
    assert rows[chosen] == "latency_ms" and set(rows.values()) == {"", "latency_ms"}


def test_an_export_tells_of_doubt(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    run.write_json("data.json", {"dataset": "digits", "digest": "0"})
    chosen = with_doubt(run)
    entry = next(e for e in read_front(run).entries if e.id == chosen)
    latency = gather_facts(run, entry.architecture, inherited=True)["latency"]
    assert latency["doubtful"] == WHY
    other = next(e for e in read_front(run).entries if e.id != chosen)
    assert "doubtful" not in gather_facts(run, other.architecture, inherited=True)["latency"]
