"""The command itself: help, version, completion, plug-ins, and what starting it loads."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from nas import version
from nas.console import options, plugins
from nas.console.app import app
from search_spaces import dump_space, load_space, space_names
from search_spaces.variation import smallest

ROOT = Path(__file__).resolve().parents[3]
COMMANDS = [
    *(["search"], ["resume"], ["retrain"], ["runs"], ["show"], ["report"], ["cost"]),
    *(["space", "list"], ["space", "show"], ["space", "check"], ["cluster", "check"]),
]


def nas(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments)


def process(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "nas.console.app", *arguments],
        cwd=ROOT,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def plugged(monkeypatch: pytest.MonkeyPatch) -> list[EntryPoint]:
    """Entry points that the command will find; empty at first."""
    points: list[EntryPoint] = []
    monkeypatch.setattr(plugins, "entry_points", lambda group: points)
    return points


def point(name: str, value: str) -> EntryPoint:
    return EntryPoint(name, value, plugins.GROUP)


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_help_shows_an_example(command: list[str]) -> None:
    done = nas(*command, "--help")
    assert done.exit_code == 0
    assert "Example" in done.stdout
    assert f"nas {' '.join(command)}" in done.stdout.partition("Example")[2]
    assert nas(*command, "-h").stdout == done.stdout


def test_the_main_help_lists_every_command_and_an_example() -> None:
    text = nas("--help").stdout
    assert all(command[0] in text for command in COMMANDS)
    assert "Example: nas search --space digits" in text
    assert "Example" in nas("space", "--help").stdout


def test_no_command_prints_the_help_and_an_unknown_one_the_nearest() -> None:
    assert nas().exit_code == 2
    assert "search" in nas().output
    done = nas("serch")
    assert done.exit_code == 2
    assert "search" in done.stderr


def test_version(monkeypatch: pytest.MonkeyPatch) -> None:
    assert nas("--version").stdout == f"nas {version()}\n"
    monkeypatch.setattr("importlib.metadata.version", lambda name: f"{name} 9.9")
    assert version() == "nas-service 9.9"


def test_looking_at_spaces_loads_neither_torch_nor_ray(tmp_path: Path) -> None:
    space = load_space("digits")
    (tmp_path / "a.json").write_text(json.dumps(space.decode(smallest(space))[0].to_json()))
    commands = [
        ["--help"],
        ["space", "list"],
        ["space", "show", "digits"],
        ["cost", "--space", "digits", "--arch", str(tmp_path / "a.json")],
        ["runs", "--dir", str(tmp_path)],
        ["search", "--space", "digits", "--limit", "params=1", "--out", str(tmp_path / "r")],
    ]
    code = (
        f"import sys\nfrom nas.console.app import app\nfor arguments in {commands!r}:\n"
        "    try: app(arguments)\n"
        "    except SystemExit: print('loaded', {'torch', 'ray', 'plotly'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    loaded = [line for line in done.stdout.splitlines() if line.startswith("loaded ")]
    assert loaded == ["loaded set()"] * len(commands)


def test_a_reader_who_leaves_is_no_error() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as stdout:
        done = subprocess.run(
            [sys.executable, "-m", "nas.console.app", "space", "list"],
            cwd=ROOT,
            stdout=stdout,
            stderr=subprocess.PIPE,
            check=False,
        )
    assert (done.returncode, done.stderr) == (1, b"")


def test_an_unexpected_error_without_a_run_keeps_its_traceback(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def broken() -> list[str]:
        raise ZeroDivisionError("no space at all")

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("nas.console.commands.spaces.space_names", broken)
    done = nas("space", "list")
    assert done.exit_code == 1
    assert "ZeroDivisionError: no space at all" in done.stderr
    (file,) = tmp_path.iterdir()
    assert str(file) in done.stderr
    assert "Traceback" in file.read_text("utf-8")


def test_a_file_that_may_not_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = nas("search", "--space", "digits", "--out", str(tmp_path / "file" / "run"))
    assert done.exit_code == 1
    assert done.stderr == f"error: {tmp_path / 'file' / 'run'}: not a directory\n"


# -- completion -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("nas sea", {"search"}),
        ("nas space s", {"show"}),
        ("nas search --space wmt", {"wmt14", "wmt14-hat"}),
        ("nas search --preset s", {"smoke", "standard"}),
        ("nas search --device c", {"cpu", "cuda"}),
        ("nas cost --convention m", {"matmul"}),
    ],
)
def test_the_shell_completes(line: str, found: set[str]) -> None:
    words = {"COMP_WORDS": line, "COMP_CWORD": str(len(line.split()) - 1)}
    asked = {"_NAS_COMPLETE": "complete_bash", **words}
    done = CliRunner().invoke(app, [], prog_name="nas", env=asked)
    assert set(done.stdout.split()) == found, done.stderr


def test_completions_of_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("runs/one", "two"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "spec.json").touch()
    (tmp_path / "mine.toml").touch()
    assert options.complete_space("") == [*space_names(), "./mine.toml", "mine.toml"]
    assert options.complete_run("") == ["runs/one", "two"]
    assert options.complete_run("t") == ["two"]
    assert options.complete_setting("supernet.em") == ["supernet.ema_decay="]
    assert options.complete_limit("p") == [
        "prefill_ms=",
        "params=",
        "peak_memory_mb=",
    ]
    assert "quality,flops" in options.complete_objectives("q")
    assert options.complete_pick("kn") == ["knee"]


# -- plug-ins -------------------------------------------------------------------------------------


def hello(name: str = "you") -> None:
    """Say hello."""
    typer.echo(f"hello {name}")


greetings = typer.Typer(help="Say many things.")
greetings.command("hello")(hello)
greetings.command("bye")(lambda: None)


def test_a_function_and_a_group_become_commands(plugged: list[EntryPoint]) -> None:
    plugged += [point("greet", f"{__name__}:hello"), point("say", f"{__name__}:greetings")]
    assert nas("greet", "--name", "me").stdout == "hello me\n"
    assert nas("say", "hello").stdout == "hello you\n"
    text = nas("--help").stdout
    assert "Say hello." in text
    assert "Say many things." in text


@pytest.mark.parametrize("value", ["no.such.module:app", f"{__name__}:missing", f"{__name__}:ROOT"])
def test_a_broken_plug_in_is_a_warning(plugged: list[EntryPoint], value: str) -> None:
    plugged += [point("broken", value), point("greet", f"{__name__}:hello")]
    done = nas("--help")
    assert done.exit_code == 0
    assert "warning: the command 'broken'" in done.stderr
    assert "greet" in done.stdout
    assert nas("broken").exit_code == 2
    assert nas("space", "list").stderr == ""


def test_a_plug_in_cannot_take_the_place_of_our_command(plugged: list[EntryPoint]) -> None:
    plugged.append(point("runs", f"{__name__}:hello"))
    assert "hello" not in nas("runs", "--dir", "nowhere").stdout


def test_a_plug_in_is_not_loaded_by_other_commands(plugged: list[EntryPoint]) -> None:
    plugged.append(point("heavy", "wave:nothing"))
    sys.modules.pop("wave", None)
    assert nas("space", "list").exit_code == 0
    assert "wave" not in sys.modules
    nas("heavy")
    assert "wave" in sys.modules


# -- the real thing -------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_real_search_ends_with_a_front_and_can_be_shown(tmp_path: Path) -> None:
    out = str(tmp_path / "run")
    request = ("search", "--space", "digits", "--preset", "smoke", "--objectives", "quality,flops")
    done = process(*request, "--out", out, "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    front = json.loads(Path(result["pareto"]).read_text("utf-8"))["front"]
    assert front
    assert "latency_ms" not in json.dumps(front)
    assert Path(result["report"]).stat().st_size > 0
    assert 0 <= result["retrained"][0]["test_accuracy"] <= 1
    shown = json.loads(process("show", out, "--json").stdout)
    assert (shown["state"], len(shown["front"])) == ("finished", len(front))
    again = process(*request, "--out", out)
    assert again.stderr.count("in an earlier session") == len(shown["stages"])


def test_what_the_stream_has_no_character_for_is_a_question_mark() -> None:
    narrow = {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    told = process("space", "show", "digits", **narrow)
    assert told.returncode == 0 and told.stderr == "" and "Presets" in told.stdout
    refused = process("space", "check", "./\N{SNOWMAN}.toml", **narrow)
    assert refused.returncode == 2 and "error: ?.toml: there is no such file" in refused.stderr


def test_json_loses_no_character_to_the_stream(tmp_path: Path) -> None:
    space = replace(load_space("digits"), description="\N{SNOWMAN}")
    (tmp_path / "mine.toml").write_text(dump_space(space), "utf-8")
    told = process("space", "show", str(tmp_path / "mine.toml"), "--json", PYTHONIOENCODING="ascii")
    assert json.loads(told.stdout)["description"] == "\N{SNOWMAN}"
