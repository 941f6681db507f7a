"""What README and the other documents name is there: commands, options, files, the space."""

from __future__ import annotations

import importlib.util
import itertools
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from nas.cli import plugins
from nas.cli.app import app
from nas.cli.options import read_settings
from nas.request.presets import PRESETS, budget_for
from nas.run.stages import SEARCH_STAGES
from search_spaces.errors import SpaceFileError
from search_spaces.loading import load_space, space_names
from tests.cli_fakes import own_entry_points

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = [
    *("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "experiments/LOG.md"),
    *(f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md"))),
]
FOLDERS = {path.name for path in ROOT.iterdir() if path.is_dir() and path.name[0] != "."}
# Words that stand for something of the reader's.
PLACEHOLDERS = re.compile(r"\b(RUN|ID|NAME|FILE|DIR|SPACE|PRESET|VALUE)\b|[*…]")


@pytest.fixture(autouse=True)
def service_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    """The commands that our own packages plug in, also where nothing is installed."""
    points = own_entry_points()
    monkeypatch.setattr(plugins, "entry_points", lambda group: points)


def text_of(document: str) -> str:
    return (ROOT / document).read_text("utf-8")


def blocks(text: str, language: str) -> list[str]:
    """The contents of the fenced blocks of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)


def commands(text: str, program: str) -> list[str]:
    """Every call of a program, in blocks and in the middle of sentences."""
    text = re.sub(r" *\\\n *", " ", text)  # a call on several lines
    lines = [line.strip() for block in blocks(text, "sh") for line in block.splitlines()]
    lines += [line.strip() for line in text.splitlines() if line.startswith("    ")]
    lines += re.findall(r"`([^`\n]+)`", text.replace("```", ""))
    return [line for line in lines if line.startswith(program + " ")]


def mistakes(line: str) -> Iterator[str]:
    """What is wrong with a call of `nas`: the command, an option, or the value of one."""
    words = shlex.split(line, comments=True)[1:]
    command: Any = typer.main.get_command(app)
    while words and hasattr(command, "commands"):
        if words[0].startswith("-"):
            break
        word = words.pop(0)
        found = command.get_command(None, word)
        if found is None:
            # Prose such as `nas space list | show NAME` or `nas …` names no single command.
            yield from () if PLACEHOLDERS.search(word) else [f"{line}: no command {word}"]
            return
        command = found
    known = {option for one in command.params for option in one.opts} | {"--help"}
    yield from (f"{line}: no option {w}" for w in words if w.startswith("-") and w not in known)
    for option, value in itertools.pairwise(words):
        if not PLACEHOLDERS.search(value) and not _fits(option, value):
            yield f"{line}: {option} cannot be {value}"


def _fits(option: str, value: str) -> bool:
    if option == "--space":
        return value in space_names() or value.endswith(".toml")
    if option == "--set":
        return bool(read_settings([value]))
    return option != "--preset" or value in PRESETS


def missing_files(document: str) -> list[str]:
    """Links and paths of a document that lead nowhere."""
    text = text_of(document)
    links = re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", text)
    paths = [p.rstrip("/") for p in re.findall(r"`([\w.]+/[\w./-]+)`", text)]
    named = [p for p in paths if p.split("/")[0] in FOLDERS and not PLACEHOLDERS.search(p)]
    beside = (ROOT / document).parent
    gone = [link for link in links if not (beside / link).exists()]
    # A run folder has a folder `supernet` as well.
    kept = {file for stage in SEARCH_STAGES for file in stage.files}
    return gone + [p for p in named if p not in kept and not (ROOT / p).exists()]


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_named_command_and_option_exists(document: str) -> None:
    found = [wrong for line in commands(text_of(document), "nas") for wrong in mistakes(line)]
    assert found == []


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_named_file_exists(document: str) -> None:
    assert missing_files(document) == []


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_named_target_and_study_exists(document: str) -> None:
    text, makefile = text_of(document), text_of("Makefile")
    for line in commands(text, "make"):
        targets = [word for word in shlex.split(line, comments=True)[1:] if "=" not in word]
        assert all(re.search(rf"^{word}:", makefile, flags=re.MULTILINE) for word in targets), line
    gone = re.findall(r"^\| `(\w+)` \| gone", text_of("experiments/LOG.md"), flags=re.MULTILINE)
    for study in set(re.findall(r"python -m experiments\.([a-z_]+)", text)) - set(gone):
        assert importlib.util.find_spec(f"experiments.{study}"), study


@pytest.mark.parametrize(
    "line",
    [
        "nas serch --space digits",
        "nas search --spaces digits",
        "nas search --space digit",
        "nas space sho digits",
        "nas search --preset fast",
    ],
)
def test_a_wrong_command_is_noticed(line: str) -> None:
    assert list(mistakes(line)) != []


def test_readme_shows_every_command() -> None:
    group: Any = typer.main.get_command(app)
    lines = " ".join(commands(text_of("README.md"), "nas"))
    assert [name for name in group.list_commands(None) if f"nas {name}" not in lines] == []


def test_the_space_of_the_readme_is_complete(tmp_path: Path) -> None:
    (text,) = blocks(text_of("README.md"), "toml")
    file = tmp_path / "mine.toml"
    file.write_text(text, encoding="utf-8")
    space = load_space(str(file))
    assert space.size > 1000
    assert {budget_for(space, preset, {}).supernet.epochs for preset in PRESETS} >= {40}


def test_the_space_of_the_readme_with_a_slip_is_refused(tmp_path: Path) -> None:
    (text,) = blocks(text_of("README.md"), "toml")
    file = tmp_path / "mine.toml"
    file.write_text(text.replace("num_heads = [1, 2]", 'num_heads = [1, "2"]'), encoding="utf-8")
    with pytest.raises(SpaceFileError, match=r"line \d+, encoder.num_heads"):
        load_space(str(file))
