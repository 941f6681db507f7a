"""What README and the other documents name is there: commands, options, files, the space."""

from __future__ import annotations

import importlib.util
import itertools
import re
import shlex
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer

from nas.console import plugins
from nas.console.app import app
from nas.request.presets import PRESETS, budget_for, check_setting
from nas.run.stages import SEARCH_STAGES
from search_spaces.architecture import ATTENTION_KINDS, SKIP
from search_spaces.errors import SpaceFileError
from search_spaces.loading import load_space, space_names
from search_spaces.notation import NOTHING, from_text
from search_spaces.tasks import TASKS
from tests.support.cli_fakes import own_entry_points

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = [
    *("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md"),
    *("experiments/LOG.md", "experiments/RESULTS.md"),
    *(str(path.relative_to(ROOT)) for path in sorted((ROOT / "docs").rglob("*.md"))),
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


@cache
def whole_command() -> Any:
    """The command with all that is plugged in, made once: that takes long."""
    return typer.main.get_command(app)


def mistakes(line: str) -> Iterator[str]:
    """What is wrong with a call of `nas`: the command, an option, or the value of one."""
    words = shlex.split(line, comments=True)[1:]
    command: Any = whole_command()
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
        return bool(check_setting(value.partition("=")[0]))
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


def missing_tests(document: str) -> list[str]:
    """Tests that a document names and that pytest would not find under that name."""
    named = re.findall(r"`(tests/[\w./-]+\.py)::(\w+::)?(\w+)`", text_of(document))
    texts = {file: text_of(file) if (ROOT / file).exists() else "" for file, *_ in named}
    missing = []
    for file, group, name in named:
        start = f"class {group[:-2]}:\n(?:.*\n)*?    " if group else ""
        if not re.search(rf"^{start}def {name}\(", texts[file], re.MULTILINE):
            missing.append(f"{file}::{group}{name}")
    return missing


def test_every_fault_that_was_found_has_its_test() -> None:
    assert missing_tests("docs/faults.md") == []
    assert text_of("docs/faults.md").count(".py::test_") > 50


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


def test_the_readme_is_short() -> None:
    assert len(text_of("README.md").split()) <= 1200


def test_readme_and_guide_show_every_command() -> None:
    group: Any = typer.main.get_command(app)
    pages = [page for page in DOCUMENTS if page == "README.md" or page.startswith("docs/guide/")]
    lines = " ".join(line for page in pages for line in commands(text_of(page), "nas"))
    assert [name for name in group.list_commands(None) if f"nas {name}" not in lines] == []


SPACES = blocks(text_of("docs/guide/spaces.md"), "toml")


@pytest.mark.parametrize("text", SPACES)
def test_the_spaces_of_the_guide_are_complete(text: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(text, encoding="utf-8")
    space = load_space(str(file))
    assert space.size > 100
    assert all(budget_for(space, preset, {}).supernet for preset in PRESETS)


def test_the_guide_has_a_space_for_each_task() -> None:
    tasks = [tomllib.loads(text)["space"]["task"] for text in SPACES]
    # Spaces that embed are made around a checkpoint, by nas space from.
    assert set(tasks) == TASKS.keys() - {"embedding"} and tasks.count("classification") == 2


def test_the_glossary_has_ten_words() -> None:
    rows = re.findall(r"^\| (?!word |-)", text_of("docs/guide/glossary.md"), flags=re.MULTILINE)
    assert len(rows) == 10


def test_a_space_of_the_guide_with_a_slip_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    slip = SPACES[0].replace("num_heads = [1, 2]", 'num_heads = [1, "2"]')
    file.write_text(slip, encoding="utf-8")
    with pytest.raises(SpaceFileError, match=r"line \d+, encoder.num_heads"):
        load_space(str(file))


def test_a_network_as_one_line_is_told_whole() -> None:
    text = text_of("docs/fairseq.md")
    for kind in ATTENTION_KINDS:
        assert (f"`{NOTHING}/1024`" if kind == SKIP else f"`{kind[0]}`{kind[1:]}") in text
    (line,) = re.findall(r"`(w\[[^`]*)`", text)
    assert len(from_text(f"D64: {line} {NOTHING}/1024").decoder.layers) == 3  # type: ignore[union-attr]


def test_how_long_ray_waits_for_a_rank_is_told() -> None:
    named = re.findall(r'"(RAY_\w+)", (\d+)', text_of("nas/executors/ray_group.py"))
    assert named and all(
        f"{seconds} s (`{name}`" in text_of("docs/cluster.md") for name, seconds in named
    )


def test_every_result_leads_into_the_log() -> None:
    titles = re.findall(r"^## (.*)$", text_of("experiments/LOG.md"), flags=re.MULTILINE)
    anchors = {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}
    rows = re.findall(r"^\| (?!claim|-).*$", text_of("experiments/RESULTS.md"), flags=re.MULTILINE)
    links = [re.findall(r"LOG\.md#([^)]+)", row) for row in rows]
    assert rows and all(len(found) == 1 and found[0] in anchors for found in links)
