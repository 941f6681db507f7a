"""Tasks are opened with the data that fit them, and whoever has none is told how to get them."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from nas.console.app import app
from search_spaces import tasks
from search_spaces.errors import DataError, UnknownNameError
from search_spaces.loading import load_space, parse_space
from search_spaces.settings import TokenInput
from supernet.building import MODELS
from supernet.data.synthetic import generate
from supernet.tasks import opening
from supernet.tasks.opening import open_task
from supernet.training_settings import TrainingSettings
from tests.support.task_cases import SPACES, TEXTS, each_kind
from tests.support.trained_cases import LANGUAGE, TRANSLATION


@each_kind
def test_the_generated_data_fit_every_space(kind: str) -> None:
    task = open_task(SPACES[kind], "synthetic", None, 0)
    assert task.kind == kind and task.name == "synthetic"
    assert task.digest == open_task(SPACES[kind], "synthetic", None, 5).digest
    task.check(TrainingSettings(segment_length=32))
    assert len(task.open_test()) > 0


@pytest.mark.parametrize(
    ("text", "task"), [(TRANSLATION, "translation"), (LANGUAGE, "language_modelling")]
)
def test_without_data_the_commands_that_get_them_are_told(text: str, task: str) -> None:
    space = parse_space(text, "space")
    with pytest.raises(DataError) as caught:
        open_task(space, "europarl", None, 0)
    lines = str(caught.value).splitlines()
    assert any(f"nas data prepare --task {task} " in line for line in lines)
    assert f"  nas search --space ./{space.name}.toml --data data/europarl" in lines
    assert "--data synthetic" in lines[-1]


def test_a_shipped_space_is_told_by_its_name() -> None:
    with pytest.raises(DataError, match="nas search --space wmt14 --data data/wmt14"):
        open_task(load_space("wmt14"), "wmt14", None, 0)


def write_corpus(folder: Path) -> None:
    sentences = generate(260, 5)
    for name, part in (
        ("train", slice(200)),
        ("valid", slice(200, 230)),
        ("test", slice(230, 260)),
    ):
        for ending, side in (("en", "source"), ("de", "target"), ("txt", "text")):
            lines = [getattr(sentence, side) for sentence in sentences[part]]
            (folder / f"{name}.{ending}").write_text("\n".join(lines) + "\n", "utf-8")


@pytest.mark.parametrize("changes", [(), ("separate",)], ids=["joint", "separate"])
@pytest.mark.parametrize("text", [TRANSLATION, LANGUAGE], ids=TEXTS)
def test_the_commands_that_are_told_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, changes: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_corpus(tmp_path)
    if changes and "share_embeddings" in text:
        text = text.replace("share_embeddings = true", "target_vocab_size = 150")
    space = parse_space(text, "space")
    with pytest.raises(DataError) as caught:
        open_task(space, "mine", None, 0)
    command = next(line for line in str(caught.value).splitlines() if "nas data prepare" in line)
    done = CliRunner().invoke(app, shlex.split(command)[1:])
    assert done.exit_code == 0, done.output
    task = open_task(space, "mine", "data/mine", 0)
    assert task.describe()["num_train"] > 150 and task.name == "mine"
    assert len(task.open_test()) > 0


def test_folders_of_other_tasks_and_none_at_all(tmp_path: Path) -> None:
    write_corpus(tmp_path)
    given = ["--source", str(tmp_path / "train.txt"), "--valid", str(tmp_path / "valid.txt")]
    given += ["--test", str(tmp_path / "test.txt"), "--vocab-size", "90"]
    given += ["--out", str(tmp_path / "text")]
    prepare = ["data", "prepare", "--task", "language_modelling", *given, "--quiet"]
    done = CliRunner().invoke(app, prepare)
    assert done.exit_code == 0, done.output
    space = SPACES["translation"]
    wrong = "holds data for language_modelling, but translation is needed.*nas data prepare"
    for path, words in (("text", wrong), ("none", "none"), ("train.txt", r"train\.txt")):
        with pytest.raises(DataError, match=words):
            open_task(space, "text", str(tmp_path / path), 0)


@pytest.mark.parametrize("kind", TEXTS)
def test_networks_that_cannot_read_the_generated_corpus_are_told_what_they_take(kind: str) -> None:
    text = {"translation": TRANSLATION, "language_modelling": LANGUAGE}[kind]
    space = parse_space(text, "space")
    assert isinstance(space.model.input, TokenInput)
    text = text.replace(f"vocab_size = {space.model.input.vocab_size}", "vocab_size = 20")
    words = (
        f"the space {space.name} does not take synthetic: .* has 100 tokens .* the networks have "
        "20 and read .*; give a folder made by nas data prepare with --data"
    )
    with pytest.raises(DataError, match=words):
        open_task(parse_space(text, "space"), "synthetic", None, 0)
    with pytest.raises(DataError, match="; leave --data out for its own data, recall$"):
        open_task(load_space("recall"), "synthetic", None, 0)


def test_a_data_set_for_classification_that_nobody_knows() -> None:
    with pytest.raises(UnknownNameError, match="digits"):
        open_task(SPACES["classification"], "digitz", None, 0)


def test_traits_models_and_classes_name_the_same_tasks() -> None:
    assert set(tasks.TASKS) == set(opening.TASKS) == set(MODELS) == set(tasks.TASK_NAMES)
    assert all(cls.kind == name for name, cls in opening.TASKS.items())
