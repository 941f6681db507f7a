"""The command `nas data prepare`."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from nas.console.app import app
from nas.console.commands.data import shown_on
from nas.console.progress import ProgressReporter
from nas.run.events import Event, Progress, StageFinished, StageStarted
from tests.support.prepare_cases import png, write_jsonl, write_pairs


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


def prepared(tmp_path: Path, *words: str) -> Result:
    given = ["--task", "classification", "--out", str(tmp_path / "out"), *words]
    return CliRunner().invoke(app, ["data", "prepare", *given])


def test_classes_that_a_split_cannot_judge_are_told(tmp_path: Path) -> None:
    rows = [f"{n} {'good' if n % 2 else 'bad'},{'yes' if n % 2 else 'no'}" for n in range(60)]
    (tmp_path / "a.csv").write_text("\n".join(["text,label", *rows, "one of its kind,perhaps"]))
    done = prepared(tmp_path, "--source", str(tmp_path / "a.csv"))
    told = " ".join(done.stdout.split())
    for split in ("valid", "test"):
        assert f"{split} has no example of perhaps: how well these are told it cannot say" in told


def test_classes_that_cannot_be_learnt_are_told(tmp_path: Path) -> None:
    for name in "abc":
        (tmp_path / "pets" / name).mkdir(parents=True)
        for number in range(20):
            pixels = np.full((8, 8, 3), 5 * number + ord(name), dtype=np.uint8)
            content = b"no picture" if name == "c" else png(pixels)
            (tmp_path / f"pets/{name}/{number}.png").write_bytes(content)
    done = prepared(tmp_path, "--source", str(tmp_path / "pets"), "--skip-bad")
    told = " ".join(done.stdout.split())
    assert "train has no example of c: networks cannot learn to tell these" in told
    assert "test has no example of c: how well these are told it cannot say" in told


def test_what_is_mended_in_two_ways_is_told_of_both(tmp_path: Path) -> None:
    pixels = np.zeros((4, 8, 8, 3), dtype=np.uint8)
    for number, name in enumerate(("a", "b")):
        (tmp_path / "pets" / name).mkdir(parents=True)
        (tmp_path / "pets" / name / "1.png").write_bytes(png(pixels[0, : 8 - number]))
    (tmp_path / "pets/a/2.png").write_text("no picture")
    done = prepared(tmp_path, "--source", str(tmp_path / "pets"))
    told = " ".join(done.stderr.split())
    assert "give --image-size to make them equal" in told
    assert told.endswith("Mend them; single examples can be left out with --skip-bad")


def test_one_folder_of_pictures_and_a_table_without_rows_are_told_as_what_they_are(
    tmp_path: Path,
) -> None:
    (tmp_path / "pets/cats").mkdir(parents=True)
    (tmp_path / "pets/cats/1.png").write_bytes(png(np.zeros((8, 8, 3), dtype=np.uint8)))
    alone = prepared(tmp_path, "--source", str(tmp_path / "pets"))
    assert "pets holds one folder alone, cats; a folder of images has" in alone.stderr
    (tmp_path / "a.csv").write_text("text,label\n")
    empty = prepared(tmp_path, "--source", str(tmp_path / "a.csv"))
    assert "a.csv holds no example; it should have one a line" in empty.stderr


def test_an_empty_file_beside_others_is_ignored_and_said(tmp_path: Path) -> None:
    folder = tmp_path / "texts"
    folder.mkdir()
    (folder / "empty.txt").touch()
    words = ["--task", "language_modelling", "--source", str(folder)]
    alone = prepared(tmp_path, *words)
    assert "empty.txt holds no example; it should have one a line" in alone.stderr
    (folder / "a.txt").write_text("".join(f"line {n} of a text\n" for n in range(60)))
    done = prepared(tmp_path, *words)
    assert done.exit_code == 0, done.stderr
    assert f"ignored {folder / 'empty.txt'}: it holds no example" in " ".join(done.output.split())


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


@pytest.mark.parametrize("task", ["classification", "language_modelling", "translation"])
def test_training_data_that_are_not_there_are_wrong_use(folder: Path, task: str) -> None:
    others = ["--target", "train.de", "--valid", "valid", "--test", "test"]
    if task != "translation":
        others = ["--valid", "valid.en", "--test", "test.en"]
    words = ["--source", "no.en", *others, "--out", "out"]
    given = [word if word.startswith("-") else str(folder / word) for word in words]
    done = CliRunner().invoke(app, ["data", "prepare", "--task", task, *given])
    assert (done.exit_code, done.stdout) == (2, "")
    told = done.stderr.replace("\n", "")
    assert f"there is no file {folder / 'no.en'}" in told.replace("file or folder", "file")
    assert not (folder / "out").exists()


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
