"""No string of somebody else is ever read as markup, steers a terminal or ends a command."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from nas.console import plugins
from nas.console.app import app
from nas.console.listeners.results import stage_results
from nas.console.output import err, out, print_json, say, tell, tell_error
from nas.console.tables import WrappingText, table
from nas.report.charts import bars, chart, hover
from nas.report.markup import Html
from nas.report.page import render
from nas.results.comparison import ComparedRun, compare_runs
from nas.results.reader import read_contents
from nas.run.folder import RunFolder
from service.dashboard.compare_views import fronts_drawing
from tests.support import run_fixture
from tests.support.cli_fakes import own_entry_points
from tests.support.report_cases import charts
from tests.support.service_cases import SMOKE, Server

# A tag that was never opened ends rich's parser, one that is opened swallows text, and the last
# ones clear a screen, turn the direction of reading, and cannot be encoded.
MARKUP = "bug [/bold] x"
HOSTILE = [MARKUP, "[red]x[/red]", "[link=file:///]a", ":boom: [/]", "\\[b]", "[[/]]"]
STEERING = ["\x1b[2Jgone", "\x9b31mred", "\u202egnp.exe", "\udcff"]
COMMANDS = own_entry_points()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("home")) as running:
        yield running


@pytest.fixture
def shell(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugins, "entry_points", lambda group: COMMANDS)
    monkeypatch.setenv("NAS_SERVER", server.url)
    monkeypatch.setenv("NAS_TOKEN", server.token("alice"))
    monkeypatch.setenv("NAS_HOME", str(server.settings.home))
    monkeypatch.setenv("COLUMNS", "300")


def nas(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments)


@pytest.mark.parametrize("text", HOSTILE)
def test_markup_is_printed_as_it_is(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    made = table(text, [text, "other"], whole=[text], spare=["other"])
    made.add_row(text, WrappingText(text))
    for console in (out(), err()):
        console.print(made)
        console.print(text)
    say(text)
    tell(text, "yellow")
    tell_error(text)
    told = capsys.readouterr()
    assert told.out.count(text) == 6
    assert told.err.count(text) == 7


@pytest.mark.parametrize("text", STEERING)
def test_nothing_steers_the_terminal(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    made = table(text, [text, "other"])
    made.add_row(text, WrappingText(text))
    out().print(made)
    say(text)
    tell_error(text)
    print_json({"title": text})
    told = "".join(capsys.readouterr())
    assert text[0] not in told
    assert "\ufffd" + text[1:] in told
    assert json.loads(told[told.index("{") : told.index("}") + 1]) == {"title": text}


@pytest.mark.usefixtures("shell")
@pytest.mark.parametrize("title", HOSTILE)
def test_a_title_is_listed_as_it_is(server: Server, title: str) -> None:
    answer = server.client("alice").post("/jobs", json={**SMOKE, "title": title})
    job = answer.json()["id"]
    for arguments in (("jobs",), ("jobs", "--text", title)):
        listed = nas(*arguments)
        assert listed.exit_code == 0, listed.stderr
        assert title in listed.stdout
    assert json.loads(nas("jobs", "--json").stdout)[0]["title"] == title
    assert nas("cancel", job).exit_code == 0


@pytest.mark.usefixtures("shell")
@pytest.mark.parametrize(
    "arguments",
    [
        ("jobs", "--space", MARKUP),
        ("jobs", "--state", MARKUP),
        ("submit", "--space", MARKUP),
        ("submit", "--space", f"./{MARKUP}.toml"),
        ("submit", "--space", "digits", "--preset", MARKUP),
        ("submit", "--space", "digits", "--limit", MARKUP),
        ("submit", "--space", "digits", "--set", f"{MARKUP}=1"),
        ("watch", MARKUP),
        ("show", MARKUP),
        ("report", MARKUP),
        ("search", "--space", MARKUP),
        ("search", "--space", "digits", "--preset", MARKUP),
        ("space", "show", MARKUP),
        ("space", "check", MARKUP),
        ("cost", "--space", "digits", "--arch", MARKUP),
        ("token", "revoke", MARKUP),
        ("evaluate", MARKUP),
        ("verify", MARKUP),
        (MARKUP,),
    ],
)
def test_what_is_wrong_names_it_as_it_is(arguments: tuple[str, ...]) -> None:
    told = nas(*arguments)
    assert told.exit_code in (1, 2)
    assert "bug [/bold] x" in told.stderr
    assert "should not have happened" not in told.stderr
    assert not isinstance(told.exception, Exception)


@pytest.mark.parametrize("text", HOSTILE)
def test_a_run_is_shown_whatever_its_files_say(text: str, tmp_path: Path) -> None:
    parent = tmp_path / text.replace("/", "|")
    folder = run_fixture.finished_run(parent / "run")
    path = ("front", 0, "id")
    run_fixture.rewrite(folder, "pareto.json", path, text)
    failed = {"id": "1" * 12, "failed": {"kind": "error", "reason": text, "tries": 1}}
    network = folder.read_journal("observations.jsonl")[0]["architecture"]
    folder.append("observations.jsonl", [{**failed, "architecture": network}])
    shown = nas("show", str(folder.path))
    assert shown.exit_code == 0, shown.stderr
    assert shown.stdout.count(text) >= 2
    listed = nas("runs", "--dir", str(parent))
    assert listed.exit_code == 0, listed.stderr
    assert parent.name in listed.stdout
    assert nas("show", str(folder.path), "--pick").exit_code == 0


def test_a_failure_in_a_run_is_told_as_it_is(tmp_path: Path) -> None:
    folder = run_fixture.finished_run(tmp_path / "run")
    (folder.path / "stages" / "evolve.json").write_text('{"[/bold]": 1}', "utf-8")
    shown = nas("show", str(RunFolder.open(folder.path).path))
    assert shown.exit_code == 0
    assert "[/bold]" in shown.stderr


# -- charts -------------------------------------------------------------------------------------


def test_plotly_gets_no_markup_but_ours() -> None:
    text = "<b>1 & 2</b>"
    trace = {"name": text, "text": [text, Html("<br>")], "hovertemplate": hover("%{y}", text)}
    layout = {"title": {"text": text}}
    drawn = chart(
        "one", [trace | {"customdata": [text]}, bars([text], [1.0], [text], "red")], layout, text
    )
    made = json.loads(re.search(r">({.*})</script>", drawn)[1])
    safe = "&lt;b&gt;1 &amp; 2&lt;/b&gt;"
    first, second = made["data"]
    assert first == {
        "name": safe,
        "text": [safe, "<br>"],
        "hovertemplate": f"%{{y}}<extra>{safe}</extra>",
        "customdata": [text],
    }
    assert second["y"] == second["text"] == [safe]
    assert made["layout"] == {"title": {"text": safe}}


def test_the_legend_shows_a_title_as_it_is(tmp_path: Path) -> None:
    contents = read_contents(run_fixture.finished_run(tmp_path / "run"))
    drawn = charts(fronts_drawing(compare_runs([ComparedRun("<b>R&D</b> 'x'", contents, None)])))
    names = {trace.get("name") for one in drawn.values() for trace in one["data"]}
    assert "1. &lt;b&gt;R&amp;D&lt;/b&gt; 'x'" in names


def test_a_network_with_a_tag_for_an_id_is_no_tag_in_a_report(tmp_path: Path) -> None:
    folder = run_fixture.finished_run(tmp_path / "run")
    run_fixture.rewrite(folder, "pareto.json", ("front", 0, "id"), "<img src=x>&")
    page = render(read_contents(folder))
    assert "<img src=x>" not in page
    texts = [
        text
        for one in charts(page).values()
        for trace in one["data"]
        for text in trace.get("text", ())
    ]
    assert any(text.startswith("<b>&lt;img src=x&gt;&amp;</b>") for text in texts)
    assert not any("<img" in text for text in texts)


def test_what_is_logged_is_no_markup(tmp_path: Path) -> None:
    folder = run_fixture.finished_run(tmp_path / "run")
    run_fixture.rewrite(folder, "pareto.json", ("front", 0, "id"), "a|b <img src=x>")
    logged = stage_results(folder, "front").texts["front"]
    assert "| a\\|b &lt;img src=x&gt; |" in logged
    assert "--- | ---" in logged


def test_only_one_module_makes_consoles() -> None:
    root = Path(__file__).resolve().parents[2]
    for package in ("nas", "service", "latency", "supernet", "search_spaces"):
        for file in (root / package).rglob("*.py"):
            makes = re.search(
                r"rich\.(print|console import .*\bConsole\b)", file.read_text("utf-8")
            )
            known = ("output.py", "progress.py", "tables.py")
            assert not makes or file.name in known, file
