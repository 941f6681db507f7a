"""The command `nas data prepare`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from nas.console.app import app
from nas.console.commands.data import shown_on
from nas.console.progress import ProgressReporter
from nas.run.events import Event, Progress, StageFinished, StageStarted
from tests.support.prepare_cases import write_jsonl, write_pairs


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_pairs(tmp_path)
    return tmp_path


def translate(folder: Path, *more: str) -> Result:
    pairs = {"source": "train.en", "target": "train.de", "valid": "valid", "test": "test"}
    given = [word for name, file in pairs.items() for word in (f"--{name}", str(folder / file))]
    given += ["--vocab-size", "150", "--out", str(folder / "out")]
    return CliRunner().invoke(app, ["data", "prepare", "--task", "translation", *given, *more])


def test_prepares_and_tells_what(folder: Path) -> None:
    done = translate(folder)
    assert done.exit_code == 0, done.output
    assert f"prepared: {folder / 'out'}" in done.stdout
    assert all(word in done.stdout for word in ("train", "200", "valid", "test"))
    assert all(label in done.stderr for label in ("Reading", "Vocabulary", "Writing train"))
    assert "already prepared" in translate(folder).stdout


def test_the_search_to_go_on_with_is_told_for_every_task(folder: Path) -> None:
    told = translate(folder).stdout.replace("\n", "")
    assert f"nas search --data {folder / 'out'}" in told
    write_jsonl(folder / "a.jsonl")
    given = ["--task", "classification", "--source", str(folder / "a.jsonl")]
    done = CliRunner().invoke(app, ["data", "prepare", *given, "--out", str(folder / "an out")])
    assert f"nas search --data '{folder / 'an out'}'" in done.stdout


def test_quiet_prints_one_line(folder: Path) -> None:
    done = translate(folder, "--quiet")
    assert done.output == f"prepared: {folder / 'out'}\n"


def test_json_is_the_manifest(folder: Path) -> None:
    printed = json.loads(translate(folder, "--json").stdout)
    assert printed == json.loads((folder / "out/manifest.json").read_text("utf-8"))
    assert printed["settings"]["joint"] is True


def test_separate_vocabularies(folder: Path) -> None:
    assert translate(folder, "--separate", "--vocab-size", "90").exit_code == 0
    names = {path.name for path in (folder / "out").glob("*.model")}
    assert names == {"tokenizer.source.model", "tokenizer.target.model"}


def test_texts_with_labels(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "a.jsonl")
    given = ["--task", "classification", "--source", str(tmp_path / "a.jsonl")]
    done = CliRunner().invoke(app, ["data", "prepare", *given, "--out", str(tmp_path / "out")])
    assert done.exit_code == 0 and (tmp_path / "out/manifest.json").is_file()


def test_what_is_there_is_told(tmp_path: Path) -> None:
    names = [f"kind {number:02}" for number in range(30)]
    rows = [f"{n % 7} words about {n},{names[n % 30]},{n}" for n in range(600)]
    rows += ["only one,kind 00,1"] * 40
    (tmp_path / "texts").mkdir()
    lines = ["review,stars,id", *rows, "too few"]
    (tmp_path / "texts/all.csv").write_text("\n".join(lines))
    (tmp_path / "texts/notes.md").write_text("mine")
    words = ["data", "prepare", "--task", "classification", "--out", str(tmp_path / "out")]
    words += ["--source", str(tmp_path / "texts")]
    refused = CliRunner().invoke(app, words)
    assert refused.exit_code == 2 and "all.csv:642: has 1 cells" in refused.stderr
    done = CliRunner().invoke(app, [*words, "--skip-bad"])
    assert done.exit_code == 0, done.output
    told = " ".join(done.stdout.split())
    for sentence in ("the 20 largest and smallest of 30 classes", "1 bad", "notes.md: no text by"):
        assert sentence in told
    assert "all.csv:642: has 1 cells" in told and "the columns id" in told
    assert " are in train too" not in told  # the equal ones were held out together
    other = CliRunner().invoke(app, [*words, "--skip-bad", "--column", "label:stars"])
    assert other.exit_code == 2 and "such as --column text=review" in other.stderr


def test_a_vocabulary_is_as_large_as_the_text_teaches(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("".join(f"{chr(0x4E00 + n)}{n}\n" for n in range(900)))
    words = ["data", "prepare", "--task", "language_modelling", "--out", str(tmp_path / "out")]
    done = CliRunner().invoke(app, [*words, "--source", str(tmp_path / "a.txt"), "--json"])
    assert 900 < json.loads(done.stdout)["tokenizer"]["vocab_size"] <= 1900


@pytest.mark.parametrize(("file", "words"), [("train.de", "no file"), ("out", "holds other files")])
def test_failures_are_one_sentence(folder: Path, file: str, words: str) -> None:
    (folder / "train.de").unlink() if file == "train.de" else (folder / "out/x").mkdir(parents=True)
    done = translate(folder)
    assert done.exit_code == 2
    assert [words in line for line in done.stderr.strip().splitlines()][-1]
    assert "Traceback" not in done.output and done.stdout == ""


@pytest.mark.parametrize("option", ["--vocab-size=4", "--max-ratio=-1", "--tokenizer=words"])
def test_impossible_options_are_refused(folder: Path, option: str) -> None:
    assert translate(folder, option).exit_code == 2
    assert not (folder / "out").exists()


def test_every_label_is_a_stage() -> None:
    class Kept(ProgressReporter):
        events: tuple[Event, ...] = ()

        def show(self, event: Event) -> None:
            self.events += (event,)

    screen = Kept()
    report = shown_on(screen)
    for done in (0, 1, 2):
        report("Reading", done, 2)
    kinds = [type(event) for event in screen.events]
    assert kinds == [StageStarted, Progress, Progress, Progress, StageFinished]
    assert screen.events[0] == StageStarted("Reading", "Reading", 2)
